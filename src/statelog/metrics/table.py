"""
All metrics of statelog, in one table.

A metric with a name of Flink's has Flink's meaning, and its name here is that name in Python's
spelling.  The others are statelog's own: durations of phases, ages of queues, and counts.
Source: Flink, ChangelogStorageMetricGroup, ChangelogMaterializationMetricGroup,
ChangelogStateBackendMetricGroup.  Deviations are described at the metric.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


class MetricKind(enum.Enum):
    """How a metric treats its values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: our name, Flink's name ("" for none), kind, unit and meaning."""

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
        "Upload attempts that raised an error of any kind; unlike in Flink, an error in the close "
        "of the file counts too. A late attempt is a time-out, not a failure.",
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
        "repeated_requests",
        "",
        MetricKind.COUNTER,
        "requests",
        "Requests to stores that failed, or returned wrong bytes, and were sent again.",
    ),
    MetricSpec(
        "number_of_discarded_uploads",
        "",
        MetricKind.COUNTER,
        "attempts",
        "Upload attempts that succeeded after their upload had ended; their files are deleted.",
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
        "Bytes of all writers that are queued, uploading, or held by attempts that hang.",
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
        "Phase: from the start of an attempt to its put: the wait for a thread, and encoding.",
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
        "the handle.",
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
        "Local copies that failed, were written too late, or are damaged; uploads and restores "
        "do not fail because of it.",
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
        "Reads that went to the store.",
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
        "Cached files that were removed because the cache was full.",
    ),
    MetricSpec(
        "download_cache_idle_removals",
        "",
        MetricKind.COUNTER,
        "files",
        "Cached files removed because they were not used for the idle time-out.",
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
        "num_records_in",
        "numRecordsIn",
        MetricKind.COUNTER,
        "rows",
        "Input rows of the micro-batches that a stateful query committed, without late ones.",
    ),
    MetricSpec(
        "num_records_out",
        "numRecordsOut",
        MetricKind.COUNTER,
        "rows",
        "Rows that a stateful query delivered; rows delivered again after a restart count again.",
    ),
    MetricSpec(
        "micro_batch_durations",
        "",
        MetricKind.HISTOGRAM,
        "milliseconds",
        "Duration of a micro-batch on the driver, from its input to its clean-up.",
    ),
    MetricSpec(
        "state_entries",
        "",
        MetricKind.GAUGE,
        "entries",
        "Entries of all state variables of a stateful query before its last micro-batch.",
    ),
    MetricSpec(
        "num_late_records_dropped",
        "numLateRecordsDropped",
        MetricKind.COUNTER,
        "rows",
        "Input rows that a stateful query dropped because their event time is behind the watermark.",
    ),
    MetricSpec(
        "num_failed_keys",
        "",
        MetricKind.COUNTER,
        "keys",
        "Keys whose processing failed in a stateful query and was left out, see the setting `onError`.",
    ),
    MetricSpec(
        "num_dead_letters",
        "",
        MetricKind.COUNTER,
        "calls",
        "Calls of a processor that failed and are kept as dead letters.",
    ),
    MetricSpec(
        "num_side_output_rows",
        "",
        MetricKind.COUNTER,
        "rows",
        "Rows that the processors of a stateful query emitted to side outputs.",
    ),
    MetricSpec(
        "changelog_busy_time",
        "changelogBusyTimeMsPerSecond",
        MetricKind.COUNTER,
        "nanoseconds",
        "Time that callers waited for upload capacity; Flink reports it per second, in ms.",
    ),
)

METRICS: Final[Mapping[str, MetricSpec]] = {row.name: row for row in _TABLE}
"""Every metric by its name."""
