"""Report each micro-batch: log line, callback, metrics, and a warning of skew."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.snapshot_schedule import LogDistances
from statelog.metrics import add_entries
from statelog.spark.driver.progress import (
    repeated_by,
    slowest_phases,
    summed_catch_up,
    upload_figures,
)
from statelog.spark.driver.skew import largest_groups, largest_keys, skew_warning
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.protocol import TaskAck
from statelog.spark.worker.stopwatch import Stopwatch
from statelog.store.requests import REPEATED_REQUESTS, RepeatedSince

_log = logging.getLogger("statelog.spark")


class CommittedBatch(NamedTuple):
    """
    The checkpoint of a micro-batch.

    Args:
        checkpoint_id: Its id.
        metadata_bytes: Size of its `_metadata`.
        distances: How much log each key group has, as of this checkpoint.
    """

    checkpoint_id: int
    metadata_bytes: int
    distances: LogDistances


class BatchReports:
    """
    Reports the micro-batches of one query.

    Args:
        settings: The query's settings, with its callback and metrics.
    """

    def __init__(self, settings: QuerySettings) -> None:
        self._on_progress = settings.on_progress
        self._metrics = settings.metrics
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
        late_rows = sum(ack.late_rows for ack in acks)
        self._metrics.count("num_late_records_dropped", late_rows)
        self._metrics.count("num_records_in", record.rows)
        repeated = self._repeated.take()
        self._metrics.count(REPEATED_REQUESTS, repeated)
        for ack in acks:
            add_entries(self._metrics, ack.uploads)
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
                state_entries=record.state_entries,
                delta_bytes=record.delta_bytes,
                output_bytes=record.output_bytes,
                objects=1 + sum(ack.objects for ack in acks),
                object_bytes=batch.metadata_bytes + sum(ack.object_bytes for ack in acks),
                **upload_figures(acks)._asdict(),
                repeated_requests=repeated + repeated_by(acks),
                log_bytes=distances.log_bytes,
                log_handles=distances.log_handles,
                snapshots=sum(ack.snapshot is not None for ack in acks),
                snapshots_failed=sum(bool(ack.snapshot_error) for ack in acks),
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
