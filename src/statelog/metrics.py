"""
All metrics of statelog in one table, and a registry that holds their values.

Names and meanings are Flink's, in Python's spelling; the table says which is which.  Those without
a name of Flink's are ours: how long each phase takes, and how old what waits is.
Source: Flink, ChangelogStorageMetricGroup, ChangelogMaterializationMetricGroup,
ChangelogStateBackendMetricGroup.  Deviations are said at the metric.
"""

from __future__ import annotations

import enum
import threading  # noqa: TID251 - only a lock, which ends with its `with`
from collections import deque
from collections.abc import Callable, Mapping
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
    """One row of the table: our name, Flink's name ("" for none), kind, unit and meaning."""

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
        "Upload attempts that raised, whatever the error; unlike in Flink one in the close of the "
        "file counts too. An attempt that is only late is a time-out, not a failure.",
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
        "number_of_upload_timeouts",
        "",
        MetricKind.COUNTER,
        "attempts",
        "Upload attempts that took longer than the time-out; they may still succeed.",
    ),
    MetricSpec(
        "number_of_discarded_uploads",
        "",
        MetricKind.COUNTER,
        "attempts",
        "Upload attempts that succeeded when their upload had ended; their files are deleted.",
    ),
    MetricSpec(
        "upload_queue_age",
        "",
        MetricKind.GAUGE,
        "nanoseconds",
        "Age of the oldest task that waits to be put into a file; 0 without one.",
    ),
    MetricSpec(
        "in_flight_bytes",
        "",
        MetricKind.GAUGE,
        "bytes",
        "Bytes queued, uploading, or held by attempts that hang, of all writers.",
    ),
    MetricSpec(
        "backpressured_tasks",
        "",
        MetricKind.GAUGE,
        "tasks",
        "Tasks whose callers wait for upload capacity.",
    ),
    MetricSpec(
        "upload_queue_waits",
        "",
        MetricKind.HISTOGRAM,
        "nanoseconds",
        "Phase: from the first task of a file to the start of its upload.",
    ),
    MetricSpec(
        "upload_thread_waits",
        "",
        MetricKind.HISTOGRAM,
        "nanoseconds",
        "Phase: from the start of an attempt until it writes: the wait for a thread, and encoding.",
    ),
    MetricSpec(
        "encode_durations",
        "",
        MetricKind.HISTOGRAM,
        "nanoseconds",
        "Phase: turning the tasks of an upload into bytes, once for all its attempts.",
    ),
    MetricSpec(
        "put_durations",
        "",
        MetricKind.HISTOGRAM,
        "nanoseconds",
        "Phase: the store's put of a file; successful ones only.",
    ),
    MetricSpec(
        "upload_durations",
        "",
        MetricKind.HISTOGRAM,
        "nanoseconds",
        "From the start of an upload to its success, all attempts and delays included.",
    ),
    MetricSpec(
        "persist_durations",
        "",
        MetricKind.HISTOGRAM,
        "nanoseconds",
        "From the call of `persist` to its result; successful ones only.",
    ),
    MetricSpec(
        "local_recovery_hits",
        "",
        MetricKind.COUNTER,
        "files",
        "Files that a restore read from local copies.",
    ),
    MetricSpec(
        "local_recovery_misses",
        "",
        MetricKind.COUNTER,
        "files",
        "Files that a restore read from the store although it was given a local copy of "
        "its handle.",
    ),
    MetricSpec(
        "local_recovery_bytes",
        "",
        MetricKind.COUNTER,
        "bytes",
        "Payload bytes of the files that a restore read from local copies.",
    ),
    MetricSpec(
        "local_copies_written",
        "",
        MetricKind.COUNTER,
        "files",
        "Local copies that were complete in time.",
    ),
    MetricSpec(
        "local_copy_errors",
        "",
        MetricKind.COUNTER,
        "files",
        "Local copies that failed, came too late, or were found damaged; no upload and "
        "no restore fails by it.",
    ),
    MetricSpec(
        "download_cache_hits",
        "",
        MetricKind.COUNTER,
        "files",
        "Reads of a file that was in the download cache.",
    ),
    MetricSpec(
        "download_cache_misses",
        "",
        MetricKind.COUNTER,
        "files",
        "Reads for which the store was asked.",
    ),
    MetricSpec(
        "download_cache_bytes",
        "",
        MetricKind.GAUGE,
        "bytes",
        "Bytes of downloaded files on disk, files being written included.",
    ),
    MetricSpec(
        "download_cache_errors",
        "",
        MetricKind.COUNTER,
        "files",
        "Cached files that were lost, damaged, or could not be written.",
    ),
    MetricSpec(
        "download_cache_evictions",
        "",
        MetricKind.COUNTER,
        "files",
        "Cached files that made room for others.",
    ),
    MetricSpec(
        "download_cache_idle_removals",
        "",
        MetricKind.COUNTER,
        "files",
        "Cached files removed because nobody had used them for the idle time-out.",
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
        "log_bytes_behind_snapshots",
        "",
        MetricKind.GAUGE,
        "bytes",
        "Log that the last checkpoint needs because no snapshot covers it.",
    ),
    MetricSpec(
        "log_handles_behind_snapshots",
        "",
        MetricKind.GAUGE,
        "pieces",
        "Number of pieces of that log.",
    ),
    MetricSpec(
        "num_late_records_dropped",
        "numLateRecordsDropped",
        MetricKind.COUNTER,
        "rows",
        "Input rows that a stateful query dropped because they came later than the watermark.",
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
    """
    The last values of a histogram in order of time, at most 1000.

    Args:
        values: Those values.
        total_count: How many values there ever were.
        total_sum: Their sum.
    """

    values: tuple[float, ...]
    total_count: int = 0
    total_sum: float = 0.0

    @property
    def count(self) -> int:
        """How many values are kept."""
        return len(self.values)

    def quantile(self, fraction: float) -> float:
        """Return the value at *fraction* (0 to 1) of the sorted values; 0 without values."""
        if not self.values:
            return 0.0
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


MetricValue = int | float | HistogramSnapshot


class _Sum:
    """
    A sum that many threads add to without a lock, because appending to a deque is atomic.

    Now and then a thread that adds takes the summands off and puts their sum back, and so does
    each that reads, under a lock: a reader must not come between the two.
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
        # This lock's `with` is one step for a signal handler that raises; it is held for
        # microseconds, and only by those who fold.
        with self._folding:
            return self._fold()

    def _fold(self) -> float:
        """Put the sum in the place of the summands.  Called under the lock."""
        total: float = 0
        try:
            for _ in range(len(self._summands)):
                total += self._summands.popleft()
            return total
        finally:
            self._summands.append(total)


class Metrics:
    """
    Values of the metrics of one storage.

    Recording is a few appends to deques, which are atomic; any thread may record.
    """

    def __init__(self) -> None:
        self._counters: dict[str, _Sum] = {}
        self._histograms: dict[str, deque[float]] = {}
        self._totals: dict[str, tuple[_Sum, _Sum]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        for spec in METRICS.values():
            if spec.kind is MetricKind.COUNTER:
                self._counters[spec.name] = _Sum()
            elif spec.kind is MetricKind.HISTOGRAM:
                self._histograms[spec.name] = deque(maxlen=HISTOGRAM_SIZE)
                self._totals[spec.name] = _Sum(), _Sum()

    def count(self, name: str, amount: int = 1) -> None:
        """Add *amount* to the counter *name*; raises `UsageError` if there is no such counter."""
        counter = self._counters.get(name)
        if counter is None:
            raise _unknown(name, MetricKind.COUNTER)
        counter.add(amount)

    def record(self, name: str, value: float) -> None:
        """Add *value* to the histogram *name*; raises `UsageError` if there is none."""
        histogram = self._histograms.get(name)
        if histogram is None:
            raise _unknown(name, MetricKind.HISTOGRAM)
        histogram.append(value)
        number, total = self._totals[name]
        number.add(1)
        total.add(value)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Let *read* tell the gauge *name* from now on; raises `UsageError` if there is none."""
        if name not in METRICS or METRICS[name].kind is not MetricKind.GAUGE:
            raise _unknown(name, MetricKind.GAUGE)
        self._gauges[name] = read

    def value(self, name: str) -> MetricValue | None:
        """Return the present value of a metric; None for a gauge that nobody tells."""
        if (counter := self._counters.get(name)) is not None:
            return counter.value()
        if (histogram := self._histograms.get(name)) is not None:
            number, total = self._totals[name]
            return HistogramSnapshot(tuple(_copy(histogram)), int(number.value()), total.value())
        read = self._gauges.get(name)
        return None if read is None else read()

    def snapshot(self) -> dict[str, MetricValue]:
        """Return the present value of every metric that has one, by name."""
        values = {name: self.value(name) for name in METRICS}
        return {name: value for name, value in values.items() if value is not None}


def _unknown(name: str, kind: MetricKind) -> UsageError:
    return UsageError(f"{name!r} is no {kind.value} of statelog; see statelog.metrics.METRICS")


def _copy(values: deque[float]) -> list[float]:
    while True:
        try:
            return list(values)
        except RuntimeError:  # somebody appended meanwhile
            continue
