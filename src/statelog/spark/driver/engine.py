"""
The driver's side: one micro-batch in, one checkpoint out.

For each batch: trigger a checkpoint, run the tasks, take their answers, commit, deliver.  The
commit is one put-if-absent of `chk-<id>/_metadata`; everything before it can be thrown away,
everything after it can be repeated.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.task_count import TaskBounds, TaskCount
from statelog.errors import StatelogError
from statelog.model import split_key_groups
from statelog.model.checkpoint import CompletedCheckpoint, TaskStateSnapshot
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.batch_cost import batch_cost, input_bytes
from statelog.spark.driver.batch_times import BatchTimes, QueryTimes
from statelog.spark.driver.delivery.staged import (
    OUTPUT_SECTION,
    inline_outputs,
    output_frame,
    pack_outputs,
    unpack_outputs,
)
from statelog.spark.driver.failures import cause_of, is_active
from statelog.spark.driver.no_data_batches import nothing_due
from statelog.spark.driver.progress import slowest_phases, summed_catch_up
from statelog.spark.driver.restart import FirstBatch
from statelog.spark.driver.skew import dominating, largest_groups, largest_keys
from statelog.spark.driver.state_location import StateLocation, now_ms
from statelog.spark.driver.task_runner import AckParam, collect_acks, one_per_task
from statelog.spark.query.delivery import Delivery, Sink
from statelog.spark.query.initial_state import with_initial_rows
from statelog.spark.query.keyed_frame import partition_of
from statelog.spark.query.operator_definition import EngineConfig
from statelog.spark.query.progress import BatchProgress
from statelog.spark.rows.ipc import from_ipc
from statelog.spark.rows.late_rows import LateRows
from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.spark.worker.stopwatch import Stopwatch
from statelog.spark.worker.task_entry import direct_task

_log = logging.getLogger("statelog.spark")


_MAX_INLINE_BYTES = 32 * 1024 * 1024
"""What all tasks together may send through the driver, deltas and rows each."""

_STOPPED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a query that was stopped: "
    "java.lang.InterruptedException"
)
"""What Spark takes for an interruption.  It searches the whole text of an error for this, by an
expression that overflows the stack on the long text that a stopped job really leaves."""


class _Stopped(Exception):  # noqa: N818
    """`StreamingQuery.stop` came in the middle of a micro-batch."""


_SIGNS_OF_STOP = (
    "java.lang.InterruptedException",
    "java.nio.channels.ClosedByInterruptException",
    "java.io.InterruptedIOException",
    "SPARK_JOB_CANCELLED",
)


def _is_stop(error: Exception) -> bool:
    text = str(error)
    return any(sign in text for sign in _SIGNS_OF_STOP)


class MicroBatchEngine:
    """
    Runs the micro-batches of one query; the function given to `foreachBatch`.

    Args:
        config: The query.
        sink: Takes the output frame and the batch id.
        query_times: The times and positions of micro-batches; None where the caller keeps them.
    """

    def __init__(
        self, config: EngineConfig, sink: Sink, query_times: QueryTimes | None = None
    ) -> None:
        self._config = config
        self._sink = sink
        self._query_times = query_times
        self._location = StateLocation(config)
        self._coordinator = self._location.coordinator
        self._task_count = TaskCount(TaskBounds(config.min_tasks, config.max_tasks))
        self._warned_of = ""
        self._has_run = False

    def open(self, query_id: str | None = None) -> None:
        """
        Check that this query can go on from what its location holds; see `StateLocation`.

        Args:
            query_id: Spark's id of the query, empty for a new query; None if unknown.
        """
        self._location.inspect(query_id)

    def next_due_ms(self) -> int | None:
        """Return when the next timer is due, as of the last commit; None if unknown."""
        return self._location.next_due_ms

    def has_run(self) -> bool:
        """Return whether this run has had a micro-batch."""
        return self._has_run

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process one micro-batch; called by Spark, which repeats a batch that did not finish."""
        try:
            self._process(frame, batch_id)
        except StatelogError:
            raise
        except Exception as error:
            if _is_stop(error) and not is_active(frame):
                raise _Stopped(_STOPPED) from None
            told = cause_of(error, self._config.processor, batch_id)
            if told is not None:
                raise told from None
            raise

    def _process(self, frame: DataFrame, batch_id: int) -> None:
        config = self._config
        context = frame.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        times = (
            BatchTimes() if self._query_times is None else self._query_times.of(query_id, batch_id)
        )
        self._has_run = True
        if not self._location.epoch:
            first = FirstBatch(query_id, batch_id, times, self._query_times)
            if self._location.take_over(first):
                self._replay(frame, batch_id)
                return
        record = self._location.record
        if record is not None:
            times = times.not_before(record.watermark_ms)
        if nothing_due(config, record, times):
            return
        watch = Stopwatch()
        size = self._input_bytes(frame, times)
        spec = self._spec(batch_id, times, self._task_count.choose(size))
        self._coordinator.trigger(spec.checkpoint_id, spec.ranges)
        try:
            acks = self._run(frame, spec, watch)
            if times.is_idle and not any(map(_did_something, acks)):
                self._location.snapshots.aborted(spec.snapshots)
                self._coordinator.decline(spec.checkpoint_id, "there was nothing to do")
                self._location.next_due_ms = min(ack.next_due_ms for ack in acks)
                return
            completed, record = self._commit(spec, query_id, times, acks, watch)
        except BaseException:
            self._location.snapshots.aborted(spec.snapshots)
            # What failed is the news; a coordinator that was fenced refuses even this.
            with contextlib.suppress(StatelogError):
                self._coordinator.decline(spec.checkpoint_id, "the micro-batch failed")
            raise
        if not times.is_idle:  # it says nothing of the next batch with rows
            self._task_count.ran(batch_cost(acks, size))
        self._location.snapshots.committed(spec.snapshots, acks, now_ms())
        self._location.advance(completed, record)
        if config.delivery is Delivery.STAGED:
            self._deliver(frame, record, inline_outputs(acks))
        watch.lap("deliver")
        self._location.clean_up()
        watch.lap("clean_up")
        self._report(spec, record, acks, watch)

    def _input_bytes(self, frame: DataFrame, times: BatchTimes) -> int | None:
        """Return the size of the input where it is known and of use."""
        config = self._config
        has_initial_rows = self._location.base is None and config.initial is not None
        if config.min_tasks == config.max_tasks or has_initial_rows:
            return None
        return 0 if times.is_idle and config.plan.is_stateless else input_bytes(frame)

    def _spec(self, batch_id: int, times: BatchTimes, tasks: int) -> TaskSpec:
        config, location = self._config, self._location
        ranges = split_key_groups(config.max_parallelism, tasks)
        starts_empty = location.base is None and config.initial is not None
        initial = config.initial.task_layout if config.initial and starts_empty else None
        return TaskSpec(
            location=config.location,
            store_options=config.store_options,
            fsync=config.fsync,
            epoch=location.epoch,
            batch_id=batch_id,
            checkpoint_id=location.next_checkpoint_id(batch_id),
            base_id=-1 if location.base is None else location.base.checkpoint_id,
            committed=location.committed_handles(),
            ranges=ranges,
            schema=location.schema.to_json(),
            key_positions=config.key_positions,
            first_input=config.first_input,
            output=config.arrow_output,
            processor=config.processor,
            time_mode=config.time_mode,
            now_ms=times.now_ms if config.time_mode != "none" else -1,
            watermark_ms=times.watermark_ms,
            event_time_output=config.event_time_output,
            reads_input=not (times.is_idle and config.plan.is_stateless),
            # A batch without data must not commit, or try a failing store each time, for a snapshot alone.
            snapshots={} if times.is_idle else location.snapshots.choose(ranges, now_ms()),
            inline_bytes=min(config.inline_bytes, _MAX_INLINE_BYTES // tasks),
            backend=config.backend,
            input_bytes=config.backend.input_bytes,
            staged=config.delivery is Delivery.STAGED,
            flavour=config.flavour,
            initial=initial,
            late=self._late_rows(times, has_initial_rows=initial is not None),
        )

    def _late_rows(self, times: BatchTimes, *, has_initial_rows: bool) -> LateRows | None:
        if self._config.event_time is None:
            return None
        # Rows of initial state come with a mark in front of the input's columns.
        return LateRows(self._config.event_time + has_initial_rows, times.late_ms)

    def _partitioned(self, frame: DataFrame, spec: TaskSpec) -> DataFrame:
        """Return the input with one partition for each task."""
        config, tasks = self._config, len(spec.ranges)
        if not spec.reads_input:
            return frame.sparkSession.range(0, tasks, 1, tasks)
        if spec.initial is not None and config.initial is not None:
            frame = with_initial_rows(frame, config.initial)
        if tasks == 1:  # everything goes to one task: nothing to shuffle
            return frame.coalesce(1)
        return frame.repartitionById(tasks, partition_of(tasks, config.max_parallelism))

    def _run(self, frame: DataFrame, spec: TaskSpec, watch: Stopwatch) -> list[TaskAck]:
        tasks = len(spec.ranges)
        partitioned = self._partitioned(frame, spec)
        watch.lap("plan")
        if spec.staged:
            acks = collect_acks(partitioned, spec)
        else:
            gathered = frame.sparkSession.sparkContext.accumulator([], AckParam())
            output = partitioned.mapInArrow(
                partial(direct_task, spec, gathered), self._config.output
            )
            self._sink(output, spec.batch_id)
            fail_point("after-sink")
            acks = one_per_task(gathered.value)
            if len(acks) < tasks:  # the sink did not look at all rows; the state needs them
                output.write.format("noop").mode("append").save()
                acks = one_per_task(gathered.value)
        watch.lap("run")
        return acks

    def _commit(
        self,
        spec: TaskSpec,
        query_id: str,
        times: BatchTimes,
        acks: Sequence[TaskAck],
        watch: Stopwatch,
    ) -> tuple[CompletedCheckpoint, BatchRecord]:
        for ack in acks:
            self._coordinator.acknowledge(
                spec.checkpoint_id,
                TaskStateSnapshot(ack.key_group_range, ack.log, ack.materialized),
            )
        section, files = pack_outputs(acks)
        record = BatchRecord(
            operator_id=self._location.schema.operator_id,
            schema=spec.schema,
            query_id=query_id,
            batch_id=spec.batch_id,
            tasks=len(spec.ranges),
            delivery=self._config.delivery.value,
            time_mode=spec.time_mode,
            now_ms=spec.now_ms,
            rows=sum(ack.rows for ack in acks),
            keys=sum(ack.keys for ack in acks),
            output_rows=sum(ack.output_rows for ack in acks),
            state_entries=sum(ack.entries for ack in acks),
            delta_bytes=sum(ack.delta_bytes for ack in acks),
            output_bytes=len(section or b"") + sum(handle.size_bytes for handle in files),
            output_files=[handle.to_json() for handle in files],
            went_back_to=self._location.went_back_to,
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
            sections={} if section is None else {OUTPUT_SECTION: section},
        )
        watch.lap("commit")
        return completed, record

    def _deliver(self, frame: DataFrame, record: BatchRecord, inline: Sequence[bytes]) -> None:
        """Give the committed rows to the sink: the *inline* streams, then the files."""
        config = self._config
        output = output_frame(
            frame.sparkSession,
            config.output,
            config.arrow_output,
            [from_ipc(stream) for stream in inline],
            record.staged_files(),
            config.location,
            config.store_options,
        )
        self._sink(output, record.batch_id)
        fail_point("after-sink")

    def _replay(self, frame: DataFrame, batch_id: int) -> None:
        """
        Deliver a committed batch again.

        With staged delivery these are the committed rows.  With direct delivery the sink had
        returned before the commit, so there is nothing to do.
        """
        watch = Stopwatch()
        base, record = self._location.base, self._location.record
        if base is None or record is None:
            raise StatelogError(f"batch {batch_id} cannot be replayed without a checkpoint")
        if self._config.plan.has_watermark or not self._config.plan.is_stateless:
            # What Spark keeps before this operator goes forward only as the rows are evaluated.
            frame.write.format("noop").mode("append").save()
        if record.delivery == Delivery.STAGED.value:
            section = self._coordinator.section(base.checkpoint_id, OUTPUT_SECTION)
            self._deliver(frame, record, unpack_outputs(section))
        watch.lap("deliver")
        self._emit(
            BatchProgress(
                batch_id=batch_id,
                checkpoint_id=base.checkpoint_id,
                replayed=True,
                tasks=record.tasks,
                output_rows=record.output_rows,
                milliseconds=watch.with_total(),
            )
        )

    def _report(
        self,
        spec: TaskSpec,
        record: BatchRecord,
        acks: Sequence[TaskAck],
        watch: Stopwatch,
    ) -> None:
        distances = self._location.snapshots.distances
        groups, keys = largest_groups(acks), largest_keys(acks)
        warning = dominating(groups, keys)
        if warning and warning.partition(" has ")[0] != self._warned_of:
            self._warned_of = warning.partition(" has ")[0]
            _log.warning("batch %d is uneven: %s", spec.batch_id, warning)
        late_rows = sum(ack.late_rows for ack in acks)
        self._config.metrics.count("num_late_records_dropped", late_rows)
        self._emit(
            BatchProgress(
                batch_id=spec.batch_id,
                checkpoint_id=spec.checkpoint_id,
                tasks=len(spec.ranges),
                rows=record.rows,
                late_rows=late_rows,
                keys=record.keys,
                output_rows=record.output_rows,
                state_entries=record.state_entries,
                delta_bytes=record.delta_bytes,
                output_bytes=record.output_bytes,
                objects=1 + sum(ack.objects for ack in acks),
                object_bytes=self._coordinator.committed_bytes
                + sum(ack.object_bytes for ack in acks),
                log_bytes=distances.log_bytes,
                log_handles=distances.log_handles,
                snapshots=sum(ack.materialized is not None for ack in acks),
                snapshots_failed=sum(bool(ack.snapshot_error) for ack in acks),
                largest_key_groups=groups,
                largest_keys=keys,
                catch_up=summed_catch_up(acks),
                milliseconds=watch.with_total(),
                task_milliseconds=slowest_phases(acks),
            )
        )

    def _emit(self, progress: BatchProgress) -> None:
        _log.info("%s", progress)
        if self._config.on_progress is not None:
            self._config.on_progress(progress)


def _did_something(ack: TaskAck) -> bool:
    """Return whether a task saw rows, or changed or put out anything."""
    wrote = ack.log is not None or ack.materialized is not None
    return wrote or ack.rows > 0 or ack.output_rows > 0
