"""
All metrics of statelog in one table, and a registry that holds their values.

Names and meanings are Flink's, in Python's spelling; the table says which is which.
Source: Flink, ChangelogStorageMetricGroup, ChangelogMaterializationMetricGroup,
ChangelogStateBackendMetricGroup.  Deviations are said at the metric.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from statelog.errors import UsageError

HISTOGRAM_SIZE: Final = 1000
"""Values a histogram remembers, as in Flink."""

_FOLD_AT: Final = 512


class MetricKind(enum.Enum):
    """What a metric does with the values it gets."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One row of the table: our name, Flink's name, kind, unit and meaning."""

    name: str
    flink_name: str
    kind: MetricKind
    unit: str
    description: str


_TABLE: Final = (
    MetricSpec(
        "number_of_upload_requests",
        "ChangelogStorage.numberOfUploadRequests",
        MetricKind.COUNTER,
        "attempts",
        "Upload attempts started.",
    ),
    MetricSpec(
        "number_of_upload_failures",
        "ChangelogStorage.numberOfUploadFailures",
        MetricKind.COUNTER,
        "attempts",
        "Upload attempts that raised; unlike in Flink any kind of error counts.",
    ),
    MetricSpec(
        "attempts_per_upload",
        "ChangelogStorage.attemptsPerUpload",
        MetricKind.HISTOGRAM,
        "attempts",
        "Number of the attempt that won; successful uploads only.",
    ),
    MetricSpec(
        "total_attempts_per_upload",
        "ChangelogStorage.totalAttemptsPerUpload",
        MetricKind.HISTOGRAM,
        "attempts",
        "Attempts made until the upload succeeded.",
    ),
    MetricSpec(
        "upload_batch_sizes",
        "ChangelogStorage.uploadBatchSizes",
        MetricKind.HISTOGRAM,
        "tasks",
        "Tasks put into one file.",
    ),
    MetricSpec(
        "upload_sizes",
        "ChangelogStorage.uploadSizes",
        MetricKind.HISTOGRAM,
        "bytes",
        "Payload bytes per file, before compression; successful attempts only.",
    ),
    MetricSpec(
        "upload_latencies",
        "ChangelogStorage.uploadLatenciesNanos",
        MetricKind.HISTOGRAM,
        "nanoseconds",
        "Duration of successful attempts.",
    ),
    MetricSpec(
        "upload_queue_size",
        "ChangelogStorage.uploadQueueSize",
        MetricKind.GAUGE,
        "tasks",
        "Tasks that wait to be put into a file.",
    ),
    MetricSpec(
        "started_materialization",
        "ChangelogMaterialization.startedMaterialization",
        MetricKind.COUNTER,
        "runs",
        "Materializations started, skipped ones included.",
    ),
    MetricSpec(
        "completed_materialization",
        "ChangelogMaterialization.completedMaterialization",
        MetricKind.COUNTER,
        "runs",
        "Materializations completed, skipped ones included.",
    ),
    MetricSpec(
        "failed_materialization",
        "ChangelogMaterialization.failedMaterialization",
        MetricKind.COUNTER,
        "runs",
        "Materializations that failed.",
    ),
    MetricSpec(
        "last_duration_of_materialization",
        "ChangelogMaterialization.lastDurationOfMaterialization",
        MetricKind.GAUGE,
        "milliseconds",
        "Duration of the last materialization; -1 before the first.",
    ),
    MetricSpec(
        "last_full_size_of_materialization",
        "ChangelogStateBackend.lastFullSizeOfMaterialization",
        MetricKind.GAUGE,
        "bytes",
        "Full size of the materialized part of the last checkpoint.",
    ),
    MetricSpec(
        "last_inc_size_of_materialization",
        "ChangelogStateBackend.lastIncSizeOfMaterialization",
        MetricKind.GAUGE,
        "bytes",
        "New bytes in the materialized part of the last checkpoint.",
    ),
    MetricSpec(
        "last_full_size_of_non_materialization",
        "ChangelogStateBackend.lastFullSizeOfNonMaterialization",
        MetricKind.GAUGE,
        "bytes",
        "Full size of the log part of the last checkpoint.",
    ),
    MetricSpec(
        "last_inc_size_of_non_materialization",
        "ChangelogStateBackend.lastIncSizeOfNonMaterialization",
        MetricKind.GAUGE,
        "bytes",
        "New bytes in the log part of the last checkpoint; each set counts once.",
    ),
    MetricSpec(
        "changelog_busy_time",
        "changelogBusyTimeMsPerSecond",
        MetricKind.COUNTER,
        "nanoseconds",
        "Time callers waited for upload capacity; Flink shows it per second, in ms.",
    ),
)

METRICS: Final[Mapping[str, MetricSpec]] = {row.name: row for row in _TABLE}
"""Every metric by its name."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """The last values of a histogram in order of time, at most 1000."""

    values: tuple[float, ...]

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    def quantile(self, fraction: float) -> float:
        """Return the value at *fraction* (0 to 1) of the sorted values; 0 without values."""
        if not self.values:
            return 0.0
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


MetricValue = int | float | HistogramSnapshot


class Metrics:
    """
    Values of the metrics of one storage.

    Recording is one append to a deque, which is atomic: no lock, from any thread.  Increments are
    folded now and then by taking them off and putting their sum back, so none is ever lost.
    """

    def __init__(self) -> None:
        self._deltas: dict[str, deque[int]] = {}
        self._histograms: dict[str, deque[float]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        for spec in METRICS.values():
            if spec.kind is MetricKind.COUNTER:
                self._deltas[spec.name] = deque()
            elif spec.kind is MetricKind.HISTOGRAM:
                self._histograms[spec.name] = deque(maxlen=HISTOGRAM_SIZE)

    def count(self, name: str, amount: int = 1) -> None:
        """Add *amount* to the counter *name*; raises `UsageError` if there is no such counter."""
        deltas = self._deltas.get(name)
        if deltas is None:
            raise _unknown(name, MetricKind.COUNTER)
        deltas.append(amount)
        if len(deltas) > _FOLD_AT:
            _fold(deltas)

    def record(self, name: str, value: float) -> None:
        """Add *value* to the histogram *name*; raises `UsageError` if there is none."""
        histogram = self._histograms.get(name)
        if histogram is None:
            raise _unknown(name, MetricKind.HISTOGRAM)
        histogram.append(value)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Let *read* tell the gauge *name* from now on; raises `UsageError` if there is none."""
        if name not in METRICS or METRICS[name].kind is not MetricKind.GAUGE:
            raise _unknown(name, MetricKind.GAUGE)
        self._gauges[name] = read

    def snapshot(self) -> dict[str, MetricValue]:
        """Return the present value of every metric that has one, by name."""
        values: dict[str, MetricValue] = {}
        for name, deltas in self._deltas.items():
            values[name] = sum(_copy(deltas))
        for name, histogram in self._histograms.items():
            values[name] = HistogramSnapshot(tuple(_copy(histogram)))
        for name, read in list(self._gauges.items()):
            values[name] = read()
        return values


def _unknown(name: str, kind: MetricKind) -> UsageError:
    return UsageError(f"{name!r} is no {kind.value} of statelog; see statelog.metrics.METRICS")


def _fold(deltas: deque[int]) -> None:
    taken = []
    try:
        while True:
            taken.append(deltas.popleft())
    except IndexError:
        deltas.append(sum(taken))


def _copy(values: Sequence[float] | deque[float]) -> list[float]:
    while True:
        try:
            return list(values)
        except RuntimeError:  # somebody appended meanwhile
            continue
