"""
Run one task of a micro-batch in a Python worker, which Spark reuses.

A task owns a range of key groups.  It brings the worker's cached state forward to the last
committed checkpoint, runs the user's processor over its keys, appends the deltas to the changelog,
and acknowledges with the handles.  What it writes becomes valid with the driver's commit.

Spark gives a partition to any worker and may kill idle ones, so the cache makes tasks faster but no
task depends on it.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from statelog.checkpoint.history import fetch_checkpoint
from statelog.errors import ProcessorError
from statelog.metrics.table import FigureValue
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.runtime.clock import Stopwatch
from statelog.runtime.fail_points import fail_point
from statelog.spark.rows.formats import KeepingFormat
from statelog.spark.rows.layout import LateCount
from statelog.spark.rows.unfit_output import check_event_times
from statelog.spark.worker.extension import TaskExtensions, TaskRun, TaskTools
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.garbage import GARBAGE
from statelog.spark.worker.kept_states import KeptState, KeptStates
from statelog.spark.worker.output_parts import (
    DirectOutput,
    OutputFiles,
    StagedOutputParts,
    TaskLog,
    TaskUploads,
    task_uploads,
)
from statelog.spark.worker.protocol import (
    TaskAck,
    TaskChanges,
    TaskOutput,
    TaskPlace,
    TaskRows,
    TaskSpec,
)
from statelog.spark.worker.spill_file import SpillFile
from statelog.spark.worker.task_input import (
    RowCounter,
    TaskInput,
    changed_partitions,
    of_task,
    without_delay,
)
from statelog.store import PATHS, ObjectStore

_ERROR_MAX = 2000


_states = KeptStates()


@dataclass(frozen=True, slots=True)
class Worker:
    """
    What a process needs to run tasks.

    Args:
        states: The states that it keeps between tasks.
        extensions: Makes the extensions of a task.
        owns_process: Whether the process is a Python worker of Spark, whose objects may be excluded
            from garbage collection.
    """

    states: KeptStates
    extensions: Callable[[Mapping[str, object], TaskTools], TaskExtensions] = TaskExtensions
    owns_process: bool = True


def run_task(
    spec: TaskSpec,
    batches: Iterable[pa.RecordBatch],
    acknowledge: Callable[[TaskAck], None],
    worker: Worker | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    Process one partition of a micro-batch.

    Returns:
        The output rows, unless they are staged.
    """
    worker = worker or Worker(_states)
    with contextlib.closing(SpillFile(spec.state.backend.folder)) as file:
        GARBAGE.begin_task()
        try:
            output = _run(spec, batches, file, acknowledge, worker)
        finally:
            GARBAGE.end_task(has_daemon=worker.owns_process and TaskContext.get() is not None)
        yield from output


def _run(
    spec: TaskSpec,
    batches: Iterable[pa.RecordBatch],
    file: SpillFile,
    acknowledge: Callable[[TaskAck], None],
    worker: Worker,
) -> Iterator[pa.RecordBatch]:
    """Process a partition; return its output rows, or nothing if they are staged."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    if partition >= len(spec.ranges):
        raise changed_partitions()
    # The first column of every row names its task, by its key group or by the task's number.
    names = spec.ranges[partition] if spec.rows.is_read else KeyGroupRange(partition, partition)
    batches = of_task(batches, names)
    watch = Stopwatch()
    worker_state = worker.states.of(spec)
    with task_uploads(worker_state.storage) as uploads:
        # What was uploaded is deleted if anything in this block fails.
        ack, output = _answer(
            spec, worker_state, uploads, partition, batches, worker, file=file, watch=watch
        )
        uploads.hand_over()
    if worker.owns_process:
        GARBAGE.exclude()
    # The answer is the last step: before it the driver knows nothing of this attempt.
    fail_point("before-acknowledge")
    acknowledge(ack)
    return output.batches() if isinstance(output, DirectOutput) else iter(())


def _answer(
    spec: TaskSpec,
    worker_state: KeptState,
    uploads: TaskUploads,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    worker: Worker,
    *,
    file: SpillFile,
    watch: Stopwatch,
) -> tuple[TaskAck, StagedOutputParts | DirectOutput]:
    """Process a partition; return the task's result and the output."""
    objects = worker_state.store.objects_put
    object_bytes = worker_state.store.bytes_put
    key_range = spec.ranges[partition]
    files = OutputFiles(uploads.put, worker_state.ids, uploads.drop)
    figures: dict[str, FigureValue] = {}
    tools = TaskTools(spec, worker_state.state.codec, files, worker_state.store, figures)
    extensions = worker.extensions(spec.extras, tools)
    caught_up = worker_state.state.catch_up(
        key_range, spec.base_id, spec.committed, lambda: _load(worker_state, spec, key_range)
    )
    worker_state.state.expire_incrementally(key_range, spec.context.now_ms)
    watch.lap("catch_up")
    read_spec = replace(spec, rows=_keeping(spec.rows)) if extensions.keeps_rows else spec
    rows, counter, late = _read(read_spec, worker_state, key_range, batches, file)
    watch.lap("input")
    watch.milliseconds["wait"] = counter.waited_ms
    output = _output(spec, file, files)
    run = extensions.new_run(spec.context, worker_state.state, key_range, output)
    run = extensions.wrap(run, output)
    try:
        task = _Task(worker_state, spec, uploads, files, run, partition, key_range, watch, figures)
        changes = _process(task, rows)
    except ProcessorError as error:
        raise extensions.failed(error) from error.__cause__
    staged = output.staged() if isinstance(output, StagedOutputParts) else None
    if staged is not None:
        watch.lap("stage")
    extras = extensions.answers(watch)
    # What the task cost; the driver adds these up for the micro-batch.
    figures.update(
        rows=rows.row_count,
        late_rows=late.rows,
        output_rows=output.row_count,
        state_entries=sum(changes.group_entries),
        objects=worker_state.store.objects_put - objects,
        object_bytes=worker_state.store.bytes_put - object_bytes,
        catch_up={figure: count for figure, count in asdict(caught_up).items() if count},
        task_milliseconds=watch.milliseconds,
    )
    return _ack(task, changes, TaskOutput(staged, output.unnamed), counter, extras), output


def _ack(
    task: _Task,
    changes: TaskChanges,
    output: TaskOutput,
    counter: RowCounter,
    extras: Mapping[str, object],
) -> TaskAck:
    """Return the result of a task, omitting figures that are zero."""
    return TaskAck(
        place=_place(task.partition, task.key_range),
        changes=changes,
        output=output,
        figures={name: figure for name, figure in task.figures.items() if figure},
        top_groups=counter.groups(),
        top_keys=counter.keys(),
        uploads=task.worker_state.metrics.take(),
        extras=extras,
    )


def _place(partition: int, key_range: KeyGroupRange) -> TaskPlace:
    """Return which task this is, and which attempt."""
    context = TaskContext.get()
    if context is None:
        return TaskPlace(partition, key_range)
    return TaskPlace(partition, key_range, context.attemptNumber(), context.taskAttemptId())


def _read(
    spec: TaskSpec,
    worker_state: KeptState,
    key_range: KeyGroupRange,
    batches: Iterable[pa.RecordBatch],
    file: SpillFile,
) -> tuple[TaskInput, RowCounter, LateCount]:
    """Read and count the input, and drop late rows."""
    late = LateCount()
    if spec.rows.is_read and spec.rows.late is not None:
        batches = spec.rows.late.without_late(batches, late)
    counter = RowCounter(key_range, spec.rows.layout.key_positions)
    is_counted = spec.rows.is_read and spec.rows.initial is None
    counted = counter.through(batches) if is_counted else _input_of(spec, batches)
    rows = TaskInput(spec.rows, worker_state.state.codec.key, key_range, counted, file)
    return rows, counter, late


def _keeping(rows: TaskRows) -> TaskRows:
    """Return a task's row format, extended to keep rows as columns."""
    return replace(rows, row_format=KeepingFormat(rows.row_format))


def _output(
    spec: TaskSpec, file: SpillFile, files: OutputFiles
) -> StagedOutputParts | DirectOutput:
    def check(batch: pa.RecordBatch) -> None:
        if rows.event_time_output is not None:
            check_event_times(batch, rows.event_time_output, context.watermark_ms, context.batch_id)

    rows = spec.rows
    context = spec.context
    output = rows.row_format.output(rows.output, context.batch_id)
    if not spec.staged:
        return DirectOutput(output, check, rows.output, file)
    return StagedOutputParts(output, check, rows.output, files, spec.inline_bytes)


@dataclass(frozen=True, slots=True)
class _Task:
    """A running task: its worker's state, its instructions, uploads, run and figures."""

    worker_state: KeptState
    spec: TaskSpec
    uploads: TaskUploads
    files: OutputFiles
    run: TaskRun
    partition: int
    key_range: KeyGroupRange
    watch: Stopwatch
    figures: dict[str, FigureValue]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The snapshot that a task wrote, or the error; neither if no snapshot was requested."""

    handle: MaterializedHandle | None = None
    error: str = ""


def _run_rows(run: TaskRun, rows: TaskInput, log: TaskLog | None, watch: Stopwatch) -> None:
    """Run the processor on all rows; if there is a log, append the changes part by part."""
    for part in rows.parts():
        watch.lap("input")
        run.take(part.rows, part.initial)
        watch.lap("process")
        if log is not None:
            run.retire(log.append(run.encoded()))
            watch.lap("append")


def _process(task: _Task, rows: TaskInput) -> TaskChanges:
    """Run the processor and append its changes to the log."""
    spec = task.spec
    run = task.run
    watch = task.watch
    snapshot = _Snapshot()
    run.begin()
    in_parts = rows.is_large and run.in_parts(rows.file)
    if in_parts and task.partition in spec.snapshots and spec.base_id >= 0:
        # This micro-batch's changes are never in memory together: the snapshot is without them.
        snapshot = _snapshot(task, spec.base_id)
        watch.lap("snapshot")
    # Many small parts together would exceed what the answer may hold.
    inline_bytes = 0 if in_parts else spec.inline_bytes
    log = task.uploads.log(
        task.worker_state.state.codec, task.key_range, spec.checkpoint_id, inline_bytes
    )
    _run_rows(run, rows, log if in_parts else None, watch)
    # All rows were handled: now the timers, and the end of the processor.
    run.end()
    task.figures["keys"], next_due_ms = run.key_count, run.next_due_ms()
    watch.lap("process")
    run.flush()
    watch.lap("output")
    # Make the changes durable.  In parts, these are the changes of the timers alone.
    log.append(run.encoded())
    handle = log.persist()
    # Kept for the next task: if this attempt is committed, it need not read its own log.
    if handle is not None and not in_parts:
        run.stage(spec.checkpoint_id, spec.base_id, handle.state_handle_id)
    fail_point("between-uploads")
    watch.lap("append")
    if task.partition in spec.snapshots and not in_parts:
        snapshot = _snapshot(task, spec.checkpoint_id)
        watch.lap("snapshot")
    task.figures.update(
        delta_bytes=log.delta_bytes,
        snapshots=int(snapshot.handle is not None),
        snapshots_failed=int(bool(snapshot.error)),
    )
    return TaskChanges(
        handle,
        snapshot.handle,
        snapshot.error,
        next_due_ms,
        task.worker_state.state.entry_counts(task.key_range),
    )


def _input_of(spec: TaskSpec, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    if spec.rows.is_read:
        return batches
    for _ in batches:  # one row names the task, and Spark requires reading it
        pass
    return ()


def _load(
    worker_state: KeptState, spec: TaskSpec, key_group_range: KeyGroupRange
) -> tuple[ObjectStore, ChangelogStateBackendHandle]:
    # The whole object: the task most likely needs the change sets inside.
    stored = fetch_checkpoint(worker_state.store, spec.restore_id)
    return worker_state.store, stored.checkpoint.for_range(key_group_range)


def _snapshot(task: _Task, checkpoint_id: int) -> _Snapshot:
    """
    Write a snapshot for checkpoint *checkpoint_id*.

    A failure costs nothing, because the log has all changes.
    """
    try:
        fail_point("before-snapshot")
        return _Snapshot(_write_snapshot(task, checkpoint_id))
    except Exception as error:
        return _Snapshot(error=f"{type(error).__name__}: {error}"[:_ERROR_MAX])


def _write_snapshot(task: _Task, checkpoint_id: int) -> MaterializedHandle:
    # Always a file: inside the handle it would be part of every later checkpoint.
    key_group_range = task.spec.snapshots[task.partition]
    handle = task.files.write(PATHS.task_owned, task.run.snapshot(key_group_range))
    snapshot = MaterializedHandle(key_group_range, checkpoint_id, handle)
    task.worker_state.state.end_snapshot(snapshot)
    return snapshot


# The functions that Spark calls with a partition, one for each delivery.


def staged_task(spec: TaskSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task whose only result is its acknowledgement."""
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
