"""
Run the micro-batches of a query: each of them makes one checkpoint.

For each micro-batch: trigger a checkpoint, run the tasks, take their answers, commit, deliver.  The
commit is one put-if-absent of `chk-<id>/_metadata`; everything before it can be discarded, everything
after it can be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.task_count import TaskCount
from statelog.errors import StatelogError
from statelog.model import split_key_groups
from statelog.model.checkpoint import CompletedCheckpoint, TaskStateSnapshot
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.batch_cost import batch_cost, input_bytes
from statelog.spark.driver.batch_reports import BatchReports, CommittedBatch
from statelog.spark.driver.batch_times import BatchTimes, QueryTimes
from statelog.spark.driver.delivery import deliveries
from statelog.spark.driver.delivery.staged import OUTPUT_SECTION
from statelog.spark.driver.failures import cause_of, is_active
from statelog.spark.driver.no_data_batches import can_skip_batch
from statelog.spark.driver.restart import FirstBatch
from statelog.spark.driver.state_location import StateLocation, now_ms
from statelog.spark.query.delivery import Delivery, Sink
from statelog.spark.query.initial_state import with_initial_rows
from statelog.spark.query.keyed_frame import by_task
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.query import Query
from statelog.spark.query.writer_name import set_rewound
from statelog.spark.rows.late_rows import LateRows
from statelog.spark.worker.protocol import BatchContext, TaskAck, TaskRows, TaskSpec, TaskState
from statelog.spark.worker.stopwatch import Stopwatch

_MAX_INLINE_BYTES = 32 * 1024 * 1024
"""Most bytes that all tasks together send through the driver, for deltas and rows each."""

_INTERRUPTION = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a query that was stopped: "
    "java.lang.InterruptedException"
)
"""A text that Spark recognizes as an interruption.  It searches the text of an error for it, by an
expression that overflows the stack on the long text of a job that was really stopped."""


class _QueryStopped(Exception):  # noqa: N818
    """`StreamingQuery.stop` was called during a micro-batch."""


_STOP_MARKERS = (
    "java.lang.InterruptedException",
    "java.nio.channels.ClosedByInterruptException",
    "java.io.InterruptedIOException",
    "SPARK_JOB_CANCELLED",
)


def _is_interruption(error: Exception) -> bool:
    text = str(error)
    return any(marker in text for marker in _STOP_MARKERS)


class MicroBatchEngine:
    """
    Runs the micro-batches of one query; the function given to `foreachBatch`.

    Args:
        query: The query.
        sink: Takes the output frame and the batch id.
        query_times: Times and positions of micro-batches; None if they are unknown, as in tests.
    """

    def __init__(self, query: Query, sink: Sink, query_times: QueryTimes | None = None) -> None:
        self._query = query
        self._definition = query.definition
        self._query_times = query_times
        self._location = StateLocation(query)
        self._coordinator = self._location.coordinator
        self._deliveries = deliveries(query, sink, self._coordinator.section)
        self._delivery = self._deliveries[query.settings.delivery]
        self._task_count = TaskCount(query.task_bounds)
        self._reports = BatchReports(query.settings)
        self._has_run = False

    def open(self, query_id: str | None = None) -> None:
        """
        Check that this query can continue from the state in its location.

        See `StateLocation`.

        Args:
            query_id: Spark's id of the query, empty for a new query; None if unknown.
        """
        self._location.inspect(query_id)

    def next_due_ms(self) -> int | None:
        """
        Return when the next timer is due, as of the last commit.

        None if unknown.
        """
        return self._location.next_due_ms

    def has_run(self) -> bool:
        """Return whether this run has had a micro-batch."""
        return self._has_run

    def progress(self) -> BatchProgress | None:
        """
        Return the figures of the newest micro-batch.

        None while it runs, or if it had no effect.
        """
        return self._reports.current

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """
        Process one micro-batch.

        Spark calls it, and repeats a batch that did not finish.
        """
        try:
            self._process(frame, batch_id)
            fail_point("after-batch")
        except StatelogError:
            raise
        except Exception as error:
            if _is_interruption(error) and not is_active(frame):
                raise _QueryStopped(_INTERRUPTION) from None
            cause = cause_of(error, self._definition.processor, batch_id)
            if cause is not None:
                raise cause from None
            raise

    def _process(self, frame: DataFrame, batch_id: int) -> None:
        query_id, times = "", BatchTimes()
        if self._query_times is not None:
            query_id, times = self._query_times.query_id(), self._query_times.of(batch_id)
        self._has_run = True
        self._reports.begin()
        if not self._location.epoch:
            first = FirstBatch(query_id, batch_id, times, self._query_times)
            is_committed = self._location.take_over(first)
            if self._location.rewound is not None:
                set_rewound(frame, self._location.rewound)
            if is_committed:
                self._deliver_again(frame, batch_id)
                return
        record = self._location.record
        if record is not None:
            times = times.not_before(record.watermark_ms)
        if can_skip_batch(self._definition, record, times):
            return
        watch = Stopwatch()
        size = self._input_bytes(frame, times)
        spec = self._spec(batch_id, times, self._task_count.choose(size))
        self._coordinator.trigger(spec.checkpoint_id, spec.ranges)
        try:
            partitioned = self._partitioned(frame, spec)
            watch.lap("plan")
            acks = self._delivery.run(partitioned, spec)
            watch.lap("run")
            if times.is_idle and not any(map(_has_effect, acks)):
                self._location.snapshots.aborted(spec.snapshots)
                self._coordinator.decline(spec.checkpoint_id, "the micro-batch had no effect")
                self._location.next_due_ms = min(ack.next_due_ms for ack in acks)
                return
            completed, record = self._commit(spec, query_id, times, acks)
            watch.lap("commit")
        except BaseException:
            self._location.snapshots.aborted(spec.snapshots)
            # A fenced coordinator rejects this call too; the first error is the one to raise.
            with contextlib.suppress(StatelogError):
                self._coordinator.decline(spec.checkpoint_id, "the micro-batch failed")
            raise
        if not times.is_idle:  # the cost of a no-data batch does not predict one with rows
            self._task_count.ran(batch_cost(acks, size))
        self._location.snapshots.committed(spec.snapshots, acks, now_ms())
        self._location.advance(completed, record)
        self._delivery.deliver(frame, record, acks)
        watch.lap("deliver")
        self._location.clean_up()
        watch.lap("clean_up")
        self._reports.committed(
            record,
            acks,
            CommittedBatch(
                spec.checkpoint_id,
                self._coordinator.committed_bytes,
                self._location.snapshots.distances,
            ),
            watch,
        )

    def _input_bytes(self, frame: DataFrame, times: BatchTimes) -> int | None:
        """Return the size of the input where it is known and needed."""
        definition, bounds = self._definition, self._query.task_bounds
        has_initial_rows = self._location.base is None and definition.initial is not None
        if bounds.least == bounds.most or has_initial_rows:
            return None
        return 0 if times.is_idle and definition.plan.is_stateless else input_bytes(frame)

    def _spec(self, batch_id: int, times: BatchTimes, tasks: int) -> TaskSpec:
        definition, settings, location = self._definition, self._query.settings, self._location
        ranges = split_key_groups(definition.max_parallelism, tasks)
        starts_empty = location.base is None and definition.initial is not None
        initial = definition.initial.task_layout if definition.initial and starts_empty else None
        has_time = definition.time_mode != "none"
        return TaskSpec(
            context=BatchContext(
                definition.processor,
                batch_id,
                definition.time_mode,
                times.now_ms if has_time else -1,
                times.watermark_ms,
            ),
            rows=TaskRows(
                layout=definition.layout,
                row_format=definition.row_format,
                output=definition.arrow_output,
                input_bytes=settings.backend.input_bytes,
                initial=initial,
                late=self._late_rows(times, has_initial_rows=initial is not None),
                event_time_output=definition.event_time_output,
                is_read=not (times.is_idle and definition.plan.is_stateless),
            ),
            state=TaskState(
                location=self._query.location,
                store_options=settings.store_options,
                fsync=settings.fsync,
                epoch=location.epoch,
                schema=location.schema.to_json(),
                backend=settings.backend,
            ),
            checkpoint_id=location.next_checkpoint_id(batch_id),
            base_id=-1 if location.base is None else location.base.checkpoint_id,
            committed=location.committed_handles(),
            ranges=ranges,
            # No commit for a snapshot alone, and no retry of a failing store in each no-data batch.
            snapshots={} if times.is_idle else location.snapshots.choose(ranges, now_ms()),
            inline_bytes=min(settings.inline_bytes, _MAX_INLINE_BYTES // tasks),
            staged=self._delivery.is_staged,
        )

    def _late_rows(self, times: BatchTimes, *, has_initial_rows: bool) -> LateRows | None:
        column = self._definition.event_time
        if column is None:
            return None
        # With initial state a flag is in front of the input's columns.
        return LateRows(column + has_initial_rows, times.late_ms)

    def _partitioned(self, frame: DataFrame, spec: TaskSpec) -> DataFrame:
        """Return the input with one partition for each task."""
        definition, tasks = self._definition, len(spec.ranges)
        if not spec.rows.is_read:
            return frame.sparkSession.range(0, tasks, 1, tasks)
        if spec.rows.initial is not None and definition.initial is not None:
            frame = with_initial_rows(frame, definition.initial)
        if tasks == 1:  # one task gets all rows, without a shuffle
            return frame.coalesce(1)
        return by_task(frame, tasks, definition.max_parallelism)

    def _commit(
        self, spec: TaskSpec, query_id: str, times: BatchTimes, acks: Sequence[TaskAck]
    ) -> tuple[CompletedCheckpoint, BatchRecord]:
        for ack in acks:
            self._coordinator.acknowledge(
                spec.checkpoint_id,
                TaskStateSnapshot(ack.key_group_range, ack.log, ack.snapshot),
            )
        rows = self._delivery.committed_rows(acks)
        record = BatchRecord(
            operator_id=self._location.schema.operator_id,
            schema=spec.state.schema,
            query_id=query_id,
            batch_id=spec.context.batch_id,
            tasks=len(spec.ranges),
            delivery=self._query.settings.delivery.value,
            time_mode=spec.context.time_mode,
            now_ms=spec.context.now_ms,
            rows=sum(ack.rows for ack in acks),
            keys=sum(ack.keys for ack in acks),
            output_rows=sum(ack.output_rows for ack in acks),
            state_entries=sum(ack.entries for ack in acks),
            delta_bytes=sum(ack.delta_bytes for ack in acks),
            output_bytes=len(rows.section or b"") + sum(one.size_bytes for one in rows.files),
            output_files=[handle.to_json() for handle in rows.files],
            went_back_to=self._location.went_back_to,
            rewound=self._location.rewound,
            watermark_ms=times.watermark_ms,
            next_due_ms=min(ack.next_due_ms for ack in acks),
            position=times.position,
            position_before=times.position_before,
            source_logs=list(times.source_logs),
            source_folders=list(times.source_folders),
        )
        completed = self._coordinator.complete(
            spec.checkpoint_id,
            properties=record.to_properties(),
            sections={} if rows.section is None else {OUTPUT_SECTION: rows.section},
        )
        return completed, record

    def _deliver_again(self, frame: DataFrame, batch_id: int) -> None:
        """Deliver a committed batch again, with its own delivery."""
        watch = Stopwatch()
        base, record = self._location.base, self._location.record
        if base is None or record is None:
            raise StatelogError(f"batch {batch_id} cannot be replayed without a checkpoint")
        plan = self._definition.plan
        if plan.has_watermark or not plan.is_stateless:
            # The state of Spark's own operators advances only when the rows are evaluated.
            frame.write.format("noop").mode("append").save()
        self._deliveries[Delivery(record.delivery)].deliver_again(frame, record, base)
        watch.lap("deliver")
        self._reports.delivered_again(batch_id, base.checkpoint_id, record, watch)


def _has_effect(ack: TaskAck) -> bool:
    """Return whether a task read rows, changed state or yielded output."""
    wrote = ack.log is not None or ack.snapshot is not None
    return wrote or ack.rows > 0 or ack.output_rows > 0
