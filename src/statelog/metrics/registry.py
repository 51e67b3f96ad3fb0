"""
A registry of metric values, and a journal that sends values between processes.

Recording appends to deques, which is atomic, so any thread may record without a lock.
"""

from __future__ import annotations

import threading  # noqa: TID251 - only a lock, which ends with its `with`
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from statelog.errors import UsageError
from statelog.metrics.table import METRICS, MetricKind, MetricSpec

HISTOGRAM_SIZE: Final = 1000
"""Number of values in a histogram, as in Flink."""

_FOLD_AT: Final = 512

JOURNAL_MAX: Final = 20_000
"""Maximum entries in a journal, about 2,000 uploads; the oldest are dropped."""
Entries = list[tuple[str, float]]
"""Counters with their amounts and histograms with their values, as recorded."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """
    The most recent values of a histogram, oldest first.

    Args:
        values: At most 1000 values.
        total_count: Number of all values recorded.
        total_sum: Sum of all values recorded.
    """

    values: tuple[float, ...]
    total_count: int = 0
    total_sum: float = 0.0

    @property
    def count(self) -> int:
        """The number of values in the window."""
        return len(self.values)

    def quantile(self, fraction: float) -> float:
        """Return the value at *fraction* (0 to 1), or 0 if the histogram is empty."""
        if not self.values:
            return 0.0
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


MetricValue = int | float | HistogramSnapshot


class _Sum:
    """
    A sum that many threads can add to without a lock, because deque appends are atomic.

    From time to time a thread that adds replaces the summands by their sum, and so does every
    reader.  A lock keeps readers from seeing the deque between the two steps.
    """

    __slots__ = ("_folding", "_summands")

    def __init__(self) -> None:
        self._summands: deque[float] = deque()
        self._folding = threading.Lock()

    def add(self, amount: float) -> None:
        self._summands.append(amount)
        if len(self._summands) > _FOLD_AT and not self._folding.locked():
            self.value()

    def value(self) -> float:
        # The `with` is one step for a signal handler that raises.  The lock is held for
        # microseconds, and only while folding.
        with self._folding:
            return self._fold()

    def _fold(self) -> float:
        """Replace the collected numbers with their sum. Called under the lock."""
        total: float = 0
        try:
            for _ in range(len(self._summands)):
                total += self._summands.popleft()
            return total
        finally:
            self._summands.append(total)


class Metrics:
    """
    The values of the metrics of one storage.

    Thread: any.
    """

    def __init__(self) -> None:
        self._specs: dict[str, MetricSpec] = {}
        self._observers: list[Callable[[MetricSpec], None]] = []
        self._counters: dict[str, _Sum] = {}
        self._histograms: dict[str, deque[float]] = {}
        self._totals: dict[str, tuple[_Sum, _Sum]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        self.declare(METRICS.values())

    def declare(self, specs: Iterable[MetricSpec]) -> None:
        """Add metrics, such as the metrics of extensions; existing declarations stay the same."""
        for spec in specs:
            if spec.name in self._specs:
                continue
            if spec.kind is MetricKind.COUNTER:
                self._counters.setdefault(spec.name, _Sum())
            elif spec.kind is MetricKind.HISTOGRAM:
                self._totals.setdefault(spec.name, (_Sum(), _Sum()))
                self._histograms.setdefault(spec.name, deque(maxlen=HISTOGRAM_SIZE))
            self._specs[spec.name] = spec
            for observer in self._observers:
                observer(spec)

    def observe_declared(self, observer: Callable[[MetricSpec], None]) -> None:
        """Call *observer* with each metric, including metrics that are declared later."""
        self._observers.append(observer)
        for spec in list(self._specs.values()):
            observer(spec)

    def spec(self, name: str) -> MetricSpec:
        """Return the declaration of a metric that appears in `snapshot`."""
        return self._specs[name]

    def count(self, name: str, amount: int = 1) -> None:
        """Add *amount* to the counter *name*; raise `UsageError` if it does not exist."""
        counter = self._counters.get(name)
        if counter is None:
            raise _unknown(name, MetricKind.COUNTER)
        counter.add(amount)

    def record(self, name: str, value: float) -> None:
        """
        Add *value* to the histogram *name*.

        Raises `UsageError` if there is no such histogram.
        """
        histogram = self._histograms.get(name)
        if histogram is None:
            raise _unknown(name, MetricKind.HISTOGRAM)
        histogram.append(value)
        number, total = self._totals[name]
        number.add(1)
        total.add(value)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """
        Use *read* to get the value of the gauge *name*.

        Raises `UsageError` if there is no such gauge.
        """
        spec = self._specs.get(name)
        if spec is None or spec.kind is not MetricKind.GAUGE:
            raise _unknown(name, MetricKind.GAUGE)
        self._gauges[name] = read

    def value(self, name: str) -> MetricValue | None:
        """Return the current value of a metric, or None for a gauge without a reader."""
        if (counter := self._counters.get(name)) is not None:
            return counter.value()
        if (histogram := self._histograms.get(name)) is not None:
            number, total = self._totals[name]
            return HistogramSnapshot(tuple(_copy(histogram)), int(number.value()), total.value())
        read = self._gauges.get(name)
        return None if read is None else read()

    def snapshot(self) -> dict[str, MetricValue]:
        """Return the current value of every metric that has a value, by name."""
        values = {name: self.value(name) for name in list(self._specs)}
        return {name: value for name, value in values.items() if value is not None}


def _unknown(name: str, kind: MetricKind) -> UsageError:
    return UsageError(f"unknown {kind.value} {name!r}; statelog.metrics.METRICS lists all metrics")


def _copy(values: deque[float]) -> list[float]:
    while True:
        try:
            return list(values)
        except RuntimeError:  # another thread appended during the copy
            continue


class MetricsJournal(Metrics):
    """
    Metrics that also record each value until `take` is called.

    Gauges are read where they are: they are not in the journal.

    Thread: any.
    """

    def __init__(self, growth: Mapping[str, Callable[[], int]] | None = None) -> None:
        super().__init__()
        self._growth = dict(growth or {})
        self._entries: deque[tuple[str, float]] = deque(maxlen=JOURNAL_MAX)

    def count(self, name: str, amount: int = 1) -> None:
        """Add *amount* to the counter *name*; raise `UsageError` if it does not exist."""
        super().count(name, amount)
        self._entries.append((name, amount))

    def record(self, name: str, value: float) -> None:
        """
        Add *value* to the histogram *name*.

        Raises `UsageError` if there is no such histogram.
        """
        super().record(name, value)
        self._entries.append((name, value))

    def take(self) -> Entries:
        """Return the values recorded since the last call of `take`."""
        for name, grown in self._growth.items():
            if amount := grown():
                self.count(name, amount)
        taken = []
        while self._entries:  # only `take` removes entries
            taken.append(self._entries.popleft())
        return taken


def add_entries(metrics: Metrics, entries: Iterable[tuple[str, float]]) -> None:
    """Record the entries of a journal, ignoring entries for unknown metrics."""
    for name, value in entries:
        spec = METRICS.get(name)
        if spec is not None and spec.kind is MetricKind.COUNTER:
            metrics.count(name, int(value))
        elif spec is not None:
            metrics.record(name, value)
