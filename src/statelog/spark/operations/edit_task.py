"""A task that applies the edits of a range of key groups to the state of a checkpoint."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from statelog.checkpoint.history import read_checkpoint
from statelog.errors import UsageError
from statelog.model import ChangelogStateHandle, CompletedCheckpoint, JsonObject, KeyGroupRange
from statelog.operations.change_writer import ChangeWriter
from statelog.operations.key_edits import EditCounts, GroupEdits, edited, restored_state
from statelog.spark.operations.state_rows import ORDER_COLUMN, STATE_COLUMN, StateCells, StateRows
from statelog.spark.query.keyed_frame import by_task
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN
from statelog.spark.worker.failures import reported_to_driver
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.schema.descriptors import TIMERS_NAME, OperatorStateSchema
from statelog.store import CachedStore, LocationPaths, open_location

_CACHED_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EditTask:
    """
    What a task is told.

    Args:
        location: The state location.
        store_options: How to open it.
        schema: JSON of the operator's schema.
        ranges: Key groups of each task.
        base_id: The checkpoint that is edited.
        checkpoint_id: The new checkpoint; None to count only.
    """

    location: str
    store_options: Mapping[str, object]
    schema: JsonObject
    ranges: Sequence[KeyGroupRange]
    base_id: int
    checkpoint_id: int | None


@dataclass(frozen=True, slots=True)
class EditAnswer:
    """
    What a task did.

    Args:
        partition: Its number.
        log: The changes; None without, or when only counted.
        counts: Number of keys.
        delta_bytes: Bytes of the changes.
        timers_changed: Whether a timer changed.
    """

    partition: int
    log: ChangelogStateHandle | None
    counts: EditCounts
    delta_bytes: int = 0
    timers_changed: bool = False


def edit_answers(rows: DataFrame, task: EditTask, key_groups: KeyGroupRange) -> list[EditAnswer]:
    """Apply the rows in one Spark job, and return the answers of the tasks that had rows."""
    ordered = by_task(rows, len(task.ranges), key_groups).sortWithinPartitions(
        INPUT_KEY_GROUP_COLUMN, STATE_COLUMN, ORDER_COLUMN
    )
    table = ordered.mapInArrow(partial(_edit_task, task), "answer binary").toArrow()
    return [pickle.loads(data) for data in table.column("answer").to_pylist()]


def _edit_task(task: EditTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(task.location):
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        if partition >= len(task.ranges):
            raise UsageError("Spark changed the number of partitions of the edited keys")
        answer = apply_rows(task, partition, batches)
    yield pa.RecordBatch.from_pydict({"answer": [pickle.dumps(answer)]})


def apply_rows(task: EditTask, partition: int, batches: Iterable[pa.RecordBatch]) -> EditAnswer:
    """
    Apply sorted rows of edits; held in memory are a few key groups at a time.

    Raises:
        UsageError: See `StateRows.cells`.
        CorruptionError: An object of the checkpoint is damaged.
        StoreError: The store failed.
    """
    key_groups = task.ranges[partition]
    codec = OperatorCodec(OperatorStateSchema.from_json(task.schema))
    store = open_location(task.location, options=dict(task.store_options))
    cached = CachedStore(store, _CACHED_BYTES)
    base: CompletedCheckpoint | None = None
    counts, timers_changed = EditCounts(), False
    timers = [at for at in codec.live if codec.states[at].descriptor.name == TIMERS_NAME]
    with contextlib.closing(ChangeWriter(store, codec, key_groups)) as writer:
        for cells in StateRows(codec, key_groups).cells(batches):
            if base is None:
                base = read_checkpoint(cached, LocationPaths(), task.base_id).checkpoint
            edits = _edits_of(cells, codec)
            for part in _restored_together(edits):
                own = {key_group: edits[key_group] for key_group in part if key_group in edits}
                overlays, counted = edited(restored_state(cached, codec, base, part), own)
                counts += counted
                timers_changed = timers_changed or any(
                    overlay[at] for overlay in overlays.values() for at in timers
                )
                if task.checkpoint_id is not None:
                    writer.append(overlays)
        log = None if task.checkpoint_id is None else writer.persist(task.checkpoint_id)
    return EditAnswer(partition, log, counts, writer.delta_bytes, timers_changed)


def _restored_together(key_groups: Collection[int]) -> list[KeyGroupRange]:
    """Return ranges with all of *key_groups*: one range, unless they are few in it."""
    whole = KeyGroupRange(min(key_groups), max(key_groups))
    if 2 * len(key_groups) > len(whole):
        return [whole]
    return [KeyGroupRange(one, one) for one in sorted(key_groups)]


def _edits_of(cells: StateCells, codec: OperatorCodec) -> dict[int, GroupEdits]:
    """Return the cells and the deletions of some key groups."""
    table = cells.table
    groups = table.column(0).to_pylist()
    width = len(codec.key.schema)
    keys = codec.key.decode([table.column(at).combine_chunks() for at in range(1, 1 + width)])
    edits = {key_group: GroupEdits() for key_group in groups}
    for number, state_id in cells.deletions:
        edits[groups[number]].delete(keys[number], state_id)
    for at, state_id in enumerate(codec.live):
        column = table.column(1 + width + at).combine_chunks()
        for key_group, key, cell in zip(
            groups, keys, codec.states[state_id].decode_cells(column), strict=True
        ):
            if cell:
                edits[key_group].put(key, state_id, cell)
    return edits
