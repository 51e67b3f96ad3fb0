"""
Rewind source offsets and state of a query, together, to one micro-batch.

The order of the steps makes a crash harmless.  A claim fences a run that is still active.  One
commit makes the state that of the micro-batch: the point of no return.  Then Spark's files of later
micro-batches are deleted, newest first: `commits/`, `offsets/`, the logs of file sources.  A query
started in between is refused or continues exactly, because every checkpoint records how far the
sources were read; and the rewind can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from statelog.checkpoint.audit import audited
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.listing import CheckpointState, list_checkpoints
from statelog.checkpoint.offset_log import OFFSETS
from statelog.checkpoint.ownership import new_owner_id
from statelog.checkpoint.query_files import COMMITS, StoredQuery
from statelog.format.checkpoint_metadata import RESERVED_TAGS
from statelog.model import JsonObject, KeyGroupRange, TaskStateSnapshot
from statelog.operations.rewind_plan import (
    RewindPlan,
    RewindPoint,
    plan_rewind,
    refuse,
    rewind_points,
)
from statelog.options import CheckpointOptions
from statelog.runtime.fail_points import fail_point
from statelog.store import ObjectStore

__all__ = [
    "RewindPlan",
    "RewindPoint",
    "apply_rewind",
    "commit_again",
    "plan_rewind",
    "rewind_points",
]


def apply_rewind(
    query: StoredQuery, state: ObjectStore, plan: RewindPlan, clock_ms: Callable[[], int]
) -> int:
    """
    Carry out *plan*; after a crash, repeat it with a new plan.

    Args:
        query: The checkpointLocation.
        state: The state location.
        plan: The result of `plan_rewind`.
        clock_ms: Milliseconds since 1970 (UTC).

    Returns:
        The checkpoint that the query continues from.

    Raises:
        CheckpointError: The query ran after the plan was made (`reason` "active").  Before the
            commit nothing was changed; after it the rewind must be repeated.
        FencedError: A run has claimed the state location meanwhile.
        StoreError: A store failed; repeat the rewind.

    Blocks: On both stores.
    """
    with audited(
        state, "rewind", batch_id=plan.batch_id, checkpoint_location=query.store.url
    ) as line:
        goes_on_from = _rewound(query, state, plan, clock_ms)
        line.result(checkpoint_id=goes_on_from, files_deleted=len(plan.files))
    return goes_on_from


def _rewound(
    query: StoredQuery, state: ObjectStore, plan: RewindPlan, clock_ms: Callable[[], int]
) -> int:
    newest = _newest_readable(state)
    coordinator = CheckpointCoordinator(
        state,
        owner_id=new_owner_id("rewind"),
        max_parallelism=_max_parallelism(state, plan.checkpoint_id),
        options=CheckpointOptions(retained=max(1, len(newest.retained))),
        clock_ms=clock_ms,
    )
    coordinator.claim()
    fail_point("rewind-claimed")
    if plan_rewind(query, state, plan.batch_id) != plan:
        refuse("the query ran after the rewind was planned", "active")
    goes_on_from = plan.checkpoint_id
    if plan.changes_state:
        goes_on_from = commit_again(coordinator, state, plan.checkpoint_id, newest.went_back_to)
    fail_point("rewind-committed")
    query.delete(plan.commits)
    fail_point("rewind-commits-deleted")
    query.delete(plan.offsets)
    fail_point("rewind-offsets-deleted")
    query.delete(plan.logs)
    fail_point("rewind-logs-deleted")
    # Given-up checkpoints are left to garbage collection: an active run needs its own until its next
    # commit, where it is fenced.
    if query.files_above(OFFSETS, plan.batch_id) or query.files_above(COMMITS, plan.batch_id):
        refuse("the query planned micro-batches during the rewind", "active")
    return goes_on_from


def commit_again(
    coordinator: CheckpointCoordinator,
    state: ObjectStore,
    older_id: int,
    went_back_to: int | None,
) -> int:
    """
    Commit the state of an older checkpoint as the newest one; return its id.

    Args:
        coordinator: Of a claim of its own.
        state: The state location, as the root of a store.
        older_id: The older checkpoint.
        went_back_to: The checkpoint of the last rewind of the query, if any.

    Raises:
        CheckpointError: The older checkpoint cannot be restored.
        FencedError: A run has claimed the state location meanwhile.

    Blocks: On the store.
    """
    base = coordinator.restore(older_id)
    if base is None:
        refuse(f"checkpoint {older_id} does not exist", "not_found")
    stored = read_checkpoint(state, older_id)
    sections = {
        tag: data for tag, data in stored.sections.items() if tag not in RESERVED_TAGS
    }  # the staged rows of the micro-batch, in case it must be delivered again
    checkpoint_id = coordinator.next_checkpoint_id
    everything = KeyGroupRange(0, base.max_parallelism - 1)
    coordinator.trigger(checkpoint_id, [everything])
    coordinator.acknowledge(checkpoint_id, TaskStateSnapshot(everything, None))
    properties: JsonObject = {
        **base.properties,
        "went_back_to": went_back_to,
        "rewound": checkpoint_id,
    }
    coordinator.complete(checkpoint_id, properties=properties, sections=sections)
    return checkpoint_id


@dataclass(frozen=True, slots=True)
class _Newest:
    retained: tuple[int, ...]
    went_back_to: int | None


def _newest_readable(state: ObjectStore) -> _Newest:
    checkpoints = [checkpoint for checkpoint in list_checkpoints(state) if not checkpoint.problem]
    retained = tuple(
        each.checkpoint_id for each in checkpoints if each.state is CheckpointState.RETAINED
    )
    went_back_to = checkpoints[-1].properties.get("went_back_to") if checkpoints else None
    return _Newest(retained, went_back_to if isinstance(went_back_to, int) else None)


def _max_parallelism(state: ObjectStore, checkpoint_id: int) -> int:
    stored = read_checkpoint(state, checkpoint_id)
    return stored.checkpoint.max_parallelism
