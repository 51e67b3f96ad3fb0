"""Report each micro-batch: log line, callback, metrics, and a warning of skew."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.snapshot_schedule import LogDistances
from statelog.metrics import Metrics, add_entries
from statelog.spark.driver.progress import (
    UploadFigures,
    repeated_by,
    slowest_phases,
    summed_catch_up,
    upload_figures,
)
from statelog.spark.query.progress import BatchProgress, LargeKey, LargeKeyGroup, Observers
from statelog.spark.worker.protocol import TaskAck
from statelog.spark.worker.row_counter import MIN_LARGE_ROWS, REPORTED_MAX
from statelog.spark.worker.stopwatch import Stopwatch
from statelog.store.requests import REPEATED_REQUESTS, RepeatedSince

# What a micro-batch cost, for its record in the checkpoint.

_AFTER: Final = ("commit", "deliver", "clean_up")


class CountsPuts(Protocol):
    """A location that counts the puts it had to repeat; `StateLocation` is one."""

    repeated_puts: int


class RecordedCost(NamedTuple):
    """The fields of these names of a `BatchRecord`."""

    durations_ms: dict[str, int]
    task_ms: dict[str, int]
    previous_ms: dict[str, int] | None
    retries: dict[str, int]
    objects: int
    object_bytes: int
    uploads: dict[str, int] | None


class RecordedCosts:
    """The cost of the micro-batches of one run."""

    def __init__(self, location: CountsPuts) -> None:
        self._location = location
        self._previous: dict[str, int] | None = None

    def before_commit(self, watch: Stopwatch, acks: Sequence[TaskAck]) -> RecordedCost:
        """Return what is known before the commit: about 100 bytes of JSON, in whole numbers."""
        slowest = _rounded(slowest_phases(acks))
        # Those of this commit are counted from now on, for the next record.
        repeated, self._location.repeated_puts = self._location.repeated_puts, 0
        return RecordedCost(
            durations_ms=_rounded(watch.milliseconds),
            task_ms={phase: ms for phase, ms in slowest.items() if ms},
            previous_ms=self._previous,
            retries={
                "tasks": sum(ack.place.attempt for ack in acks),
                "puts": repeated,
                "requests": repeated_by(acks),
            },
            objects=sum(ack.costs.objects for ack in acks),
            object_bytes=sum(ack.costs.object_bytes for ack in acks),
            uploads=_uploads(upload_figures(acks)),
        )

    def committed(self, watch: Stopwatch) -> None:
        """Keep the phases from the commit on, for the record of the next micro-batch."""
        self._previous = {
            phase: ms for phase, ms in _rounded(watch.milliseconds).items() if phase in _AFTER
        }


def _uploads(figures: UploadFigures) -> dict[str, int] | None:
    """Return what a record has of the uploads; None where there were none."""
    if not figures.upload_attempts:
        return None
    return {
        "uploads": figures.uploads,
        "attempts": figures.upload_attempts,
        "retries": figures.upload_retries,
        "bytes": figures.upload_bytes,
        "slowest_ms": round(figures.slowest_upload_ms),
        "wait_ms": round(figures.upload_wait_ms),
    }


def _rounded(milliseconds: dict[str, float]) -> dict[str, int]:
    return {phase: round(ms) for phase, ms in milliseconds.items()}


# Find the key groups and keys with most of the rows.

DOMINATING_SHARE = 0.5


def largest_groups(acks: Sequence[TaskAck]) -> list[LargeKeyGroup]:
    """Return the largest key groups of a micro-batch."""
    total = sum(ack.rows.count for ack in acks)
    top = sorted(
        (top_group for ack in acks for top_group in ack.rows.top_groups), key=lambda each: -each[1]
    )
    return [
        {"key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, rows in top[:REPORTED_MAX]
    ]


def largest_keys(acks: Sequence[TaskAck]) -> list[LargeKey]:
    """Return the largest keys of a micro-batch."""
    total = sum(ack.rows.count for ack in acks)
    top = sorted(
        (top_key for ack in acks for top_key in ack.rows.top_keys), key=lambda each: -each[2]
    )
    return [
        {"key": key, "key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, key, rows in top[:REPORTED_MAX]
    ]


def skew_warning(groups: Sequence[LargeKeyGroup], keys: Sequence[LargeKey]) -> str:
    """Return a warning of a dominating key or key group, or ""."""
    if not groups or groups[0]["rows"] < MIN_LARGE_ROWS:
        return ""
    if keys and keys[0]["share"] >= DOMINATING_SHARE:
        return (
            f"key {keys[0]['key']} has {keys[0]['share']:.0%} of the rows; the rows of one key "
            "always go to one task, so more tasks do not help"
        )
    if groups[0]["share"] >= DOMINATING_SHARE:
        return (
            f"key group {groups[0]['key_group']} has {groups[0]['share']:.0%} of the rows, "
            "which always go to one task"
        )
    return ""


_log = logging.getLogger("statelog.spark")


class CommittedBatch(NamedTuple):
    """
    The checkpoint of a micro-batch.

    Args:
        checkpoint_id: Its id.
        metadata_bytes: Size of its `_metadata`.
        distances: How much log each key group has, as of this checkpoint.
        figures: The figures of extensions, by the field of `BatchProgress`.
    """

    checkpoint_id: int
    metadata_bytes: int
    distances: LogDistances
    figures: Mapping[str, Any] = MappingProxyType({})


class BatchReports:
    """Reports the micro-batches of one query; *location* is for messages."""

    def __init__(self, observers: Observers, location: str = "") -> None:
        self._on_progress = observers.on_progress
        self._metrics = observers.metrics or Metrics()
        self._last_warning = ""
        self._repeated = RepeatedSince()
        self.current: BatchProgress | None = None
        """The figures of the micro-batch that runs; None before it ends, or if it was skipped."""

    def begin(self) -> None:
        """Forget the figures of the micro-batch before."""
        self.current = None

    def committed(
        self,
        record: BatchRecord,
        acks: Sequence[TaskAck],
        batch: CommittedBatch,
        watch: Stopwatch,
    ) -> None:
        """Report a micro-batch that was committed and delivered."""
        distances = batch.distances
        groups, keys = largest_groups(acks), largest_keys(acks)
        warning = skew_warning(groups, keys)
        if warning and warning.partition(" has ")[0] != self._last_warning:
            self._last_warning = warning.partition(" has ")[0]
            _log.warning("the load of batch %d is uneven: %s", record.batch_id, warning)
        late_rows = sum(ack.rows.late for ack in acks)
        self._metrics.count("num_late_records_dropped", late_rows)
        self._metrics.count("num_records_in", record.rows)
        for name, figure in batch.figures.items():
            self._metrics.count(f"num_{name}", figure)
        repeated = self._repeated.take()
        self._metrics.count(REPEATED_REQUESTS, repeated)
        for ack in acks:
            add_entries(self._metrics, ack.costs.uploads)
        self._metrics.gauge("state_entries", lambda: record.state_entries)
        self._emit(
            BatchProgress(
                batch_id=record.batch_id,
                checkpoint_id=batch.checkpoint_id,
                tasks=record.tasks,
                rows=record.rows,
                late_rows=late_rows,
                keys=record.keys,
                output_rows=record.output_rows,
                **batch.figures,
                state_entries=record.state_entries,
                delta_bytes=record.delta_bytes,
                output_bytes=record.output_bytes,
                objects=1 + sum(ack.costs.objects for ack in acks),
                object_bytes=batch.metadata_bytes + sum(ack.costs.object_bytes for ack in acks),
                **upload_figures(acks)._asdict(),
                repeated_requests=repeated + repeated_by(acks),
                log_bytes=distances.log_bytes,
                log_handles=distances.log_handles,
                snapshots=sum(ack.changes.snapshot is not None for ack in acks),
                snapshots_failed=sum(bool(ack.changes.snapshot_error) for ack in acks),
                largest_key_groups=groups,
                largest_keys=keys,
                catch_up=summed_catch_up(acks),
                milliseconds=watch.with_total(),
                task_milliseconds=slowest_phases(acks),
            )
        )

    def delivered_again(
        self, batch_id: int, checkpoint_id: int, record: BatchRecord, watch: Stopwatch
    ) -> None:
        """Report a micro-batch of an earlier run that is delivered again."""
        self._emit(
            BatchProgress(
                batch_id=batch_id,
                checkpoint_id=checkpoint_id,
                replayed=True,
                tasks=record.tasks,
                output_rows=record.output_rows,
                milliseconds=watch.with_total(),
            )
        )

    def _emit(self, progress: BatchProgress) -> None:
        _log.info("%s", progress)
        self.current = progress
        self._metrics.count("num_records_out", progress.output_rows)
        self._metrics.record("micro_batch_durations", progress.milliseconds["total"])
        if self._on_progress is not None:
            self._on_progress(progress)
