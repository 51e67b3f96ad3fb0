"""Time, unique names and randomness, which are passed in wherever they matter."""

from __future__ import annotations

import datetime as dt
import random
import time
import uuid
from typing import Final, Protocol

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Clock(Protocol):
    """
    A monotonic clock.

    Thread: any.
    """

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary fixed point; the value never decreases."""
        ...


class SystemClock:
    """The monotonic clock of this machine."""

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary fixed point; the value never decreases."""
        return time.monotonic_ns()


def wall_clock_seconds() -> float:
    """Return seconds since 1970 (UTC), for comparison with the times of local files."""
    return time.time()


def wall_clock_ms() -> int:
    """Return milliseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000_000


def utc_time(milliseconds: int) -> dt.datetime | None:
    """Convert a stored time since 1970 to UTC; return None outside the years 1 to 9999."""
    try:
        return _EPOCH + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def pause(seconds: float) -> None:
    """Block the calling thread for the given number of seconds."""
    time.sleep(seconds)


class Stopwatch:
    """Divides elapsed time into named phases, in milliseconds."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._last = self._start = time.perf_counter()

    def lap(self, phase: str) -> None:
        """
        End a phase, and start the next one.

        A name that is repeated adds up.
        """
        now = time.perf_counter()
        self.milliseconds[phase] = self.milliseconds.get(phase, 0.0) + (now - self._last) * 1e3
        self._last = now

    def with_total(self) -> dict[str, float]:
        """Return the phases, and `total`: the time from the start to the last lap."""
        return {**self.milliseconds, "total": (self._last - self._start) * 1e3}


class IdSource(Protocol):
    """
    Generates unique names and random fractions.

    Thread: any.
    """

    def new_id(self) -> str:
        """Return a globally unique name that can be used as a file name."""
        ...

    def fraction(self) -> float:
        """Return a number in [0, 1), which spreads retries over time."""
        ...


class RandomIds:
    """Random UUIDs in the form that Flink uses in file names. Safe after a fork."""

    def new_id(self) -> str:
        """Return a random UUID."""
        return str(uuid.uuid4())

    def fraction(self) -> float:
        """Return a number in [0, 1)."""
        return random.random()
