"""
Write the state of an operator from frames, without a stream.

The rows are shuffled by key group, as the rows of a micro-batch are.  Each task writes its key groups as
one snapshot, and the driver commits all of them as the first checkpoint of a new location.  The
checkpoint belongs to no query: the first new query of the same operator goes on from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Unpack

from pyspark.sql import DataFrame

from statelog.checkpoint.audit import audited
from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.history import Entries
from statelog.checkpoint.ownership import new_owner_id
from statelog.errors import CheckpointError
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.runtime.clock import wall_clock_ms
from statelog.spark.api import DEFAULT_OPERATOR_ID
from statelog.spark.jvm.gateway import is_connect, settings_of
from statelog.spark.operations.frames import (
    check_frames,
    key_schema_of,
    session_of_frames,
    state_rows,
)
from statelog.spark.operations.snapshot_task import (
    SnapshotAnswer,
    SnapshotTask,
    cores_of,
    snapshots_of,
)
from statelog.spark.query.declared_state import operator_schema
from statelog.spark.query.query import TIME_MODES, mode_of
from statelog.spark.query.resolve import refuse_unknown_arguments, resolve_settings
from statelog.spark.query.session import parse_schema, use_this_python
from statelog.spark.query.settings import OperatorSettings, QuerySettings
from statelog.spark.rows.spark_versions import StatefulProcessor
from statelog.spark.rows.types import arrow_schema
from statelog.spark.worker.protocol import NEVER_MS
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.schema.descriptors import OperatorStateSchema
from statelog.store import ObjectStore, open_location

BEFORE_ANY_BATCH: Final = -1
"""The batch id of a checkpoint that no micro-batch made."""
_TASKS_PER_CORE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenState:
    """
    What `write_state` wrote.

    Args:
        location: The state location.
        checkpoint_id: The checkpoint.
        keys: Number of keys.
        entries: Number of values, list elements, map entries and timers.
        size_bytes: Bytes of the snapshots.
        tasks: Number of tasks, and at most so many snapshots.
    """

    location: str
    checkpoint_id: int
    keys: int
    entries: int
    size_bytes: int
    tasks: int


def write_state(
    location: str | os.PathLike[str],
    statefulProcessor: StatefulProcessor,
    frames: Mapping[str, DataFrame],
    timeMode: str = "None",
    **settings: Unpack[OperatorSettings],
) -> WrittenState:
    """
    Write the state of a processor from batch frames, to a new location.

    A query of `transform_with_state` with the same processor, timeMode, operatorId and maxParallelism,
    a new checkpointLocation and this location as stateLocation goes on from the state.  `statelog.open`,
    `spark.read.format("statelog")` and the command line read it.

    A frame has the columns that `spark.read.format("statelog")` returns: `key` and `value`, which
    are structs, `position` for list state, `user_key` for map state, and `expires_at_ms` if
    wanted, where the variable has a time to live; without it entries expire one time to live from now.
    The variable `$timers` has `key` and `fires_at_ms`.  Fields are found by name.

    Example:
        totals = spark.sql("SELECT struct('c9' AS customer) AS key, struct(5.0D AS total) AS value")
        written = write_state("s3://bucket/jobs/computed", Totals(), {"total": totals})

    Args:
        location: Path or URL; it may not have a checkpoint yet.
        statefulProcessor: The processor, whose `init` declares the variables.
        frames: Batch frames by variable; a variable without one is empty.
        timeMode: That of the query: "None", "ProcessingTime" or "EventTime".
        settings: As for `transform_with_state`; `tasks` is the number of tasks here too, four for
            each core by default.

    Returns:
        The checkpoint, and how much it holds.

    Raises:
        UsageError: A variable is unknown, a frame has other columns or types, or a key has more than
            one value of a variable.
        CheckpointError: The location has a checkpoint already (`reason` "not_empty").
        FencedError: Another owner claimed the location meanwhile; nothing was committed.
        ProcessorError: The processor's `init` failed.
        StoreError: The store failed; nothing was committed.

    Blocks: For one Spark job, and on the store.
    """
    named = check_frames(frames)
    time_mode = mode_of("timeMode", timeMode, TIME_MODES)
    refuse_unknown_arguments(settings, "write_state")
    session = session_of_frames(named)
    if not is_connect(session):
        use_this_python(session)
    place = os.fspath(location)
    resolved = resolve_settings(settings_of(session), {**settings, "stateLocation": place})
    schema = operator_schema(
        statefulProcessor,
        resolved.operator_id or DEFAULT_OPERATOR_ID,
        arrow_schema(key_schema_of(named)),
        lambda ddl: parse_schema(session, ddl),
        time_mode=time_mode,
    )
    now_ms = wall_clock_ms()
    groups = resolved.max_parallelism
    rows = state_rows(named, OperatorCodec(schema), groups, 0, now_ms)
    store = open_location(place, options=dict(resolved.storage_options), fsync=resolved.fsync)
    with audited(
        store, "write-state", operator=schema.operator_id, variables=sorted(named)
    ) as line:
        coordinator = _claimed(store, resolved)
        tasks = min(resolved.tasks or _TASKS_PER_CORE * cores_of(rows), groups)
        everything = KeyGroupRange(0, groups - 1)
        task = SnapshotTask(
            place,
            resolved.storage_options,
            resolved.fsync,
            schema.to_json(),
            everything.split(tasks),
            coordinator.next_checkpoint_id,
        )
        answers = snapshots_of(rows, task, everything)
        _commit(coordinator, task, answers, schema, time_mode)
        line.result(checkpoint_id=task.checkpoint_id, keys=sum(answer.keys for answer in answers))
    written = [answer.snapshot for answer in answers if answer.snapshot is not None]
    return WrittenState(
        location=place,
        checkpoint_id=task.checkpoint_id,
        keys=sum(answer.keys for answer in answers),
        entries=sum(answer.entries for answer in answers),
        size_bytes=sum(each.handle.size_bytes for each in written),
        tasks=len(task.ranges),
    )


def _claimed(store: ObjectStore, settings: QuerySettings) -> CheckpointCoordinator:
    """Claim a location without a checkpoint."""
    _check_is_empty(store)
    coordinator = CheckpointCoordinator(
        store,
        owner_id=new_owner_id("write-state"),
        max_parallelism=settings.max_parallelism,
        options=settings.checkpoints,
        clock_ms=wall_clock_ms,
    )
    coordinator.claim()
    _check_is_empty(store)
    coordinator.restore()
    return coordinator


def _check_is_empty(store: ObjectStore) -> None:
    newest = Entries(store).newest()
    if newest is not None:
        raise CheckpointError(
            f"{store.url} holds checkpoint {newest.checkpoint_id}; write_state needs a new location. "
            "To change state that exists, use edit_state",
            reason="not_empty",
            checkpoint_id=newest.checkpoint_id,
        )


def _commit(
    coordinator: CheckpointCoordinator,
    task: SnapshotTask,
    answers: Sequence[SnapshotAnswer],
    schema: OperatorStateSchema,
    time_mode: str,
) -> None:
    by_partition = {each.partition: each for each in answers}
    coordinator.trigger(task.checkpoint_id, task.ranges)
    for partition, each in enumerate(task.ranges):
        answer = by_partition.get(partition)
        snapshot = None if answer is None else answer.snapshot
        coordinator.acknowledge(task.checkpoint_id, TaskStateSnapshot(each, None, snapshot))
    keys = sum(each.keys for each in answers)
    entries = sum(each.entries for each in answers)
    record = BatchRecord(
        operators=(
            OperatorRecord(
                operator_id=schema.operator_id,
                schema=schema.to_json(),
                rows=entries,
                keys=keys,
                output_rows=0,
                state_entries=entries,
                next_due_ms=min((each.next_due_ms for each in answers), default=NEVER_MS),
            ),
        ),
        query_id="",
        batch_id=BEFORE_ANY_BATCH,
        location="",
        timeline=0,
        tasks=len(task.ranges),
        delivery="staged",
        time_mode=time_mode,
        now_ms=-1 if time_mode == "none" else wall_clock_ms(),
        delta_bytes=0,
        output_bytes=0,
        output_files=[],
    )
    coordinator.complete(task.checkpoint_id, properties=record.to_properties())
