"""Clocks: a monotonic count of nanoseconds, passed in wherever time matters."""

from __future__ import annotations

import datetime as dt
import time
from typing import Final, Protocol

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Clock(Protocol):
    """A monotonic clock.  Thread: any."""

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary fixed point; never decreases."""
        ...


class SystemClock:
    """The monotonic clock of this machine."""

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary fixed point; never decreases."""
        return time.monotonic_ns()


def wall_clock_seconds() -> float:
    """Return seconds since 1970 (UTC), to compare with times of local files."""
    return time.time()


def wall_clock_ms() -> int:
    """Return milliseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000_000


def utc_time(milliseconds: int) -> dt.datetime | None:
    """Return a stored time since 1970 in UTC; None if the calendar, years 1 to 9999, lacks it."""
    try:
        return _EPOCH + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def pause(seconds: float) -> None:
    """Block the calling thread for a number of seconds."""
    time.sleep(seconds)
