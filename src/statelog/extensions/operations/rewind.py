"""
Rewind the source offsets and the state of a query together to one micro-batch.

The order of the steps makes a crash harmless.  A claim fences a run that is still active.  One
commit restores the state of the micro-batch; from then on the rewind can only be completed.  Then
Spark's files for later micro-batches are deleted, newest first: `commits/`, `offsets/`, the logs of
file sources.  A query started in between is refused or continues exactly, because every checkpoint
records how far the sources were read; and the rewind can be repeated.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.edit import edit_session
from statelog.checkpoint.history import Entries, is_state, open_state
from statelog.checkpoint.listing import CheckpointState, CheckpointSummary, list_checkpoints
from statelog.checkpoint.query_files import COMMITS, OFFSETS, StoredQuery
from statelog.checkpoint.restore import find_restore_point
from statelog.errors import CheckpointError, CorruptionError, UsageError
from statelog.extensions.operations.position_files import (
    SOURCES,
    check_sources,
    kept_entries,
    missing_files,
    read_again,
    refuse,
)
from statelog.runtime.clock import wall_clock_seconds
from statelog.runtime.fail_points import fail_point
from statelog.store import ObjectStore, open_query_files
from statelog.store.paths import STATE_FOLDER

MIN_IDLE: Final = dt.timedelta(minutes=1)
"""If Spark planned a micro-batch more recently, the query may be running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPoint:
    """
    A micro-batch to which source offsets and state can be rewound.

    Args:
        batch_id: The micro-batch.
        checkpoint_id: The checkpoint that holds the state after it.
        created_at_ms: When it was committed, milliseconds since 1970.
        problem: Why a rewind to it is not possible, or "".
    """

    batch_id: int
    checkpoint_id: int
    created_at_ms: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindReport:
    """
    The changes that a rewind would make, or has made.

    Args:
        batch_id: The last micro-batch that is kept.
        checkpoint_id: The checkpoint that holds the state after it.
        newest_id: The newest checkpoint.
        newest_batch_id: The newest micro-batch that Spark has planned.
        commits, offsets, logs: Files to delete, in this order.
        input_files: Number of input files that are read again.
        missing_files: Those that no longer exist on local disk: their rows cannot be read again.
        idle: Time since Spark has planned a micro-batch; None if it has planned none.
        continues_from: The checkpoint that the query continues from; None for a dry run.
    """

    batch_id: int
    checkpoint_id: int
    newest_id: int
    newest_batch_id: int
    commits: tuple[str, ...]
    offsets: tuple[str, ...]
    logs: tuple[str, ...]
    input_files: int
    missing_files: tuple[str, ...]
    idle: dt.timedelta | None = field(default=None, compare=False)
    continues_from: int | None = None

    @property
    def changes_state(self) -> bool:
        """Whether checkpoints after the micro-batch are discarded."""
        return self.newest_id > self.checkpoint_id

    @property
    def files(self) -> tuple[str, ...]:
        """All files to delete, in order."""
        return (*self.commits, *self.offsets, *self.logs)


def rewind(
    checkpoint_location: str | os.PathLike[str],
    batch_id: int,
    *,
    state_location: str | os.PathLike[str] | None = None,
    min_idle: dt.timedelta = MIN_IDLE,
    apply: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> RewindReport:
    """
    Rewind a stopped query's source offsets and state to one micro-batch.

    The state after the micro-batch becomes the newest checkpoint.  Spark's files for later
    micro-batches are deleted, so the query plans and reads them again.  A run that is still active
    is fenced and fails at its next commit.  Repeat an interrupted call with the same arguments.  A
    sink that stores batch ids must delete the later ones.

    Example:
        plan = statelog.rewind(
            "s3://bucket/queries/totals", 0, state_location="s3://bucket/jobs/totals"
        )
        print(plan.files)  # with apply=True they are deleted

    Args:
        checkpoint_location: The query's checkpointLocation.
        batch_id: The last micro-batch to keep.
        state_location: The query's stateLocation; None for the folder `statelog` of the
            checkpointLocation.
        min_idle: Reject *apply* if Spark planned a micro-batch more recently, because the query may
            be running.
        apply: Make the changes; False only reports them.
        storage_options: Options of the store's client, as for `open_store`, for both places.

    Raises:
        CheckpointError: The checkpoint is not retained (`reason` "subsumed"), the offsets are
            missing or do not match the state, or a run seems to be active ("active").
        UsageError: *batch_id* is negative, or a place does not exist.
        FencedError: A query has claimed the location meanwhile.
        StoreError: A store failed; repeat the call.

    Blocks: On both stores; the retained checkpoints are listed, and one is read whole.
    """
    query, state = open_stopped_query(checkpoint_location, state_location, storage_options)
    if batch_id < 0:
        raise UsageError(f"batch_id (--batch-id) is {batch_id}; batch ids start at 0")
    report = replace(plan_rewind(query, state, batch_id), idle=_idle(query))
    if not apply:
        return report
    if report.idle is not None and report.idle < min_idle:
        raise CheckpointError(
            f"Spark planned a micro-batch {report.idle.total_seconds():.0f} s ago, so the query may be "
            f"running. Stop it and repeat the call {min_idle.total_seconds():.0f} s after its last "
            "micro-batch; or set min_idle (--min-idle) to 0 s if you are sure that it has ended. Nothing was "
            "changed",
            reason="active",
        )
    continues_from = report.checkpoint_id
    if report.changes_state or report.files:
        continues_from = apply_rewind(
            query, state, report, lambda: int(wall_clock_seconds() * 1000)
        )
    return replace(report, continues_from=continues_from)


def open_stopped_query(
    checkpoint_location: str | os.PathLike[str],
    state_location: str | os.PathLike[str] | None,
    storage_options: Mapping[str, object] | None = None,
) -> tuple[StoredQuery, ObjectStore]:
    """Open the checkpointLocation of a query, and its state."""
    query = StoredQuery(open_query_files(checkpoint_location, options=storage_options))
    query.query_id()
    place = state_location
    if place is None:
        place = f"{os.fspath(checkpoint_location).rstrip('/')}/{STATE_FOLDER}"
    try:
        state = open_state(place, options=storage_options)
        if is_state(state):
            return query, state
        problem = f"{state.url} is not a state location"
    except UsageError as error:
        if state_location is not None:
            raise
        problem = str(error)
    hint = ". Pass the query's stateLocation as state_location (--state-location)"
    raise UsageError(problem + (hint if state_location is None else ""))


def _idle(query: StoredQuery) -> dt.timedelta | None:
    """Return how long ago Spark last wrote a micro-batch."""
    written = query.last_written()
    if written is None:
        return None
    now = dt.datetime.fromtimestamp(wall_clock_seconds(), dt.UTC)
    return max(now - written, dt.timedelta(0))


def rewind_points(query: StoredQuery, state: ObjectStore) -> list[RewindPoint]:
    """Return the micro-batches whose state is retained, ascending, and what prevents a rewind."""
    points = []
    for summary, record in _retained(state, query.query_id()):
        problem = ""
        try:
            check_sources(query, record, record.batch_id)
        except (CheckpointError, CorruptionError) as error:
            problem = str(error)
        points.append(
            RewindPoint(
                batch_id=record.batch_id,
                checkpoint_id=summary.checkpoint_id,
                created_at_ms=summary.created_at_ms or 0,
                problem=problem,
            )
        )
    by_batch = {point.batch_id: point for point in points}
    return [by_batch[batch_id] for batch_id in sorted(by_batch)]


def plan_rewind(query: StoredQuery, state: ObjectStore, batch_id: int) -> RewindReport:
    """Return the changes that a rewind would make, without making them."""
    summary, record = _state_after(query, state, batch_id)
    if query.has_state_of_spark():
        refuse(
            f"{query.url} contains state of one of Spark's own operators (in state/), which a rewind "
            "does not cover. Start with a new checkpointLocation and adopt=True instead",
            "foreign_state",
        )
    offsets = check_sources(query, record, batch_id)
    # Read whole, with all its objects: a rewind to a damaged checkpoint could not be restored.
    find_restore_point(Entries(state), summary.checkpoint_id)
    commits = query.files_above(COMMITS, batch_id)
    # An empty entry was cut off by a crash: it is deleted too, so that Spark repeats the batch.
    if query.read(f"{COMMITS}/{batch_id}") == b"":
        commits += query.files_above(COMMITS, batch_id - 1)[len(commits) :]
    kept_upto = kept_entries(record.source_folders, offsets)
    for folder, entry in kept_upto.items():
        _check_log(query, folder, entry)
    logs, listed = read_again(query, kept_upto)
    newest_id = Entries(state).newest_id()  # it may be damaged
    return RewindReport(
        batch_id=batch_id,
        checkpoint_id=summary.checkpoint_id,
        newest_id=summary.checkpoint_id if newest_id is None else newest_id,
        newest_batch_id=max(query.numbers(OFFSETS)),
        commits=tuple(commits),
        offsets=tuple(query.files_above(OFFSETS, batch_id)),
        logs=tuple(logs),
        input_files=len(listed),
        missing_files=missing_files(listed),
    )


def _retained(state: ObjectStore, query_id: str) -> list[tuple[CheckpointSummary, BatchRecord]]:
    """Return the restorable checkpoints of the query, in ascending order."""
    others = set()
    checkpoints = []
    for summary in list_checkpoints(state):
        if summary.state is not CheckpointState.RETAINED or summary.is_given_up:
            continue  # a batch number names a micro-batch of the query's history
        record = _record(summary)
        if record is not None and record.query_id == query_id:
            checkpoints.append((summary, record))
        elif record is not None:
            others.add(record.query_id)
    if not checkpoints:
        whose = f"the state of query {', '.join(sorted(others))}" if others else "no such state"
        refuse(
            f"{state.url} contains {whose}; the checkpointLocation belongs to query {query_id}. "
            "Pass the stateLocation of this query",
            "other_query",
        )
    return checkpoints


def _record(summary: CheckpointSummary) -> BatchRecord | None:
    try:
        return BatchRecord.of_properties(summary.properties, summary.checkpoint_id)
    except CheckpointError:
        return None  # not made by a query


def _state_after(
    query: StoredQuery, state: ObjectStore, batch_id: int
) -> tuple[CheckpointSummary, BatchRecord]:
    """Return the newest retained checkpoint at or before a micro-batch."""
    checkpoints = _retained(state, query.query_id())
    before = [pair for pair in checkpoints if pair[1].batch_id <= batch_id]
    if not before:
        refuse(
            f"the state after batch {batch_id} is no longer retained: the oldest retained "
            f"checkpoint of {state.url} is {checkpoints[0][0].checkpoint_id}, of batch "
            f"{checkpoints[0][1].batch_id}",
            "subsumed",
        )
    return before[-1]


def _check_log(query: StoredQuery, folder: str, entry: int) -> None:
    """Check that Spark can read a source's log up to *entry* without later entries."""
    names = set(query.names(f"{SOURCES}/{folder}"))
    number = entry
    while number >= 0 and f"{number}.compact" not in names:
        if str(number) not in names:
            refuse(
                f"the source log {query.url}/{SOURCES}/{folder} cannot be rewound to entry "
                f"{entry}: entry {number} is missing",
                "not_found",
            )
        number -= 1


def apply_rewind(
    query: StoredQuery, state: ObjectStore, plan: RewindReport, clock_ms: Callable[[], int]
) -> int:
    """
    Make the changes in *plan*; after a crash, repeat this with a new plan.

    Returns:
        The checkpoint that the query continues from.
    """
    readable = [summary for summary in list_checkpoints(state) if not summary.problem]
    with edit_session(
        state,
        "rewind",
        retained=max(1, sum(summary.is_retained for summary in readable)),
        clock_ms=clock_ms,
        batch_id=plan.batch_id,
        checkpoint_location=query.store.url,
    ) as session:
        session.claim_older(plan.checkpoint_id)
        if plan_rewind(query, state, plan.batch_id) != plan:
            refuse("the query ran after the rewind was planned", "active")
        goes_on_from = plan.checkpoint_id
        if plan.changes_state or plan.offsets:
            # Also without a later checkpoint: a sink may have rows of a micro-batch that was not committed.
            went_back_to = readable[-1].properties.get("went_back_to")
            committed = session.commit_older(plan.checkpoint_id, went_back_to=went_back_to)
            goes_on_from = committed.checkpoint_id
        _delete_files(query, plan)
        session.result(checkpoint_id=goes_on_from, files_deleted=len(plan.files))
    return goes_on_from


def _delete_files(query: StoredQuery, plan: RewindReport) -> None:
    """
    Delete the files that Spark wrote for later micro-batches, newest first.

    Given-up checkpoints are left to garbage collection: an active run needs its own until its next
    commit, where it is fenced.
    """
    fail_point("rewind-committed")
    query.delete(plan.commits)
    fail_point("rewind-commits-deleted")
    query.delete(plan.offsets)
    fail_point("rewind-offsets-deleted")
    query.delete(plan.logs)
    fail_point("rewind-logs-deleted")
    if query.files_above(OFFSETS, plan.batch_id) or query.files_above(COMMITS, plan.batch_id):
        refuse("the query planned micro-batches during the rewind", "active")
