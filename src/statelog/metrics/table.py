"""
Declare all of statelog's metrics, and all figures of a micro-batch.

A metric with a name of Flink's has Flink's meaning, and its name here is that name in Python's
spelling.  The others are statelog's own: durations of phases, ages of queues, and counts.
Source: Flink, ChangelogStorageMetricGroup, ChangelogMaterializationMetricGroup,
ChangelogStateBackendMetricGroup.  Deviations are described at the metric.

A figure is declared by a field of `BatchFigures`, or by an extension, see
`DriverExtension.figures`.  A task counts it under its name, see `TaskAck.figures`, and the driver
combines the counts by the kind of the figure.  The result is in the record of the checkpoint, in
`BatchProgress`, in Spark's progress (there its name is in camelCase), in the report, and where the
figure has a metric, in what is exported.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Final, TypeAlias

Number: TypeAlias = int | float
FigureValue: TypeAlias = Number | Mapping[str, Number]
"""A number, or a number for each of several names."""

_NS_PER_MS: Final = 1_000_000


class FigureKind(enum.Enum):
    """How the values from tasks and operators are combined for a micro-batch."""

    SUM = "sum"
    MOST = "most"
    FIRST = "first"
    """The sum over the tasks of the first operator."""
    LAST = "last"
    """The sum over the tasks of the last operator."""
    DRIVER = "driver"
    """The driver sets it; tasks do not count it."""


def _whole(values: Sequence[float]) -> int:
    return int(sum(values))


@dataclass(frozen=True, slots=True)
class Figure:
    """
    The declaration of a figure.

    Args:
        unit: Of its numbers.
        text: What it means.
        kind: How it is combined.
        counter: The metric that it is added to; "" for none.
        gauge: The metric that shows its last value; "" for none.
        flink_name: Of that metric.
        recorded: The metric of the tasks' uploads that it is computed from; "" for none.
        fold: Computes it from the values of that metric.
        parts: Names that it always has, where it has several numbers.
    """

    unit: str
    text: str
    kind: FigureKind = FigureKind.SUM
    counter: str = ""
    gauge: str = ""
    flink_name: str = ""
    recorded: str = ""
    fold: Callable[[Sequence[float]], Number] = _whole
    parts: tuple[str, ...] = ()

    def number(self) -> int:
        """Return the dataclass field for a figure with a single number."""
        return field(default=0, metadata={"figure": self})

    def numbers(self) -> dict[str, int]:
        """Return the dataclass field for a figure that has a number per name."""
        return field(default_factory=self.no_numbers, metadata={"figure": self})

    def no_numbers(self) -> dict[str, int]:
        """Return the empty value of a figure that has a number per name."""
        return dict.fromkeys(self.parts, 0)


def _repeated(attempts: Sequence[float]) -> int:
    return int(sum(attempts)) - len(attempts)


def _longest_ms(nanoseconds: Sequence[float]) -> float:
    return max(nanoseconds) / _NS_PER_MS


def _sum_ms(nanoseconds: Sequence[float]) -> float:
    return sum(nanoseconds) / _NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """The figures of a micro-batch."""

    tasks: int = Figure("tasks", "Number of tasks.", FigureKind.DRIVER).number()
    rows: int = Figure(
        "rows",
        "Input rows of the first operator of a stateful query, without late rows.",
        FigureKind.FIRST,
        counter="num_records_in",
        flink_name="numRecordsIn",
    ).number()
    late_rows: int = Figure(
        "rows",
        "Input rows that a stateful query dropped because their event time is behind the watermark.",
        counter="num_late_records_dropped",
        flink_name="numLateRecordsDropped",
    ).number()
    keys: int = Figure("keys", "Keys of the input rows.").number()
    output_rows: int = Figure(
        "rows",
        "Rows that a stateful query delivered; rows delivered again after a restart count again.",
        FigureKind.LAST,
        counter="num_records_out",
        flink_name="numRecordsOut",
    ).number()
    state_entries: int = Figure(
        "entries",
        "Entries of all state variables of a stateful query before the micro-batch.",
        gauge="state_entries",
    ).number()
    delta_bytes: int = Figure("bytes", "Bytes of the changes.").number()
    output_bytes: int = Figure("bytes", "Bytes of the staged rows.", FigureKind.DRIVER).number()
    objects: int = Figure("objects", "Objects written to the store, including the commit.").number()
    object_bytes: int = Figure("bytes", "Size of the objects written.").number()
    uploads: int = Figure(
        "uploads",
        "Uploads of the tasks that succeeded: files of changes, snapshots, staged rows and attachments.",
        recorded="total_attempts_per_upload",
        fold=len,
    ).number()
    upload_bytes: int = Figure(
        "bytes", "Bytes of these uploads before compression.", recorded="upload_sizes"
    ).number()
    upload_attempts: int = Figure(
        "attempts",
        "Attempts of all uploads.",
        recorded="number_of_upload_requests",
    ).number()
    upload_failures: int = Figure(
        "attempts",
        "Attempts that raised an error.",
        recorded="number_of_upload_failures",
    ).number()
    upload_timeouts: int = Figure(
        "attempts",
        "Attempts that took longer than the time-out.",
        recorded="number_of_upload_timeouts",
    ).number()
    upload_retries: int = Figure(
        "attempts",
        "Attempts after the first one of uploads that succeeded.",
        recorded="total_attempts_per_upload",
        fold=_repeated,
    ).number()
    slowest_upload_ms: float = Figure(
        "milliseconds",
        "The longest upload, with all its attempts.",
        FigureKind.MOST,
        recorded="upload_durations",
        fold=_longest_ms,
    ).number()
    upload_wait_ms: float = Figure(
        "milliseconds",
        "Total time that tasks waited because too many bytes were in flight.",
        recorded="changelog_busy_time",
        fold=_sum_ms,
    ).number()
    repeated_requests: int = Figure(
        "requests",
        "Requests of the tasks and the driver to the store that failed and were retried, within "
        "upload attempts and for claims, commits and reads.",
        recorded="repeated_requests",
    ).number()
    log_bytes: int = Figure(
        "bytes", "Bytes of changes in the log after the snapshots.", FigureKind.DRIVER
    ).number()
    log_handles: int = Figure("handles", "Handles of that log.", FigureKind.DRIVER).number()
    snapshots: int = Figure("snapshots", "Snapshots that were written.").number()
    snapshots_failed: int = Figure("snapshots", "Snapshots that failed.").number()
    catch_up: Mapping[str, int] = Figure(
        "",
        "How tasks updated their state to the checkpoint: key groups folded from memory, change sets "
        "replayed, snapshots restored, key groups read from local files, blocks of key groups moved "
        "into columns.",
        parts=("folded", "replayed", "restored", "local", "compacted"),
    ).numbers()
    milliseconds: Mapping[str, float] = Figure(
        "milliseconds", "Duration by phase on the driver.", FigureKind.DRIVER
    ).numbers()
    task_milliseconds: Mapping[str, float] = Figure(
        "milliseconds",
        "Duration by phase, of the slowest task in each; `input` includes `wait`, the wait for rows.",
        FigureKind.MOST,
    ).numbers()

    extras: Mapping[str, Number] = field(default_factory=dict)
    """The figures of extensions by name; each is a number."""

    def stored(self) -> dict[str, int | dict[str, int]]:
        """Return the figures other than 0, as whole numbers."""
        whole = {name: _rounded(value) for name, value in asdict(self).items()}
        return {name: value for name, value in whole.items() if value}


def _rounded(value: FigureValue) -> int | dict[str, int]:
    if not isinstance(value, Mapping):
        return round(value)
    parts = {name: round(number) for name, number in value.items()}
    return {name: number for name, number in parts.items() if number}


FIGURES: Final[Mapping[str, Figure]] = {
    figure.name: figure.metadata["figure"] for figure in fields(BatchFigures) if figure.metadata
}
"""The declarations of all figures by name, without the figures of extensions."""


NO_FIGURES: Final[Mapping[str, Figure]] = {}


def camel_case(name: str) -> str:
    """Convert a name to Java's spelling."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


class MetricKind(enum.Enum):
    """How a metric treats the values added to it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric: our name, Flink's name ("" for none), kind, unit and meaning."""

    name: str
    flink_name: str
    kind: MetricKind
    unit: str
    description: str


def metrics_of(figures: Mapping[str, Figure]) -> Iterator[MetricSpec]:
    """Yield the metrics that record figures."""
    for figure in figures.values():
        for kind, name in (
            (MetricKind.COUNTER, figure.counter),
            (MetricKind.GAUGE, figure.gauge),
        ):
            if name:
                yield MetricSpec(name, figure.flink_name, kind, figure.unit, figure.text)


_STORAGE: Final = "ChangelogStorage."
_MATERIALIZATION: Final = "ChangelogMaterialization."
_BACKEND: Final = "ChangelogStateBackend."


def _row(
    kind: MetricKind, name: str, unit: str, text: str, group: str = "", flink_name: str = ""
) -> MetricSpec:
    """Declare a metric; in a Flink *group*, Flink's name is ours in camelCase."""
    return MetricSpec(name, f"{group}{camel_case(name)}" if group else flink_name, kind, unit, text)


_counter = partial(_row, MetricKind.COUNTER)
_gauge = partial(_row, MetricKind.GAUGE)
_histogram = partial(_row, MetricKind.HISTOGRAM)

_TABLE: Final = (
    _counter("number_of_upload_requests", "attempts", "Upload attempts started.", _STORAGE),
    _counter(
        "number_of_upload_failures",
        "attempts",
        "Upload attempts that raised an error of any kind; unlike in Flink, an error in the "
        "close of the file counts too. A late attempt is a time-out, not a failure.",
        _STORAGE,
    ),
    _histogram(
        "attempts_per_upload",
        "attempts",
        "Number of the attempt that won; successful uploads only.",
        _STORAGE,
    ),
    _histogram(
        "total_attempts_per_upload",
        "attempts",
        "Attempts made until the upload succeeded.",
        _STORAGE,
    ),
    _histogram("upload_batch_sizes", "tasks", "Tasks written to one file.", _STORAGE),
    _histogram(
        "upload_sizes",
        "bytes",
        "Payload bytes per file, before compression; successful attempts only.",
        _STORAGE,
    ),
    _histogram(
        "upload_latencies",
        "nanoseconds",
        "Duration of successful attempts.",
        flink_name="ChangelogStorage.uploadLatenciesNanos",
    ),
    _gauge("upload_queue_size", "tasks", "Tasks that wait to be written to a file.", _STORAGE),
    _counter(
        "number_of_upload_timeouts",
        "attempts",
        "Upload attempts that took longer than the time-out; they may still succeed.",
    ),
    _counter(
        "repeated_requests",
        "requests",
        "Requests to stores that failed, or returned wrong bytes, and were retried.",
    ),
    _counter(
        "number_of_discarded_uploads",
        "attempts",
        "Upload attempts that succeeded after their upload had ended; their files are deleted.",
    ),
    _gauge(
        "upload_queue_age",
        "nanoseconds",
        "Age of the oldest task that waits to be written to a file; 0 if there is none.",
    ),
    _gauge(
        "in_flight_bytes",
        "bytes",
        "Bytes of all writers that are queued, uploading, or held by attempts that hang.",
    ),
    _gauge("backpressured_tasks", "tasks", "Tasks whose callers wait for upload capacity."),
    _histogram(
        "upload_queue_waits",
        "nanoseconds",
        "Phase: from the first task of a file to the start of its upload.",
    ),
    _histogram(
        "upload_thread_waits",
        "nanoseconds",
        "Phase: from the start of an attempt to its put: the wait for a thread, and encoding.",
    ),
    _histogram(
        "encode_durations",
        "nanoseconds",
        "Phase: turning the tasks of an upload into bytes, once for all its attempts.",
    ),
    _histogram(
        "put_durations", "nanoseconds", "Phase: the store's put of a file; successful puts only."
    ),
    _histogram(
        "upload_durations",
        "nanoseconds",
        "From the start of an upload to its success, including all attempts and delays.",
    ),
    _histogram(
        "persist_durations",
        "nanoseconds",
        "From the call of `persist` to its result; successful calls only.",
    ),
    _counter("local_recovery_hits", "files", "Files that a restore read from local copies."),
    _counter(
        "local_recovery_misses",
        "files",
        "Files that a restore read from the store although it had a local copy of the handle.",
    ),
    _counter(
        "local_recovery_bytes",
        "bytes",
        "Payload bytes of the files that a restore read from local copies.",
    ),
    _counter("local_copies_written", "files", "Local copies that were complete in time."),
    _counter(
        "local_copy_errors",
        "files",
        "Local copies that failed, were written too late, or are damaged; uploads and restores "
        "do not fail because of it.",
    ),
    _counter("download_cache_hits", "files", "Reads of a file that was in the download cache."),
    _counter("download_cache_misses", "files", "Reads that went to the store."),
    _gauge(
        "download_cache_bytes",
        "bytes",
        "Bytes of downloaded files on disk, including files being written.",
    ),
    _counter(
        "download_cache_errors",
        "files",
        "Cached files that were lost, damaged, or could not be written.",
    ),
    _counter(
        "download_cache_evictions",
        "files",
        "Cached files that were removed because the cache was full.",
    ),
    _counter(
        "download_cache_idle_removals",
        "files",
        "Cached files removed because they were not used for the idle time-out.",
    ),
    _counter(
        "started_materialization",
        "runs",
        "Materializations started, including skipped ones.",
        _MATERIALIZATION,
    ),
    _counter(
        "completed_materialization",
        "runs",
        "Materializations completed, including skipped ones.",
        _MATERIALIZATION,
    ),
    _counter("failed_materialization", "runs", "Materializations that failed.", _MATERIALIZATION),
    _gauge(
        "last_duration_of_materialization",
        "milliseconds",
        "Duration of the last materialization; -1 before the first.",
        _MATERIALIZATION,
    ),
    _gauge(
        "last_full_size_of_materialization",
        "bytes",
        "Full size of the materialized part of the last checkpoint.",
        _BACKEND,
    ),
    _gauge(
        "last_inc_size_of_materialization",
        "bytes",
        "New bytes in the materialized part of the last checkpoint.",
        _BACKEND,
    ),
    _gauge(
        "last_full_size_of_non_materialization",
        "bytes",
        "Full size of the log part of the last checkpoint.",
        _BACKEND,
    ),
    _gauge(
        "last_inc_size_of_non_materialization",
        "bytes",
        "New bytes in the log part of the last checkpoint; each set counts once.",
        _BACKEND,
    ),
    _gauge(
        "log_bytes_behind_snapshots",
        "bytes",
        "Log that the last checkpoint needs because no snapshot covers it.",
    ),
    _gauge("log_handles_behind_snapshots", "pieces", "Number of pieces of that log."),
    _histogram(
        "micro_batch_durations",
        "milliseconds",
        "Duration of a micro-batch on the driver, from its input to its clean-up.",
    ),
    _counter(
        "changelog_busy_time",
        "nanoseconds",
        "Time that callers waited for upload capacity; Flink reports it per second, in ms.",
        flink_name="changelogBusyTimeMsPerSecond",
    ),
    *metrics_of(FIGURES),
)

METRICS: Final[Mapping[str, MetricSpec]] = {row.name: row for row in _TABLE}
"""Every metric by its name; extensions declare more, see `Metrics.declare`."""
