"""Medians, spreads and ratios of the runs of a part: the only place where figures are made."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Part = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """
    A median and where the samples are around it.

    Args:
        median: Of all samples.
        low, high: The quartiles; the lowest and highest of fewer than four samples.
        samples: Their number.
    """

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the spread of the samples; at least one."""
        ordered = sorted(samples)
        quarter = len(ordered) // 4
        low, high = ordered[quarter], ordered[-1 - quarter]
        if len(ordered) < 4:
            low, high = ordered[0], ordered[-1]
        return cls(statistics.median(ordered), low, high, len(ordered))

    def said(self, digits: int = 0) -> str:
        """Return median and quartiles for people."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"

    @property
    def relative(self) -> float:
        """Half the distance of the quartiles, as a part of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """
    How much better a part is than another, or how flat a curve is.

    Args:
        value: The ratio.
        spread: Its relative spread.
        higher_is_better: False for a growth, which should stay near 1.
    """

    value: float
    spread: float
    higher_is_better: bool = True


def samples(part: Part, name: str = "milliseconds") -> list[float]:
    """Return the samples of a name in all runs of a part; a run has one or a list of them."""
    found: list[float] = []
    for run in part.get("runs", ()):
        value = run.get(name, [])
        found.extend(value if isinstance(value, list) else [value])
    return found


def is_measured(part: Part | None) -> bool:
    """Return whether a part has at least one run."""
    return bool(part and part.get("runs"))


def milliseconds(part: Part) -> Spread:
    """Return the time of a micro-batch."""
    return Spread.of(samples(part))


def rate(part: Part) -> Spread:
    """Return the events per second of the micro-batches."""
    times, events = samples(part), samples(part, "events")
    return Spread.of([1000 * n / ms for n, ms in zip(events, times, strict=True) if ms and n])


def faster(part: Part, base: Part) -> Ratio:
    """Return how many times faster the micro-batches of a part are than those of the base."""
    own, other = milliseconds(part), milliseconds(base)
    both = (own.relative**2 + other.relative**2) ** 0.5
    return Ratio(other.median / own.median, both)


def growth(first: Sequence[float], last: Sequence[float]) -> Ratio:
    """Return the median of the last samples over that of the first."""
    before, after = Spread.of(first), Spread.of(last)
    both = (before.relative**2 + after.relative**2) ** 0.5
    value = after.median / before.median if before.median else float("inf")
    return Ratio(value, both, higher_is_better=False)
