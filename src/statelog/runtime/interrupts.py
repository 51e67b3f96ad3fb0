"""
Interrupts: an exception of a signal handler reaches the main thread between steps, not inside one.

Python runs signal handlers on the main thread, between any two calls; Ctrl-C raises there.  An
exception in the middle of a step would leave a lock held, a core half changed, or a decision that
was made and never carried out.  So a call that must not be torn apart is marked with
`uninterrupted`: while it runs, every signal that has a Python handler gets a stand-in, which only
notes the signal.  At its end the handlers come back and run for what was noted.  Where such a call
waits or works for long, it lets handlers run (`interruptible`) and is ready for their exceptions.

Only the main thread runs handlers, so other threads pay for a comparison.  On the main thread the
outermost call pays some microseconds; `append` is no such call.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time

# The functions in C: those of `signal` turn every number into an enum, which costs ten times more.
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]
from _signal import signal as _setsignal
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Final, ParamSpec, TypeVar, TypeVarTuple

P = ParamSpec("P")
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

PATIENCE_S: Final = 5.0
"""A step that takes longer is presumed to hang: signals come through to it after this time."""

_COMMON: Final = "SIGINT SIGTERM SIGHUP SIGQUIT SIGALRM SIGVTALRM SIGPROF SIGUSR1 SIGUSR2 SIGABRT SIGCHLD SIGPIPE"
_UNHANDLED: Final = "SIGKILL SIGSTOP SIGSEGV SIGBUS SIGFPE SIGILL"


def _numbers(names: str) -> set[int]:
    return {int(getattr(signal, name)) for name in names.split() if hasattr(signal, name)}


_OFTEN: Final = sorted(_numbers(_COMMON))
_SELDOM: Final = sorted(
    {int(each) for each in signal.valid_signals()} - _numbers(_COMMON) - _numbers(_UNHANDLED)
)
"""Who handles these is looked up in every 64th step: there are many, and few programs handle any."""

_SIGNALS: Final = [*_OFTEN, *_SELDOM]
_SELDOM_EVERY: Final = 64
_NEVER: Final = float("inf")


class _StandIn:
    """In the place of a handler: notes the signal during a step, calls the handler outside."""

    __slots__ = ("_main", "handler")

    def __init__(
        self, main: MainThread, handler: Callable[[int, FrameType | None], object]
    ) -> None:
        self._main = main
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._main.note(number):
            self.handler(number, frame)


class MainThread:
    """
    The steps of the main thread, and the signals that came during them.

    The process has one, as it has one table of signal handlers.  A stand-in that an interrupt at
    the edge of a step leaves behind does no harm: it calls its handler, and the next step takes it
    away.

    `thread_id` and `depth` are read and counted by `runtime/lock.py` too, which is entered often.
    """

    def __init__(self) -> None:
        self.thread_id = threading.main_thread().ident
        self.depth = 0
        self._open = 0
        self._since_s = _NEVER
        self._noted: list[int] = []
        self._seen: list[object] = []
        self._seldom: list[object] = []
        self._steps = 0
        self._stand_ins: list[tuple[int, _StandIn]] = []
        self._installed = False

    def begin(self) -> None:
        """Begin a step, maybe inside another one; each needs its `end`.  Thread: any."""
        if get_ident() != self.thread_id:
            return
        if not self.depth:
            self._since_s = time.monotonic()
            if not self._installed:
                try:
                    self._install()
                except BaseException:
                    self._uninstall()
                    raise
        self.depth += 1

    def end(self) -> None:
        """End a step; behind the outermost one the handlers of noted signals run.  Thread: any."""
        if get_ident() != self.thread_id:
            return
        if self.depth > 1:
            self.depth -= 1
            return
        self.depth = 0
        try:
            if not self._open:
                self._uninstall()
        except BaseException:  # from a handler that was back already
            self._uninstall()
            raise
        finally:
            if self._noted:
                self._deliver()

    def let_in(self, work: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Do *work* with handlers let in, in the middle of a step or outside.  Thread: any."""
        if get_ident() != self.thread_id or not self.depth:
            return work(*args)
        depth = self.depth
        self._open += 1
        try:
            self.depth = 0
            if self._noted:
                self._deliver()
            result = work(*args)  # kept first: what a signal raises behind the call is inside, too
        finally:
            self._since_s = _NEVER
            self.depth = depth
            self._open -= 1
            self._since_s = time.monotonic()
            del work, args  # the traceback of an error holds this frame
        return result

    def note(self, number: int) -> bool:
        """Note a signal that comes during a step; return False if its handler shall run now."""
        if not self.depth or time.monotonic() - self._since_s > PATIENCE_S:
            return False
        if number not in self._noted:
            self._noted.append(number)
        return True

    def start_in_child(self) -> None:
        """Forget the steps of a main thread that a fork has left behind."""
        thread_id = get_ident()
        if thread_id != self.thread_id:  # another thread has forked, and is the main one now
            self.thread_id = thread_id
            self.depth = self._open = 0
            self._noted.clear()
            self._uninstall()

    def _install(self) -> None:
        if self._steps % _SELDOM_EVERY == 0:
            self._seldom = list(map(_getsignal, _SELDOM))
        self._steps += 1
        handlers = [*map(_getsignal, _OFTEN), *self._seldom]
        if handlers != self._seen:
            self._stand_ins = [
                (number, handler if isinstance(handler, _StandIn) else _StandIn(self, handler))
                for number, handler in zip(_SIGNALS, handlers, strict=True)
                if callable(handler)
            ]
            self._seen = handlers
        try:
            for number, stand_in in self._stand_ins:
                _setsignal(number, stand_in)
        except ValueError:
            return  # an interpreter inside another one: no handler runs here
        self._installed = True  # last: an interrupted installation is begun anew

    def _uninstall(self) -> None:
        self._installed = False  # first: where this is interrupted, the next step installs all
        for number, stand_in in self._stand_ins:
            if _getsignal(number) is stand_in:
                _setsignal(number, stand_in.handler)

    def _deliver(self) -> None:
        number = self._noted.pop(0)
        try:
            signal.raise_signal(number)
        finally:
            if self._noted:
                self._deliver()


MAIN_THREAD: Final = MainThread()
os.register_at_fork(after_in_child=MAIN_THREAD.start_in_child)


def uninterrupted(step: Callable[P, T]) -> Callable[P, T]:
    """
    Make a function a step of the main thread: exceptions of signal handlers come after it.

    What it returns is lost where one comes; the object it works on is whole.
    """

    @functools.wraps(step)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if get_ident() != MAIN_THREAD.thread_id or MAIN_THREAD.depth:
            return step(*args, **kwargs)
        MAIN_THREAD.begin()
        try:
            return step(*args, **kwargs)
        finally:
            MAIN_THREAD.end()

    return call


def interruptible(work: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Do a piece of *work* inside of a step that signal handlers may interrupt, and return it."""
    return MAIN_THREAD.let_in(work, *args)
