"""A task that writes sorted rows of state as one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint.stream_factory import FsCheckpointStreamFactory
from statelog.errors import InvariantError
from statelog.model import JsonObject, KeyGroupRange
from statelog.model.checkpoint import MaterializedHandle
from statelog.options import Options, task_changelog_options
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.operations.state_rows import StateRows, answers_of_tasks
from statelog.spark.worker.protocol import NEVER_MS
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import SnapshotWriter
from statelog.state.schema.descriptors import TIMERS_NAME, OperatorStateSchema
from statelog.store import PATHS, open_location


@dataclass(frozen=True, slots=True)
class SnapshotAnswer:
    """
    What a task wrote.

    Args:
        partition: Number of the task.
        snapshot: Its snapshot; None without rows.
        keys, entries: Their numbers.
        next_due_ms: Its first timer; `NEVER_MS` without.
    """

    partition: int
    snapshot: MaterializedHandle | None
    keys: int = 0
    entries: int = 0
    next_due_ms: int = NEVER_MS


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """What a task is told."""

    location: str
    storage_options: Mapping[str, object]
    fsync: bool
    schema: JsonObject
    ranges: Sequence[KeyGroupRange]
    checkpoint_id: int


def cores_of(frame: DataFrame) -> int:
    """Return the number of tasks that Spark runs at once; 2 where a client cannot ask."""
    session = frame.sparkSession
    return 2 if is_connect(session) else int(session.sparkContext.defaultParallelism)


def snapshots_of(
    rows: DataFrame, task: SnapshotTask, key_groups: KeyGroupRange
) -> list[SnapshotAnswer]:
    """Write the rows as snapshots, one for each task that has rows, and return the answers."""
    answers: list[SnapshotAnswer] = answers_of_tasks(
        rows, len(task.ranges), key_groups, task.location, partial(write_snapshot_of, task)
    )
    return sorted(answers, key=lambda answer: answer.partition)


def write_snapshot_of(
    task: SnapshotTask, partition: int, batches: Iterable[pa.RecordBatch]
) -> SnapshotAnswer:
    """
    Write sorted rows of state as one snapshot.

    Held in memory are the rows of a few key groups, and the compressed snapshot.

    Raises:
        UsageError: See `StateRows.cells`.
        StoreError: The store failed.
    """
    key_groups = task.ranges[partition]
    codec = OperatorCodec(OperatorStateSchema.from_json(task.schema))
    writer: SnapshotWriter | None = None
    keys = entries = 0
    due = NEVER_MS
    for cells in StateRows(codec, key_groups).cells(batches):
        writer = writer or SnapshotWriter(cells.table.schema)
        writer.write(cells.table)
        keys, entries = keys + cells.table.num_rows, entries + cells.entries
        due = min(due, first_timer(cells.table))
    if writer is None:
        return SnapshotAnswer(partition, None)
    store = open_location(task.location, options=dict(task.storage_options), fsync=task.fsync)
    options = Options(changelog=task_changelog_options())
    with FsStateChangelogStorage.from_options(options, store, job_id="") as storage:
        # Always a file, see `worker.task`.
        factory = FsCheckpointStreamFactory.for_checkpoint(
            store,
            task.checkpoint_id,
            paths=PATHS,
            threshold_bytes=0,
            put=storage.objects.put,
        )
        with factory.create_task_owned_state_stream() as stream:
            stream.write(writer.finish())
            handle = stream.close_and_get_handle()
    if handle is None:
        raise InvariantError("a snapshot cannot be empty: a Parquet file has a footer")
    snapshot = MaterializedHandle(key_groups, task.checkpoint_id, handle)
    return SnapshotAnswer(partition, snapshot, keys, entries, due)


def first_timer(table: pa.Table) -> int:
    """Return the first timer in the columns of a snapshot; `NEVER_MS` without."""
    if TIMERS_NAME not in table.column_names:
        return NEVER_MS
    first = [pc.min(chunk.flatten()).as_py() for chunk in table.column(TIMERS_NAME).chunks]
    return min((time for time in first if time is not None), default=NEVER_MS)
