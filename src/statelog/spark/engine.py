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

from statelog.errors import StatelogError
from statelog.model.checkpoint import CompletedCheckpoint, TaskStateSnapshot
from statelog.model.handles import FileStateHandle
from statelog.runtime.fail_points import fail_point
from statelog.spark.config import EngineConfig
from statelog.spark.delivery import (
    OUTPUT_SECTION,
    AckParam,
    Delivery,
    Sink,
    collect_acks,
    direct_task,
    inline_outputs,
    one_per_task,
    output_frame,
    pack_outputs,
    unpack_outputs,
)
from statelog.spark.grouping import partition_of
from statelog.spark.initial_state import with_initial_rows
from statelog.spark.location import StateLocation, now_ms
from statelog.spark.outputs import from_ipc
from statelog.spark.progress import BatchProgress, slowest_phases, summed_catch_up
from statelog.spark.record import BatchRecord
from statelog.spark.spec import TaskAck, TaskSpec
from statelog.spark.stopwatch import Stopwatch

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
    """

    def __init__(self, config: EngineConfig, sink: Sink) -> None:
        self._config = config
        self._sink = sink
        self._location = StateLocation(config)
        self._coordinator = self._location.coordinator

    def open(self) -> None:
        """Check that this query can go on from what its location holds; see `StateLocation`."""
        self._location.inspect()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process one micro-batch; called by Spark, which repeats a batch that did not finish."""
        try:
            self._process(frame, batch_id)
        except StatelogError:
            raise
        except Exception as error:
            if _is_stop(error):
                raise _Stopped(_STOPPED) from None
            raise

    def _process(self, frame: DataFrame, batch_id: int) -> None:
        context = frame.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        if not self._location.epoch:
            self._location.take_over(query_id)
            if self._location.is_committed(query_id, batch_id):
                self._replay(frame, batch_id)
                return
        watch = Stopwatch()
        spec = self._spec(batch_id)
        self._coordinator.trigger(spec.checkpoint_id, self._location.ranges)
        recorder = self._location.recorder
        recorder.materialization_started(len(spec.snapshots))
        try:
            acks = self._run(frame, spec, watch)
            completed = self._commit(spec, query_id, acks, watch)
        except BaseException:
            recorder.materialization_failed(len(spec.snapshots))
            # What failed is the news; a coordinator that was fenced refuses even this.
            with contextlib.suppress(StatelogError):
                self._coordinator.decline(spec.checkpoint_id, "the micro-batch failed")
            raise
        recorder.materialization_completed(
            len(spec.snapshots), slowest_phases(acks).get("snapshot", 0.0)
        )
        self._location.advance(completed)
        if self._config.delivery is Delivery.STAGED:
            self._deliver(frame, batch_id, completed, inline_outputs(acks))
        watch.lap("deliver")
        self._location.clean_up()
        watch.lap("clean_up")
        self._report(spec, completed, acks, watch)

    def _spec(self, batch_id: int) -> TaskSpec:
        config, location = self._config, self._location
        overdue = config.materialization.choose(location.log_distances())
        return TaskSpec(
            location=config.location,
            store_options=config.store_options,
            fsync=config.fsync,
            epoch=location.epoch,
            batch_id=batch_id,
            checkpoint_id=location.next_checkpoint_id(batch_id),
            base_id=-1 if location.base is None else location.base.checkpoint_id,
            committed=location.committed_handles(),
            ranges=location.ranges,
            schema=location.schema.to_json(),
            key_positions=config.key_positions,
            first_input=config.first_input,
            output=config.arrow_output,
            processor=config.processor,
            time_mode=config.time_mode,
            now_ms=now_ms() if config.time_mode != "none" else -1,
            snapshots=frozenset(() if overdue is None else (overdue,)),
            inline_bytes=min(config.inline_bytes, _MAX_INLINE_BYTES // len(location.ranges)),
            backend=config.backend,
            staged=config.delivery is Delivery.STAGED,
            flavour=config.flavour,
            initial=None
            if location.base is not None or config.initial is None
            else config.initial.task_layout,
        )

    def _run(self, frame: DataFrame, spec: TaskSpec, watch: Stopwatch) -> list[TaskAck]:
        if spec.initial is not None and self._config.initial is not None:
            frame = with_initial_rows(frame, self._config.initial)
        tasks = len(self._location.ranges)
        partition = partition_of(tasks, self._config.max_parallelism)
        partitioned = frame.repartitionById(tasks, partition)
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
        self, spec: TaskSpec, query_id: str, acks: Sequence[TaskAck], watch: Stopwatch
    ) -> CompletedCheckpoint:
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
            tasks=len(self._location.ranges),
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
        )
        completed = self._coordinator.complete(
            spec.checkpoint_id,
            properties=record.to_properties(),
            sections={} if section is None else {OUTPUT_SECTION: section},
        )
        watch.lap("commit")
        return completed

    def _deliver(
        self,
        frame: DataFrame,
        batch_id: int,
        completed: CompletedCheckpoint,
        inline: Sequence[bytes],
    ) -> None:
        """Give the committed rows to the sink: the *inline* streams, then the files."""
        config = self._config
        output = output_frame(
            frame.sparkSession,
            config.output,
            config.arrow_output,
            [from_ipc(stream) for stream in inline],
            BatchRecord.of(completed).staged_files(),
            config.location,
            config.store_options,
        )
        self._sink(output, batch_id)
        fail_point("after-sink")

    def _replay(self, frame: DataFrame, batch_id: int) -> None:
        """
        Deliver a committed batch again.

        With staged delivery these are the committed rows.  With direct delivery the sink had
        returned before the commit, so there is nothing to do.
        """
        watch = Stopwatch()
        base = self._location.base
        if base is None:
            raise StatelogError(f"batch {batch_id} cannot be replayed without a checkpoint")
        record = BatchRecord.of(base)
        if record.delivery == Delivery.STAGED.value:
            section = self._coordinator.section(base.checkpoint_id, OUTPUT_SECTION)
            self._deliver(frame, batch_id, base, unpack_outputs(section))
        watch.lap("deliver")
        self._emit(
            BatchProgress(
                batch_id=batch_id,
                checkpoint_id=base.checkpoint_id,
                replayed=True,
                tasks=len(self._location.ranges),
                output_rows=record.output_rows,
                milliseconds=watch.with_total(),
            )
        )

    def _report(
        self,
        spec: TaskSpec,
        completed: CompletedCheckpoint,
        acks: Sequence[TaskAck],
        watch: Stopwatch,
    ) -> None:
        record = BatchRecord.of(completed)
        distances = self._location.log_distances()
        files = {path for ack in acks for path in _files_of(ack)}
        self._emit(
            BatchProgress(
                batch_id=spec.batch_id,
                checkpoint_id=completed.checkpoint_id,
                tasks=len(self._location.ranges),
                rows=record.rows,
                keys=record.keys,
                output_rows=record.output_rows,
                state_entries=record.state_entries,
                delta_bytes=record.delta_bytes,
                output_bytes=record.output_bytes,
                objects=1 + len(files),
                object_bytes=self._coordinator.committed_bytes,
                log_bytes=sum(distance.log_bytes for distance in distances),
                log_handles=sum(distance.log_handles for distance in distances),
                snapshots=sum(ack.materialized is not None for ack in acks),
                catch_up=summed_catch_up(acks),
                milliseconds=watch.with_total(),
                task_milliseconds=slowest_phases(acks),
            )
        )

    def _emit(self, progress: BatchProgress) -> None:
        _log.info("%s", progress)
        if self._config.on_progress is not None:
            self._config.on_progress(progress)


def _files_of(ack: TaskAck) -> list[str]:
    """Return the objects that a task wrote to the store."""
    handles: list[object] = [ack.output]
    if ack.log is not None:
        handles += [entry.handle for entry in ack.log.handles_and_offsets]
    if ack.materialized is not None:
        handles.append(ack.materialized.handle)
    return [handle.path for handle in handles if isinstance(handle, FileStateHandle)]
