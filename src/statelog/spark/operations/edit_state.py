"""
Set and delete the state of keys by frames, as a new checkpoint of an existing location.

The driver claims the location, each task compares its keys with their state and writes what differs,
and the driver commits all of it at the source position of the checkpoint before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame

from statelog.arguments import whole_number
from statelog.checkpoint.audit import audited
from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.open_state import open_state
from statelog.errors import UsageError
from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    JsonObject,
    KeyGroupRange,
    TaskStateSnapshot,
)
from statelog.operations.change_writer import ChangeWriter
from statelog.operations.edit_keys import EditTarget
from statelog.operations.key_edits import EditCounts, GroupEdits, edited, restored_state
from statelog.operations.recommit import EditReport, Recommit, newest_checkpoint, result_of
from statelog.renamed import dry_run_by_default
from statelog.runtime.clock import wall_clock_ms
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.operations.frames import check_frames, deleted_rows, state_id_of, state_rows
from statelog.spark.operations.snapshot_task import cores_of
from statelog.spark.operations.state_rows import (
    DELETE_ALL,
    StateCells,
    StateRows,
    answers_of_tasks,
    deleted_variable,
)
from statelog.spark.query.session import use_this_python
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.schema.descriptors import TIMERS_NAME, OperatorStateSchema
from statelog.store import CachedStore, open_location
from statelog.store.encryption import with_source

# A task that applies the edits of a range of key groups to the state of a checkpoint.

_CACHED_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EditTask:
    """
    What a task is told.

    Args:
        location: The state location.
        storage_options: How to open it.
        schema: JSON of the operator's schema.
        ranges: Key groups of each task.
        base_id: The checkpoint that is edited.
        checkpoint_id: The new checkpoint; None to count only.
    """

    location: str
    storage_options: Mapping[str, object]
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
    return answers_of_tasks(
        rows, len(task.ranges), key_groups, task.location, partial(apply_rows, task)
    )


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
    store = open_location(task.location, options=dict(task.storage_options))
    cached = CachedStore(store, _CACHED_BYTES)
    base: CompletedCheckpoint | None = None
    counts, timers_changed = EditCounts(), False
    timers = [at for at in codec.live if codec.states[at].descriptor.name == TIMERS_NAME]
    with contextlib.closing(ChangeWriter(store, codec, key_groups)) as writer:
        for cells in StateRows(codec, key_groups).cells(batches):
            if base is None:
                base = read_checkpoint(cached, task.base_id).checkpoint
            edits = _edits_of(cells, codec)
            for part in _restored_together(edits):
                edits_of_part = {
                    key_group: edits[key_group] for key_group in part if key_group in edits
                }
                overlays, counted = edited(restored_state(cached, codec, base, part), edits_of_part)
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
    return [KeyGroupRange(key_group, key_group) for key_group in sorted(key_groups)]


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


_TASKS_PER_CORE = 4


@dry_run_by_default(store_options="storage_options")
def edit_state(
    location: str | os.PathLike[str],
    *,
    set: Mapping[str, DataFrame] | None = None,
    delete: DataFrame | Mapping[str, DataFrame] | None = None,
    operator: str | None = None,
    apply: bool = False,
    tasks: int | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> EditReport:
    """
    Set and delete the state of keys by frames, as a new checkpoint.

    A query of the location must be stopped; one that runs is fenced, and its next start goes on at the
    same source position from the edited state.  Only keys whose state differs are written.

    Example:
        frame = spark.read.format("statelog").load("s3://bucket/jobs/totals")
        gone = frame.where("value.total < 0").select("key")
        report = edit_state("s3://bucket/jobs/totals", delete=gone, apply=True)

    Args:
        location: Path or URL of the state location.
        set: Frames by variable, in the columns that `spark.read.format("statelog")` returns.  The
            rows of a key are the whole new state of the variable: all elements of its list, all
            entries of its map, all its timers.
        delete: A frame with a column `key`: all state of these keys is deleted, timers too.  Or such
            frames by variable.  What is set for a key counts.
        operator: Name of the operator, where the query has several.
        apply: Make the changes; False only counts them, and claims nothing.
        tasks: Number of tasks; four for each core by default.
        storage_options: Options of the store's client, as for `open_store`.

    Returns:
        The new checkpoint, and how many keys changed.

    Raises:
        UsageError: A variable is unknown, a frame has other columns or types, or a key has more than
            one value of a variable.
        CheckpointError: There is no checkpoint, or the query commits meanwhile (`reason` "active").
        FencedError: A query has claimed the location meanwhile; nothing was changed.
        StoreError: The store failed.

    Blocks: For one Spark job, and on the store.
    """
    sets = {} if set is None else check_frames(set)
    deletes: dict[str | None, DataFrame] = {}
    if isinstance(delete, Mapping):
        deletes.update(check_frames(delete))
    elif delete is not None:
        deletes[None] = check_frames({"delete": delete})["delete"]
    if not sets and not deletes:
        raise UsageError("edit_state needs frames to set or delete by")
    store = open_state(location, options=storage_options)
    base = newest_checkpoint(store)
    target = EditTarget(store, base, operator)
    key_groups = target.key_groups
    rows = _rows(sets, deletes, target)
    if not is_connect(rows.sparkSession):
        use_this_python(rows.sparkSession)
    count = min(tasks or _TASKS_PER_CORE * cores_of(rows), len(key_groups))
    ranges = key_groups.split(whole_number(count, "tasks", low=1))
    with audited(store, "edit", operator=operator, variables=sorted(sets)) as line:
        commit = Recommit(store, "edit-state") if apply else None
        checkpoint_id = None if commit is None else commit.begin(base)
        task = EditTask(
            store.url,
            with_source(storage_options),
            target.codec.schema.to_json(),
            ranges,
            base.checkpoint_id,
            checkpoint_id,
        )
        answers = edit_answers(rows, task, key_groups)
        counts = reduce(EditCounts.__add__, (answer.counts for answer in answers), EditCounts())
        written = commit is not None and counts.changed > 0
        if commit is not None and written:
            commit.commit(
                base,
                _changes(answers, ranges),
                timers_changed=frozenset(
                    [target.position] if any(answer.timers_changed for answer in answers) else []
                ),
            )
        report = EditReport(
            base_id=base.checkpoint_id,
            checkpoint_id=checkpoint_id if written else None,
            counts=counts,
            delta_bytes=sum(answer.delta_bytes for answer in answers),
        )
        line.result(**result_of(report))
    return report


def _rows(
    sets: Mapping[str, DataFrame], deletes: Mapping[str | None, DataFrame], target: EditTarget
) -> DataFrame:
    """Return all edits in one frame."""
    groups = target.key_groups
    now_ms = wall_clock_ms()
    parts = []
    if sets:
        parts.append(state_rows(sets, target.codec, len(groups), groups.start, now_ms))
    for name, frame in deletes.items():
        state_id = DELETE_ALL if name is None else deleted_variable(state_id_of(target.codec, name))
        parts.append(deleted_rows(frame, state_id, target.codec, len(groups), groups.start))
    return reduce(lambda left, right: left.unionAll(right), parts)


def _changes(
    answers: list[EditAnswer], ranges: tuple[KeyGroupRange, ...] | list[KeyGroupRange]
) -> list[TaskStateSnapshot]:
    by_partition = {answer.partition: answer.log for answer in answers}
    return [
        TaskStateSnapshot(each, by_partition.get(partition))
        for partition, each in enumerate(ranges)
    ]
