"""
Interrupts: an exception of a signal handler is raised between steps, not inside one.

Python runs signal handlers on the main thread, between any two calls; Ctrl-C raises there.  An
exception in the middle of a step could leave a lock held, a core half changed, or actions not
performed.  So a call that must complete is marked with `uninterrupted`: while it runs, every signal
with a Python handler has a deferring handler, which only records the signal.  At the end of the
call the original handlers are restored and run for the recorded signals.  Where such a call waits
or works for long, it lets handlers run (`interruptible`) and handles their exceptions.

Only the main thread runs handlers, so on other threads a step costs a comparison.  On the main
thread the outermost call costs some microseconds; `append` is not such a call.
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
"""A step that takes longer is considered hung: after this time its signals are handled at once."""

_COMMON: Final = "SIGINT SIGTERM SIGHUP SIGQUIT SIGALRM SIGVTALRM SIGPROF SIGUSR1 SIGUSR2 SIGABRT SIGCHLD SIGPIPE"
_UNHANDLED: Final = "SIGKILL SIGSTOP SIGSEGV SIGBUS SIGFPE SIGILL"


def _numbers(names: str) -> set[int]:
    return {int(getattr(signal, name)) for name in names.split() if hasattr(signal, name)}


_OFTEN: Final = sorted(_numbers(_COMMON))
_SELDOM: Final = sorted(
    {int(each) for each in signal.valid_signals()} - _numbers(_COMMON) - _numbers(_UNHANDLED)
)
"""Their handlers are looked up in every 64th step: there are many, and few programs set any."""

_SIGNALS: Final = [*_OFTEN, *_SELDOM]
_SELDOM_EVERY: Final = 64
_NEVER: Final = float("inf")


class _DeferringHandler:
    """Records a signal during a step; calls the original handler outside of steps."""

    __slots__ = ("_main", "handler")

    def __init__(
        self, main: MainThread, handler: Callable[[int, FrameType | None], object]
    ) -> None:
        self._main = main
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._main.record(number):
            self.handler(number, frame)


class MainThread:
    """
    The steps of the main thread, and the signals recorded during them.

    There is one for the process, as there is one table of signal handlers.  An interrupt at the
    edge of a step may leave a deferring handler installed.  It then calls the original handler, and
    the next step removes it.

    `runtime/lock.py` also reads `thread_id` and `depth`, because it is entered often.
    """

    def __init__(self) -> None:
        self.thread_id = threading.main_thread().ident
        self.depth = 0
        self._open = 0
        self._since_s = _NEVER
        self._recorded: list[int] = []
        self._seen: list[object] = []
        self._seldom: list[object] = []
        self._steps = 0
        self._deferring: list[tuple[int, _DeferringHandler]] = []
        self._installed = False

    def begin(self) -> None:
        """Begin a step, possibly inside another one; each needs its `end`.  Thread: any."""
        if get_ident() != self.thread_id:
            return
        if self.depth:
            self.depth += 1
        else:
            self.begin_outermost()

    def begin_outermost(self) -> None:
        """Begin a step that is not inside another one.  Thread: the main one."""
        self._since_s = time.monotonic()
        if not self._installed:
            try:
                self._install()
            except BaseException:
                self._uninstall()
                raise
        self.depth += 1

    def end(self) -> None:
        """End a step; after the outermost one, handle recorded signals.  Thread: any."""
        if get_ident() != self.thread_id:
            return
        if self.depth > 1:
            self.depth -= 1
        else:
            self.end_outermost()

    def end_outermost(self) -> None:
        """End a step that is not inside another one.  Thread: the main one."""
        self.depth = 0
        try:
            if not self._open:
                self._uninstall()
        except BaseException:  # from a handler that was already restored
            self._uninstall()
            raise
        finally:
            if self._recorded:
                self._deliver()

    def run_interruptible(self, work: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Run *work* with signals handled at once, inside a step or outside.  Thread: any."""
        if get_ident() != self.thread_id or not self.depth:
            return work(*args)
        depth = self.depth
        self._open += 1
        try:
            self.depth = 0
            if self._recorded:
                self._deliver()
            result = work(*args)  # assigned inside, because a signal may raise after the call
        finally:
            self._since_s = _NEVER
            self.depth = depth
            self._open -= 1
            self._since_s = time.monotonic()
            del work, args  # the traceback of an error holds this frame
        return result

    def record(self, number: int) -> bool:
        """Record a signal during a step; return False if its handler must run now."""
        if not self.depth or time.monotonic() - self._since_s > PATIENCE_S:
            return False
        if number not in self._recorded:
            self._recorded.append(number)
        return True

    def start_in_child(self) -> None:
        """Reset the steps in a forked child."""
        thread_id = get_ident()
        if thread_id != self.thread_id:  # another thread forked, and is now the main thread
            self.thread_id = thread_id
            self.depth = self._open = 0
            self._recorded.clear()
            self._uninstall()

    def _install(self) -> None:
        if self._steps % _SELDOM_EVERY == 0:
            self._seldom = list(map(_getsignal, _SELDOM))
        self._steps += 1
        handlers = [*map(_getsignal, _OFTEN), *self._seldom]
        if handlers != self._seen:
            self._deferring = [
                (
                    number,
                    handler
                    if isinstance(handler, _DeferringHandler)
                    else _DeferringHandler(self, handler),
                )
                for number, handler in zip(_SIGNALS, handlers, strict=True)
                if callable(handler)
            ]
            self._seen = handlers
        try:
            for number, deferring in self._deferring:
                _setsignal(number, deferring)
        except ValueError:
            return  # a subinterpreter: no handler runs here
        self._installed = True  # last: an interrupted installation is repeated

    def _uninstall(self) -> None:
        self._installed = False  # first: if this is interrupted, the next step installs all
        for number, deferring in self._deferring:
            if _getsignal(number) is deferring:
                _setsignal(number, deferring.handler)

    def _deliver(self) -> None:
        number = self._recorded.pop(0)
        try:
            signal.raise_signal(number)
        finally:
            if self._recorded:
                self._deliver()


MAIN_THREAD: Final = MainThread()
os.register_at_fork(after_in_child=MAIN_THREAD.start_in_child)


def uninterrupted(step: Callable[P, T]) -> Callable[P, T]:
    """
    Make a function a step: exceptions of signal handlers are raised after it.

    Such an exception replaces the return value; the state of the object is consistent.
    """

    @functools.wraps(step)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # In a step of the main thread, or on another thread: nothing to do.  Another thread may see
        # a step of the main thread here, which comes to the same.
        if MAIN_THREAD.depth or get_ident() != MAIN_THREAD.thread_id:
            return step(*args, **kwargs)
        MAIN_THREAD.begin_outermost()
        try:
            return step(*args, **kwargs)
        finally:
            MAIN_THREAD.end_outermost()

    return call


def interruptible(work: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Return the result of *work*, which signal handlers may interrupt."""
    return MAIN_THREAD.run_interruptible(work, *args)
