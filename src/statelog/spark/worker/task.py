"""
Run one task of one micro-batch in a Python kept.

A task owns a range of key groups.  It brings the worker's cached state forward to the last committed
checkpoint, runs the user's processor over its keys, appends the deltas to the changelog, and
acknowledges with the handles.  What it writes becomes valid with the driver's commit.

Spark gives a partition to any worker and may kill idle ones, so the cache makes tasks faster but no
task depends on it.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from statelog.checkpoint.history import fetch_checkpoint
from statelog.checkpoint.stream_factory import FsCheckpointStreamFactory
from statelog.errors import InvariantError
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.runtime.fail_points import fail_point
from statelog.spark.rows.formats import KeepingFormat
from statelog.spark.rows.layout import LateCount
from statelog.spark.rows.unfit_output import check_event_times
from statelog.spark.worker.connection import without_delay
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.kept_states import KeptState, KeptStates, freeze
from statelog.spark.worker.output_parts import DirectOutput, OutputFiles, StagedOutputParts
from statelog.spark.worker.protocol import TaskAck, TaskRows, TaskSpec
from statelog.spark.worker.recorder import TaskRecorder
from statelog.spark.worker.recording import acknowledge_recording
from statelog.spark.worker.replayable import replayable_failure
from statelog.spark.worker.row_counter import RowCounter
from statelog.spark.worker.run import TaskRun, new_run
from statelog.spark.worker.spill import SpillFile
from statelog.spark.worker.stopwatch import Stopwatch
from statelog.spark.worker.task_input import TaskInput, changed_partitions
from statelog.spark.worker.task_uploads import TaskUploads, task_uploads
from statelog.store import PATHS, ObjectStore

_ERROR_MAX = 2000


_states = KeptStates()


def run_task(
    spec: TaskSpec, batches: Iterable[pa.RecordBatch], acknowledge: Callable[[TaskAck], None]
) -> Iterator[pa.RecordBatch]:
    """
    Process one partition of a micro-batch.

    Args:
        spec: The instructions.
        batches: The input: key group, computed key columns, input columns.
        acknowledge: Called with the answer once everything the task wrote is durable.

    Returns:
        The output rows, unless they are staged.

    Raises:
        ProcessorError: The user's processor failed.
    """
    # Reference counts free the hundreds of thousands of objects of a task.  The collector's passes
    # over them and over the state would cost more than the task, and PySpark's daemon collects
    # after every task.
    was_enabled = gc.isenabled()
    gc.disable()
    with contextlib.closing(SpillFile(spec.state.backend.folder)) as file:
        try:
            output = _run(spec, batches, file, acknowledge)
        finally:
            if was_enabled:
                gc.enable()
        yield from output


def _run(
    spec: TaskSpec,
    batches: Iterable[pa.RecordBatch],
    file: SpillFile,
    acknowledge: Callable[[TaskAck], None],
) -> Iterator[pa.RecordBatch]:
    """Process a partition; return its output rows, none where they are staged."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    if partition >= len(spec.ranges):
        raise changed_partitions()
    watch = Stopwatch()
    kept = _states.of(spec)
    with task_uploads(kept.storage) as uploads:
        ack, output = _answer(spec, kept, uploads, partition, batches, file=file, watch=watch)
        uploads.hand_over()
    fail_point("before-acknowledge")
    acknowledge(ack)
    return output.batches() if isinstance(output, DirectOutput) else iter(())


def _answer(
    spec: TaskSpec,
    kept: KeptState,
    uploads: TaskUploads,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    *,
    file: SpillFile,
    watch: Stopwatch,
) -> tuple[TaskAck, StagedOutputParts | DirectOutput]:
    """Process a partition; return the answer, and the output."""
    context = TaskContext.get()
    objects, object_bytes = kept.store.objects_put, kept.store.bytes_put
    key_group_range = spec.ranges[partition]
    attempt = context.attemptNumber() if context is not None else 0
    ack = TaskAck(partition, key_group_range, attempt=attempt)
    ack.caught_up = kept.state.catch_up(
        key_group_range, spec.base_id, spec.committed, lambda: _load(kept, spec, key_group_range)
    )
    kept.state.expire_incrementally(key_group_range, spec.context.now_ms)
    watch.lap("catch_up")
    late = LateCount()
    if spec.rows.is_read and spec.rows.late is not None:
        batches = spec.rows.late.without_late(batches, late)
    counter = RowCounter(key_group_range, spec.rows.layout.key_positions)
    read = spec.rows.is_read and spec.rows.initial is None
    counted = counter.through(batches) if read else _input_of(spec, batches)
    recorder = _recorder(kept, spec)
    rows = TaskInput(_input_rows(spec), kept.state.codec.key, key_group_range, counted, file)
    ack.rows, ack.top_groups, ack.top_keys = rows.row_count, counter.groups(), counter.keys()
    ack.late_rows = late.rows
    watch.lap("input")
    watch.milliseconds["wait"] = counter.waited_ms
    files = OutputFiles(uploads.put, kept.ids)
    output = _output(spec, file, files)
    run = new_run(spec.context, kept.state, key_group_range, output, recorder)
    with replayable_failure(kept.store, recorder, spec):
        _process(_Task(kept, spec, uploads, run, ack, watch), rows)
    if isinstance(output, StagedOutputParts):
        ack.output = output.staged()
        watch.lap("stage")
    ack.output_rows, ack.unnamed = output.row_count, output.unnamed
    if recorder is not None:
        acknowledge_recording(files, recorder, spec, ack)
        watch.lap("record")
    ack.group_entries = kept.state.entry_counts(key_group_range)
    ack.entries = sum(ack.group_entries)
    ack.objects = kept.store.objects_put - objects
    ack.object_bytes = kept.store.bytes_put - object_bytes
    ack.uploads = kept.metrics.take()
    freeze(kept)
    ack.milliseconds = watch.milliseconds
    return ack, output


def _recorder(kept: KeptState, spec: TaskSpec) -> TaskRecorder | None:
    if spec.record is None:
        return None
    starts, ends = (
        [key_range.start for key_range in spec.ranges],
        [key_range.end for key_range in spec.ranges],
    )
    groups = KeyGroupRange(min(starts), max(ends))
    output = spec.rows.row_format.output(spec.rows.output, spec.context.batch_id)
    return TaskRecorder(spec.record, kept.state.codec, groups, output)


def _input_rows(spec: TaskSpec) -> TaskRows:
    """Return the task's rows, whose inputs keep them in columns where keys are recorded."""
    rows = spec.rows
    return rows if spec.record is None else replace(rows, row_format=KeepingFormat(rows.row_format))


def _output(
    spec: TaskSpec, file: SpillFile, files: OutputFiles
) -> StagedOutputParts | DirectOutput:
    def check(batch: pa.RecordBatch) -> None:
        if rows.event_time_output is not None:
            check_event_times(batch, rows.event_time_output, context.watermark_ms, context.batch_id)

    rows, context = spec.rows, spec.context
    output = rows.row_format.output(rows.output, context.batch_id)
    if not spec.staged:
        return DirectOutput(output, check, rows.output, file)
    return StagedOutputParts(output, check, rows.output, files, spec.inline_bytes)


@dataclass(frozen=True, slots=True)
class _Task:
    """A task that runs: its worker's state, its instructions, its uploads, its run and its answer."""

    kept: KeptState
    spec: TaskSpec
    uploads: TaskUploads
    run: TaskRun
    ack: TaskAck
    watch: Stopwatch


def _process(task: _Task, rows: TaskInput) -> None:
    """Run the processor and append its changes."""
    spec, run, ack, watch = task.spec, task.run, task.ack, task.watch
    run.begin()
    in_parts = rows.is_large and run.in_parts(rows.file)
    if in_parts and ack.partition in spec.snapshots and spec.base_id >= 0:
        # This micro-batch's changes are never in memory together: the snapshot is without them.
        _snapshot(task, spec.base_id)
        watch.lap("snapshot")
    # Many small parts together would exceed what the answer may hold.
    inline_bytes = 0 if in_parts else spec.inline_bytes
    log = task.uploads.log(
        task.kept.state.codec, ack.key_group_range, spec.checkpoint_id, inline_bytes
    )
    for part in rows.parts():
        watch.lap("input")
        run.take(part.rows, part.initial)
        watch.lap("process")
        if in_parts:
            run.retire(log.append(run))
            watch.lap("append")
    run.end()
    ack.keys, ack.next_due_ms = run.key_count, run.next_due_ms()
    watch.lap("process")
    run.flush()
    watch.lap("output")
    log.append(run)
    ack.log, ack.delta_bytes = log.persist(), log.delta_bytes
    if ack.log is not None and not in_parts:
        run.stage(spec.checkpoint_id, spec.base_id, ack.log.state_handle_id)
    fail_point("between-uploads")
    watch.lap("append")
    if ack.partition in spec.snapshots and not in_parts:
        _snapshot(task, spec.checkpoint_id)
        watch.lap("snapshot")


def _input_of(spec: TaskSpec, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    if spec.rows.is_read:
        return batches
    for _ in batches:  # one row marks a partition without input, and Spark requires reading it
        pass
    return ()


def _load(
    kept: KeptState, spec: TaskSpec, key_group_range: KeyGroupRange
) -> tuple[ObjectStore, ChangelogStateBackendHandle]:
    # The whole object: the task most likely needs the change sets inside.
    stored = fetch_checkpoint(kept.store, spec.restore_id)
    return kept.store, stored.record.checkpoint.for_range(key_group_range)


def _snapshot(task: _Task, checkpoint_id: int) -> None:
    """
    Write a snapshot of *checkpoint_id*, or report its failure.

    The log has all changes.
    """
    try:
        fail_point("before-snapshot")
        task.ack.snapshot = _write_snapshot(task, checkpoint_id)
    except Exception as error:
        task.ack.snapshot_error = f"{type(error).__name__}: {error}"[:_ERROR_MAX]


def _write_snapshot(task: _Task, checkpoint_id: int) -> MaterializedHandle:
    # Always a file: inside the handle it would be part of every later checkpoint.
    kept, spec = task.kept, task.spec
    key_group_range = spec.snapshots[task.ack.partition]
    data = task.run.snapshot(key_group_range)
    factory = FsCheckpointStreamFactory.for_checkpoint(
        kept.store,
        spec.checkpoint_id,
        paths=PATHS,
        threshold_bytes=0,
        put=task.uploads.put,
    )
    with factory.create_task_owned_state_stream() as stream:
        stream.write(data)
        handle = stream.close_and_get_handle()
    if handle is None:
        raise InvariantError("a snapshot cannot be empty: a Parquet file has a footer")
    snapshot = MaterializedHandle(key_group_range, checkpoint_id, handle)
    kept.state.end_snapshot(snapshot)
    return snapshot


# The functions that Spark calls with a partition, one for each delivery.


def staged_task(spec: TaskSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task whose only result is its answer."""
    acks: list[TaskAck] = []
    with reported_to_driver(spec.state.location):
        for _ in run_task(spec, without_delay(batches), acks.append):
            pass
    yield pa.RecordBatch.from_pydict({"ack": [pickle.dumps(ack) for ack in acks]})


def direct_task(
    spec: TaskSpec, acks: Accumulator[list[TaskAck]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """
    Run a task whose result is its output rows.

    Its answer is added to an accumulator.
    """
    with reported_to_driver(spec.state.location):
        yield from run_task(spec, without_delay(batches), lambda ack: acks.add([ack]))
