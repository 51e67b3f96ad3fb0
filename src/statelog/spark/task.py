"""
What runs in a Python worker: one task of one micro-batch.

A task owns a range of key groups.  It brings the worker's cached state to the last committed
checkpoint, runs the user's processor over its keys, appends the deltas to the changelog, and
acknowledges with the handles.  Nothing it writes counts before the driver commits.

Spark gives a partition to any worker and may kill idle ones, so nothing here relies on what was
cached; it only makes things faster.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext

from statelog.changelog.scheduler import DirectStateChangeUploadScheduler
from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.uploader import InlineStateChangeUploader, StateChangeFsUploader
from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.stream_factory import FsCheckpointStreamFactory
from statelog.errors import InvariantError, UsageError
from statelog.format.change_set import checksum
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.model.handles import FileStateHandle
from statelog.runtime.fail_points import fail_point
from statelog.runtime.ids import RandomIds
from statelog.spark.initial_state import split_batches
from statelog.spark.late_rows import LateCount
from statelog.spark.outputs import to_ipc
from statelog.spark.rows import InputLayout
from statelog.spark.run import KeyedInput, ProcessorRun
from statelog.spark.skew import RowCounter
from statelog.spark.spec import TaskAck, TaskSpec
from statelog.spark.stopwatch import Stopwatch
from statelog.spark.types import make_row
from statelog.spark.watermark import check_event_times
from statelog.state.changes import OperatorCodec
from statelog.state.keyed_state import KeyedState
from statelog.state.schema import OperatorStateSchema
from statelog.state.tables import Overlay
from statelog.store import CachedStore, LocationPaths, ObjectStore, open_store

_CACHED_BYTES = 64 * 1024 * 1024
_FREEZE_GROWTH = 1.5
_ERROR_MAX = 2000


class _Worker:
    """What this process keeps between tasks, for one state location."""

    def __init__(self, spec: TaskSpec, codec: OperatorCodec) -> None:
        self.epoch = spec.epoch
        self.store = CachedStore(
            open_store(spec.location, options=spec.store_options, fsync=spec.fsync), _CACHED_BYTES
        )
        self.paths = LocationPaths()
        self.ids = RandomIds()
        backend = spec.backend
        self.state = KeyedState(codec, backend.limits(), backend.opener(spec.location, self.ids))
        self.frozen_entries = 0
        uploader = StateChangeFsUploader(self.store, self.paths, self.ids)
        self.storage = FsStateChangelogStorage(
            self.store,
            job_id="",
            scheduler=DirectStateChangeUploadScheduler(
                InlineStateChangeUploader(spec.inline_bytes, uploader, self.ids)
            ),
        )


_workers: dict[str, _Worker] = {}


def _worker(spec: TaskSpec) -> _Worker:
    worker = _workers.get(spec.location)
    # A new epoch is a new run of the query, maybe from an older checkpoint: start clean.
    if worker is None or worker.epoch != spec.epoch:
        codec = OperatorCodec(OperatorStateSchema.from_json(spec.schema), make_row)
        worker = _workers[spec.location] = _Worker(spec, codec)
    return worker


def run_task(
    spec: TaskSpec, batches: Iterable[pa.RecordBatch], acknowledge: Callable[[TaskAck], None]
) -> Iterator[pa.RecordBatch]:
    """
    Process one partition of a micro-batch.

    Args:
        spec: What to do.
        batches: The input: key group, computed key columns, input columns.
        acknowledge: Takes the answer once everything the task wrote is durable.

    Returns:
        The output rows, unless they are staged.

    Raises:
        ProcessorError: The user's processor failed.
    """
    # A task makes hundreds of thousands of objects that die by reference count; the collector's
    # passes over them and over the state would cost more than all the rest.  PySpark's daemon
    # collects after every task.
    collecting = gc.isenabled()
    gc.disable()
    try:
        output = _run(spec, batches, acknowledge)
    finally:
        if collecting:
            gc.enable()
    if not spec.staged and output.num_rows:
        yield output


def _run(
    spec: TaskSpec, batches: Iterable[pa.RecordBatch], acknowledge: Callable[[TaskAck], None]
) -> pa.RecordBatch:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    if partition >= len(spec.ranges):
        raise changed_partitions()
    watch = Stopwatch()
    worker = _worker(spec)
    objects, object_bytes = worker.store.objects_put, worker.store.bytes_put
    key_group_range = spec.ranges[partition]
    ack = TaskAck(partition, key_group_range)
    ack.caught_up = worker.state.catch_up(
        key_group_range, spec.base_id, spec.committed, lambda: _load(worker, spec, key_group_range)
    )
    worker.state.sweep(key_group_range, spec.now_ms)
    watch.lap("catch_up")
    late = LateCount()
    if spec.reads_input and spec.late is not None:
        batches = spec.late.left_out(batches, late)
    counter = RowCounter(key_group_range, spec.key_positions)
    read = spec.reads_input and spec.initial is None
    counted = counter.through(batches) if read else _input_of(spec, batches)
    rows, initial = read_input(spec, worker.state.codec, counted)
    _check_range(partition, spec, rows)
    ack.late_rows = late.rows
    ack.top_groups, ack.top_keys = counter.groups(), counter.keys()
    watch.lap("input")
    watch.milliseconds["wait"] = counter.waited_ms
    output_rows = spec.flavour.output(spec.output, spec.batch_id)
    run = ProcessorRun(spec, worker.state, key_group_range, rows, output_rows, initial)
    run.process()
    ack.rows, ack.keys, ack.next_due_ms = rows.row_count, run.key_count, run.next_due_ms()
    watch.lap("process")
    output = run.output.batch()
    if spec.event_time_output is not None:
        check_event_times(output, spec.event_time_output, spec.watermark_ms, spec.batch_id)
    ack.output_rows = output.num_rows
    watch.lap("output")
    _append(worker, spec, run.overlays, run, ack)
    fail_point("between-uploads")
    watch.lap("append")
    if partition in spec.snapshots:
        _snapshot(worker, spec, spec.snapshots[partition], run.overlays, ack)
        watch.lap("snapshot")
    if spec.staged:
        ack.output = _stage_output(worker, spec, output)
        watch.lap("stage")
    ack.group_entries = [
        worker.state.entry_count(KeyGroupRange(one, one)) for one in key_group_range
    ]
    ack.entries = sum(ack.group_entries)
    ack.objects = worker.store.objects_put - objects
    ack.object_bytes = worker.store.bytes_put - object_bytes
    _freeze(worker)
    ack.milliseconds = watch.milliseconds
    fail_point("before-acknowledge")
    acknowledge(ack)
    return output


def _check_range(partition: int, spec: TaskSpec, rows: KeyedInput) -> None:
    """
    Check that the task has the rows of its own key groups, and no others.

    Raises:
        UsageError: A sink of direct delivery has changed the partitions.
    """
    key_group_range = spec.ranges[partition]
    if any(key_group not in key_group_range for key_group in rows.key_groups()):
        raise changed_partitions()


def changed_partitions() -> UsageError:
    """Return the error for a sink of direct delivery that tears the tasks apart."""
    return UsageError(
        "the sink changes the partitions of the frame without a shuffle (coalesce, union), but "
        "with direct delivery they are the stateful tasks: use repartition, or delivery='staged'. "
        "Nothing of this batch was committed"
    )


def read_input(
    spec: TaskSpec, codec: OperatorCodec, batches: Iterable[pa.RecordBatch]
) -> tuple[KeyedInput, KeyedInput | None]:
    """Return the input rows and, in a first batch that carries them, those of initial state."""
    initial = None
    if spec.initial is not None:
        batches, initial_batches = split_batches(batches, spec.initial)
        initial = spec.flavour.input(spec.initial.layout, codec.key)
        initial.read(initial_batches)
    rows = spec.flavour.input(InputLayout(spec.key_positions, spec.first_input), codec.key)
    rows.read(batches)
    return rows, initial


def _input_of(spec: TaskSpec, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    if spec.reads_input:
        return batches
    for _ in batches:  # what stands for a partition of an idle tick; Spark wants it read
        pass
    return ()


def _load(
    worker: _Worker, spec: TaskSpec, key_group_range: KeyGroupRange
) -> tuple[ObjectStore, ChangelogStateBackendHandle]:
    # Read whole: the change sets inside are what the task most likely misses.
    stored = read_checkpoint(worker.store, worker.paths, spec.base_id, whole=True)
    return worker.store, stored.record.checkpoint.for_range(key_group_range)


def _append(
    worker: _Worker, spec: TaskSpec, overlays: dict[int, Overlay], run: ProcessorRun, ack: TaskAck
) -> None:
    """Append the deltas to the changelog and make them durable, inline or in a file."""
    codec = worker.state.codec
    try:
        changes = codec.encode(overlays)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise run.explain_unfit(error) from error
    if not len(changes):
        return
    writer = worker.storage.create_writer(codec.schema.operator_id, ack.key_group_range)
    with writer:
        writer.append_meta(codec.metadata_change())
        writer.append_batch(changes.key_groups, changes.values)
        persisted = writer.persist(
            writer.initial_sequence_number(), checkpoint_id=spec.checkpoint_id
        )
        handle = persisted.result().job_manager_owned
        ack.log = handle
        ack.delta_bytes = changes.size_bytes
        if handle is not None:
            worker.state.stage(
                spec.checkpoint_id,
                spec.base_id,
                handle.state_handle_id,
                ack.key_group_range,
                overlays,
            )


def _snapshot(
    worker: _Worker,
    spec: TaskSpec,
    key_group_range: KeyGroupRange,
    overlays: dict[int, Overlay],
    ack: TaskAck,
) -> None:
    """Write a snapshot; a failure is only told, because the log has everything."""
    try:
        fail_point("before-snapshot")
        ack.materialized = _materialize(worker, spec, key_group_range, overlays)
    except Exception as error:
        ack.snapshot_error = f"{type(error).__name__}: {error}"[:_ERROR_MAX]


def _materialize(
    worker: _Worker,
    spec: TaskSpec,
    key_group_range: KeyGroupRange,
    overlays: dict[int, Overlay],
) -> MaterializedHandle:
    # Always a file: in the handle it would travel in every later checkpoint too.
    data = worker.state.snapshot(key_group_range, overlays, spec.now_ms)
    factory = FsCheckpointStreamFactory.for_checkpoint(
        worker.store, worker.paths, spec.checkpoint_id, threshold_bytes=0
    )
    with factory.create_task_owned_state_stream() as stream:
        stream.write(data)
        handle = stream.close_and_get_handle()
    if handle is None:
        raise InvariantError("a snapshot cannot be empty: a Parquet file has a footer")
    materialized = MaterializedHandle(key_group_range, spec.checkpoint_id, handle)
    worker.state.end_snapshot(materialized)
    return materialized


def _stage_output(
    worker: _Worker, spec: TaskSpec, output: pa.RecordBatch
) -> bytes | FileStateHandle | None:
    if not output.num_rows:
        return None
    data = to_ipc([output], spec.output)
    if len(data) <= spec.inline_bytes:
        return data
    path = worker.paths.output(worker.ids.new_id())
    worker.store.put(path, data)
    return FileStateHandle(path, len(data), checksum([data]))


def _freeze(worker: _Worker) -> None:
    """
    Take the state out of the garbage collector's sight once it has grown much.

    PySpark's daemon runs a full collection after every task; walking a large state each time
    would cost more than the task.  What is in columns it does not see anyway.
    """
    entries = worker.state.object_count()
    worker.frozen_entries = min(worker.frozen_entries, entries)
    if entries > 100_000 and entries > worker.frozen_entries * _FREEZE_GROWTH:
        gc.collect()
        gc.freeze()
        worker.frozen_entries = entries
