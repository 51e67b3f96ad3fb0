"""Time, as statelog asks for it: one monotonic count of nanoseconds, passed in everywhere."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time.  May be asked from several threads at once."""

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary fixed point; never goes backwards."""
        ...


class SystemClock:
    """The monotonic clock of this machine."""

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary fixed point; never goes backwards."""
        return time.monotonic_ns()


def wall_clock_seconds() -> float:
    """Return seconds since 1970 (UTC), for comparing with the age of local files."""
    return time.time()


def pause(seconds: float) -> None:
    """Block the calling thread for so many seconds."""
    time.sleep(seconds)
