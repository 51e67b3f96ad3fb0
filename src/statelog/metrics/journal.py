"""Metrics of one process that another process records as its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from statelog.metrics.registry import Metrics
from statelog.metrics.table import METRICS, MetricKind

JOURNAL_MAX: Final = 20_000
"""Entries that a journal holds, about 2,000 uploads; beyond them the oldest are dropped."""

Entries = list[tuple[str, float]]
"""Names and amounts of counters, names and values of histograms, in the order of their recording."""


class MetricsJournal(Metrics):
    """
    Metrics that also keep each value until `take`.

    Gauges are read where they are: they are not in the journal.

    Args:
        growth: Counters that are counted elsewhere: for each the function that returns how much it has
            grown since its last call.

    Thread: any.
    """

    def __init__(self, growth: Mapping[str, Callable[[], int]] | None = None) -> None:
        super().__init__()
        self._growth = dict(growth or {})
        self._entries: deque[tuple[str, float]] = deque(maxlen=JOURNAL_MAX)

    def count(self, name: str, amount: int = 1) -> None:
        """Add *amount* to the counter *name*; raises `UsageError` if there is no such counter."""
        super().count(name, amount)
        self._entries.append((name, amount))

    def record(self, name: str, value: float) -> None:
        """Add *value* to the histogram *name*; raises `UsageError` if there is no such histogram."""
        super().record(name, value)
        self._entries.append((name, value))

    def take(self) -> Entries:
        """Return what was recorded since the last call."""
        for name, grown in self._growth.items():
            if amount := grown():
                self.count(name, amount)
        taken = []
        while self._entries:  # only `take` removes entries
            taken.append(self._entries.popleft())
        return taken


def add_entries(metrics: Metrics, entries: Iterable[tuple[str, float]]) -> None:
    """Record the entries of a journal, without entries of unknown metrics."""
    for name, value in entries:
        spec = METRICS.get(name)
        if spec is not None and spec.kind is MetricKind.COUNTER:
            metrics.count(name, int(value))
        elif spec is not None:
            metrics.record(name, value)
