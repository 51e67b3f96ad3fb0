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
