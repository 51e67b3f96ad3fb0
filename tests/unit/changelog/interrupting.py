"""
Signals at chosen moments: before every call, after every call, and at every loop.

There the interpreter looks for signals.  A trace function counts these moments on one thread and
raises a signal at one of them, so that a test can try them all, in the same order every time.
"""

import dis
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNAL = signal.SIGUSR1
_LOOKS_BEHIND = {
    number
    for name, number in dis.opmap.items()
    if name.startswith(("CALL", "JUMP_BACKWARD")) and not name.startswith("CALL_INTRINSIC")
}
_YIELDS = dis.opmap["YIELD_VALUE"]
_WHERE = ("/statelog/", "/threading.py", "/concurrent/futures/")


class Interrupt(BaseException):
    """What the handler of the tests raises, as that of Ctrl-C does."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupt


class Shot:
    """
    One signal at the moment *at* of what runs inside; `fired` tells whether there is such a moment.

    What runs inside must swallow `Interrupt` itself.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self.fired = False
        self._old: Any = None

    def __enter__(self) -> "Shot":
        assert threading.current_thread() is threading.main_thread(), "signals come there only"
        self._old = signal.signal(SIGNAL, _raise)
        sys.settrace(self._call)
        return self

    def __exit__(self, *args: object) -> None:
        sys.settrace(None)
        signal.signal(SIGNAL, self._old)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in _WHERE):
            return None
        code, last = frame.f_code.co_code, -1

        def opcode(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "opcode":
                if last >= 0 and code[last] in _LOOKS_BEHIND:
                    self._moment()
                last = frame.f_lasti
            return opcode

        frame.f_trace = opcode  # first: Python 3.13 takes note of the next line only then
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        # A generator that is closed is a call, too, but the interpreter looks for no signals there.
        if code[frame.f_lasti] != _YIELDS:
            self._moment()
        return opcode

    def _moment(self) -> None:
        if self.fired:
            return
        self._left -= 1
        if self._left < 0:
            self.fired = True
            signal.raise_signal(SIGNAL)


def interrupted(at: int, work: Callable[[], Any]) -> tuple[bool, bool, Any]:
    """Do *work* with a signal at *at*; return whether it came, whether it rose, and the result."""
    shot = Shot(at)
    result, rose = None, False
    with shot:
        try:
            result = work()
        except Interrupt:
            rose = True
    return shot.fired, rose, result


def in_time(work: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    """Do *work* on another thread and return its result; a hang fails the test."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]
    return results[0]
