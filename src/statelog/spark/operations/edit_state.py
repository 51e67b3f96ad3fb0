"""
Set and delete the state of keys by frames, as a new checkpoint of an existing location.

The driver claims the location, each task compares its keys with their state and writes what differs,
and the driver commits all of it at the source position of the checkpoint before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame

from statelog.arguments import whole_number
from statelog.checkpoint.audited import audited
from statelog.errors import UsageError
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.operations.edit_keys import EditTarget
from statelog.operations.key_edits import EditCounts
from statelog.operations.recommit import EditReport, Recommit, newest_checkpoint, result_of
from statelog.runtime.clock import wall_clock_seconds
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.operations.edit_task import EditAnswer, EditTask, edit_answers
from statelog.spark.operations.frames import check_frames, deleted_rows, state_id_of, state_rows
from statelog.spark.operations.snapshot_task import cores_of
from statelog.spark.operations.state_rows import DELETE_ALL, deleted_variable
from statelog.spark.query.session import use_this_python
from statelog.store import open_existing_store
from statelog.store.encryption import with_source

_TASKS_PER_CORE = 4


def edit_state(
    location: str | os.PathLike[str],
    *,
    set: Mapping[str, DataFrame] | None = None,
    delete: DataFrame | Mapping[str, DataFrame] | None = None,
    operator: str | None = None,
    dry_run: bool = False,
    tasks: int | None = None,
    store_options: Mapping[str, object] | None = None,
) -> EditReport:
    """
    Set and delete the state of keys by frames, as a new checkpoint.

    A query of the location must be stopped; one that runs is fenced, and its next start goes on at the
    same source position from the edited state.  Only keys whose state differs are written.

    Args:
        location: Path or URL of the state location.
        set: Frames by variable, in the columns that `spark.read.format("statelog")` returns.  The
            rows of a key are the whole new state of the variable: all elements of its list, all
            entries of its map, all its timers.
        delete: A frame with a column `key`: all state of these keys is deleted, timers too.  Or such
            frames by variable.  What is set for a key counts.
        operator: Name of the operator, where the query has several.
        dry_run: Only count what would change; nothing is claimed.
        tasks: Number of tasks; four for each core by default.
        store_options: Options of the store's client, as for `open_store`.

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
    place = os.fspath(location)
    store = open_existing_store(place, options=store_options)
    base = newest_checkpoint(store)
    target = EditTarget(store, base, operator)
    key_groups = target.key_groups
    rows = _rows(sets, deletes, target)
    if not is_connect(rows.sparkSession):
        use_this_python(rows.sparkSession)
    count = min(tasks or _TASKS_PER_CORE * cores_of(rows), len(key_groups))
    ranges = key_groups.split(whole_number(count, "tasks", low=1))
    with audited(store, "edit", operator=operator, variables=sorted(sets)) as line:
        commit = None if dry_run else Recommit(store, "edit-state")
        checkpoint_id = None if commit is None else commit.begin(base)
        task = EditTask(
            place,
            with_source(store_options),
            target.codec.schema.to_json(),
            ranges,
            base.checkpoint_id,
            checkpoint_id,
        )
        answers = edit_answers(rows, task, key_groups)
        counts = reduce(EditCounts.__add__, (one.counts for one in answers), EditCounts())
        written = commit is not None and counts.changed > 0
        if commit is not None and written:
            commit.commit(
                base,
                _changes(answers, ranges),
                timers_changed=frozenset(
                    [target.position] if any(one.timers_changed for one in answers) else []
                ),
            )
        report = EditReport(
            base_id=base.checkpoint_id,
            checkpoint_id=checkpoint_id if written else None,
            counts=counts,
            delta_bytes=sum(one.delta_bytes for one in answers),
        )
        line.result(**result_of(report))
    return report


def _rows(
    sets: Mapping[str, DataFrame], deletes: Mapping[str | None, DataFrame], target: EditTarget
) -> DataFrame:
    """Return all edits in one frame."""
    groups = target.key_groups
    now_ms = int(wall_clock_seconds() * 1000)
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
    by_partition = {one.partition: one.log for one in answers}
    return [
        TaskStateSnapshot(one, by_partition.get(partition)) for partition, one in enumerate(ranges)
    ]
