"""
Rewind source offsets and state of a query, together, to one micro-batch.

The plan lists the changes and the obstacles.

The order of the steps makes a crash harmless.  A claim fences a run that is still active.  One
commit makes the state that of the micro-batch: the point of no return.  Then Spark's files of later
micro-batches are deleted, newest first: `commits/`, `offsets/`, the logs of file sources.  A query
started in between is refused or continues exactly, because every checkpoint records how far the
sources were read; and the rewind can be repeated.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from statelog.checkpoint.batch_record import BatchRecord, check_source_folders
from statelog.checkpoint.edit import EditSession, edit_session
from statelog.checkpoint.history import Entries, read_checkpoint
from statelog.checkpoint.listing import CheckpointState, CheckpointSummary, list_checkpoints
from statelog.checkpoint.query_files import COMMITS, OFFSETS, StoredQuery, entries_digest, number_of
from statelog.checkpoint.restore import find_restore_point
from statelog.core.source_position import SourceLog, log_entry, parse_files, position_of
from statelog.errors import CheckpointError, CorruptionError, IncompatibleFormatError
from statelog.model import Json
from statelog.runtime.fail_points import fail_point
from statelog.store import ObjectStore

_LOGS: Final = "sources"

__all__ = [
    "RewindPlan",
    "RewindPoint",
    "apply_rewind",
    "plan_rewind",
    "rewind_points",
]


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
class RewindPlan:
    """
    What a rewind changes.

    Args:
        batch_id: The last micro-batch that is kept.
        checkpoint_id: The checkpoint that holds the state after it.
        newest_id: The newest checkpoint.
        newest_batch_id: The newest micro-batch that Spark has planned.
        commits, offsets, logs: Files to delete, in this order.
        input_files: Number of input files that are read again.
        missing_files: Those that no longer exist on local disk: their rows cannot be read again.
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

    @property
    def changes_state(self) -> bool:
        """Whether checkpoints after the micro-batch are given up."""
        return self.newest_id > self.checkpoint_id

    @property
    def files(self) -> tuple[str, ...]:
        """All files to delete, in their order."""
        return (*self.commits, *self.offsets, *self.logs)


class _Record(msgspec.Struct):
    """The part of a micro-batch's record that a rewind needs; see `batch_record`."""

    query_id: str
    batch_id: int
    position: str | None = None
    source_logs: list[SourceLog] | None = None
    source_folders: list[str] | None = None


def rewind_points(query: StoredQuery, state: ObjectStore) -> list[RewindPoint]:
    """
    Return the micro-batches whose state is retained, ascending, with obstacles.

    Raises:
        UsageError: *query* is not a checkpointLocation.
        StoreError: A store failed.

    Blocks: On both stores.
    """
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


def plan_rewind(query: StoredQuery, state: ObjectStore, batch_id: int) -> RewindPlan:
    """
    Return what a rewind to a micro-batch would change; change nothing.

    Args:
        query: The checkpointLocation.
        state: The state location.
        batch_id: The last micro-batch that is kept.

    Raises:
        UsageError: *query* is no checkpointLocation.
        CheckpointError: The rewind is not possible (`reason`: "other_query", "subsumed",
            "not_found", "gap", "foreign_state"), or the checkpoint is damaged.
        CorruptionError: A file of the checkpointLocation that must be kept is damaged.
        StoreError: A store failed.

    Blocks: On both stores.
    """
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
    if query.read(f"{COMMITS}/{batch_id}") == b"":  # truncated: deleted, so the batch is repeated
        commits += query.files_above(COMMITS, batch_id - 1)[len(commits) :]
    logs = []
    for folder, entry in kept_entries(record.source_folders, offsets).items():
        _check_log(query, folder, entry)
        logs += query.files_above(f"{_LOGS}/{folder}", entry)
    listed = _input_files(query, logs)
    missing = _missing(listed)
    return RewindPlan(
        batch_id=batch_id,
        checkpoint_id=summary.checkpoint_id,
        newest_id=_newest_id(state, summary.checkpoint_id),
        newest_batch_id=max(query.numbers(OFFSETS)),
        commits=tuple(commits),
        offsets=tuple(query.files_above(OFFSETS, batch_id)),
        logs=tuple(logs),
        input_files=len(listed),
        missing_files=missing,
    )


def missing_inputs(query: StoredQuery, record: BatchRecord) -> tuple[str, ...]:
    """
    Return the input files that a query reads again after the micro-batch of *record*, and that are gone.

    Only files on local disk are looked for.

    Raises:
        CheckpointError, CorruptionError, StoreError: As `check_sources`.

    Blocks: On the files.
    """
    offsets = check_sources(query, record, record.batch_id)
    logs: list[str] = []
    for folder, entry in kept_entries(record.source_folders, offsets).items():
        logs += query.files_above(f"{_LOGS}/{folder}", entry)
    return _missing(_input_files(query, logs))


def _missing(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(path for path in paths if _is_gone(path)))


def _newest_id(state: ObjectStore, checkpoint_id: int) -> int:
    """Return the newest checkpoint, which may be damaged."""
    newest = Entries(state).newest_id()
    return checkpoint_id if newest is None else newest


def _retained(state: ObjectStore, query_id: str) -> list[tuple[CheckpointSummary, _Record]]:
    """Return the checkpoints of the query that can be restored, ascending."""
    others = set()
    checkpoints = []
    for summary in list_checkpoints(state):
        if summary.state is not CheckpointState.RETAINED or summary.is_given_up:
            continue  # a batch number names a micro-batch of the query's history
        record = _record(summary.properties)
        if record is not None and record.query_id == query_id:
            checkpoints.append((summary, record))
        elif record is not None:
            others.add(record.query_id)
    if not checkpoints:
        whose = f"the state of query {', '.join(sorted(others))}" if others else "no such state"
        refuse(
            f"{state.url} contains {whose}; the checkpointLocation is that of query {query_id}. "
            "Pass the stateLocation of this query",
            "other_query",
        )
    return checkpoints


def _record(properties: Mapping[str, Json]) -> _Record | None:
    try:
        record = msgspec.convert(dict(properties), _Record)
    except msgspec.ValidationError:
        return None
    check_source_folders(record.source_folders, record.source_logs)
    return record


def _state_after(
    query: StoredQuery, state: ObjectStore, batch_id: int
) -> tuple[CheckpointSummary, _Record]:
    """Return the newest retained checkpoint at or before a micro-batch."""
    checkpoints = _retained(state, query.query_id())
    before = [each for each in checkpoints if each[1].batch_id <= batch_id]
    if not before:
        refuse(
            f"the state after batch {batch_id} is no longer retained: the oldest retained "
            f"checkpoint of {state.url} is {checkpoints[0][0].checkpoint_id}, of batch "
            f"{checkpoints[0][1].batch_id}",
            "subsumed",
        )
    return before[-1]


def check_sources(
    query: StoredQuery, record: _Record | BatchRecord, batch_id: int
) -> tuple[str | None, ...]:
    """
    Return the offsets of a micro-batch if the state of *record* is the one after it.

    Raises:
        CheckpointError: It is not ("gap", "subsumed"), or the offsets are missing ("not_found").
        IncompatibleFormatError: The offsets have another form than Spark 4.0 to 4.3 write for
            sources without names.

    Blocks: On the files.
    """
    entry = query.offsets(batch_id)
    if entry is None:
        planned = query.numbers(OFFSETS)
        refuse(
            f"{query.url} has no offsets of batch {batch_id} "
            f"(of {_span(planned)}), so the sources cannot go back to it",
            "not_found",
        )
    offsets = entry.offsets
    if offsets is None:
        raise IncompatibleFormatError(
            f"{query.url}/{OFFSETS}/{batch_id} gives the offsets by the names of the sources (version "
            "v2); a rewind needs them in their order (version v1)",
            path=f"{OFFSETS}/{batch_id}",
        )
    if record.position is None:
        same = record.batch_id == batch_id
    else:
        same = record.position in _positions(record, offsets)
    if not same and record.batch_id < batch_id:
        refuse(
            f"the state after batch {batch_id} is not retained: the newest retained one before it "
            f"is that of batch {record.batch_id}, and the sources were read in between",
            "subsumed",
        )
    if not same or not _same_logs(query, record):
        refuse(
            f"batch {batch_id} was planned again: its offsets, or the logs of its sources, are not "
            "those of the state after it. Rewind to an earlier batch",
            "gap",
        )
    return offsets


def _positions(record: _Record | BatchRecord, offsets: Sequence[str | None]) -> set[str]:
    """Return the digest of the user's source offsets; two if their number is unknown."""
    if record.source_folders:
        return {position_of(offsets[: len(record.source_folders)])}
    whole = position_of(offsets)
    # The last source may be statelog's own, which does not count.
    return {whole, position_of(offsets[:-1])} if len(offsets) > 1 else {whole}


def _same_logs(query: StoredQuery, record: _Record | BatchRecord) -> bool:
    return all(
        entries_digest(query, log.folder, log.after, log.upto) == log.digest
        for log in record.source_logs or ()
    )


def kept_entries(folders: Sequence[str] | None, offsets: Sequence[str | None]) -> dict[str, int]:
    """Return for the log of each file source the last entry that is kept."""
    names = folders or [str(at) for at in range(len(offsets))]
    kept = ((name, log_entry(offset)) for name, offset in zip(names, offsets, strict=False))
    return {name: entry for name, entry in kept if entry is not None}


def _check_log(query: StoredQuery, folder: str, entry: int) -> None:
    """Check that Spark can read a source's log up to *entry* without later entries."""
    names = set(query.names(f"{_LOGS}/{folder}"))
    at = entry
    while at >= 0 and f"{at}.compact" not in names:
        if str(at) not in names:
            refuse(
                f"the log of a source, {query.url}/{_LOGS}/{folder}, cannot be rewound to entry "
                f"{entry}: entry {at} is missing",
                "not_found",
            )
        at -= 1


def _input_files(query: StoredQuery, logs: Sequence[str]) -> set[str]:
    """Return the input files that only log entries to be deleted name."""
    above = {
        folder: min(_entries(logs, folder)) for folder in {os.path.dirname(log) for log in logs}
    }
    names: set[str] = set()
    for path in logs:
        folder, name = os.path.split(path)
        if number_of(name) is None:  # a checksum
            continue
        try:
            files = parse_files(query.read(path) or b"v1", path)
        except CorruptionError:  # truncated: the entry is deleted, and its files are listed again
            continue
        names.update(file.path for file in files if file.batch_id >= above[folder])
    return names


def _entries(logs: Sequence[str], folder: str) -> list[int]:
    numbers = (number_of(os.path.basename(log)) for log in logs if os.path.dirname(log) == folder)
    return [number for number in numbers if number is not None] or [0]


def _is_gone(path: str) -> bool:
    url = urllib.parse.urlsplit(path)
    return url.scheme == "file" and not os.path.exists(urllib.parse.unquote(url.path))


def _span(numbers: Sequence[int]) -> str:
    return f"batches {numbers[0]} to {numbers[-1]}" if numbers else "no batch"


def refuse(what: str, reason: str) -> NoReturn:
    """Raise the error of a rewind that is not possible."""
    advice = ""
    if reason == "active":
        advice = ". Stop it, wait until it has ended, and repeat the rewind"
    raise CheckpointError(f"{what}{advice}", reason=reason)


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
    newest = _newest_readable(state)
    with edit_session(
        state,
        "rewind",
        retained=max(1, len(newest.retained)),
        clock_ms=clock_ms,
        batch_id=plan.batch_id,
        checkpoint_location=query.store.url,
    ) as session:
        goes_on_from = _rewound(query, state, plan, session, newest.went_back_to)
        session.result(checkpoint_id=goes_on_from, files_deleted=len(plan.files))
    return goes_on_from


def _rewound(
    query: StoredQuery,
    state: ObjectStore,
    plan: RewindPlan,
    session: EditSession,
    went_back_to: int | None,
) -> int:
    stored = read_checkpoint(state, plan.checkpoint_id).checkpoint
    session.claim_location(stored.max_parallelism, len(stored.retained))
    if plan_rewind(query, state, plan.batch_id) != plan:
        refuse("the query ran after the rewind was planned", "active")
    goes_on_from = plan.checkpoint_id
    if plan.changes_state or plan.offsets:
        # Also without a later checkpoint: a sink may have rows of a micro-batch that was not committed.
        goes_on_from = session.commit_older(plan.checkpoint_id, went_back_to).checkpoint_id
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
