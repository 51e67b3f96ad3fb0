"""
Decide whether the first micro-batch of a run follows a checkpoint.

Spark repeats the micro-batch that did not finish, with the same input.  That is true only while the
checkpointLocation is complete: after files were removed or restored from a backup, Spark plans a
micro-batch of the same number again, with other input.  So the positions of the sources are
compared, and not only the number.

A processor may declare other state than the checkpoint has.  A variable or field that it no longer
declares would be lost, and after a change of its name begin empty.  So the start is rejected with
its name, until the setting `dropState` has the name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.core.source_position import NOTHING_READ
from statelog.errors import CheckpointError, FencedError
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.spark.driver.batch_times import BatchTimes, QueryTimes
from statelog.spark.worker.protocol import NEVER_MS
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, evolve, undeclared


class LastRun(NamedTuple):
    """
    The newest checkpoint in which an operator ran.

    Args:
        checkpoint_id: Its id; -1 for none.
        handles: Ids of the log handles that it added.
    """

    checkpoint_id: int
    handles: tuple[str, ...]


NEVER_RAN: Final = LastRun(-1, ())


def last_run_of(base: CompletedCheckpoint) -> LastRun:
    """Return *base* as an operator's last run."""
    base_id = base.checkpoint_id
    return LastRun(
        base_id, tuple(log.state_handle_id for log in base.log if log.checkpoint_id == base_id)
    )


class RestoredState:
    """
    The state from which the next micro-batch continues.

    Attributes: `base`: the checkpoint, None for the empty state; `record`: its micro-batch's
    record; `went_back_to`: the checkpoint of the last rewind, None for none; `due_ms`: when the
    next timer of each operator is due, in the time of the time mode, None where that is unknown.
    """

    def __init__(self, operators: int) -> None:
        self.base: CompletedCheckpoint | None = None
        self.record: BatchRecord | None = None
        self.went_back_to: int | None = None
        self.due_ms: list[int | None] = [NEVER_MS] * operators
        self._last_runs = [NEVER_RAN] * operators
        self.has_committed = False

    def restore(self, base: CompletedCheckpoint | None, older_id: int | None) -> None:
        """Start from a checkpoint."""
        self.base = base
        self.due_ms = [NEVER_MS] * len(self.due_ms)
        if base is not None:
            self.record = record = BatchRecord.of(base)
            self.due_ms = [operator.next_due_ms for operator in record.operators]
            self._last_runs = [last_run_of(base)] * len(self.due_ms)
            self.went_back_to = record.went_back_to if older_id is None else older_id

    def advance(
        self, completed: CompletedCheckpoint, record: BatchRecord, ran: Sequence[bool]
    ) -> None:
        """Continue from *completed* with its *record*; *ran* lists the operators that ran."""
        self.base = completed
        self.record = record
        self.has_committed = True
        self.due_ms = [operator.next_due_ms for operator in record.operators]
        # An operator that was skipped still continues the checkpoint in which it ran.
        last = last_run_of(completed)
        self._last_runs = [
            last if has_run else before
            for has_run, before in zip(ran, self._last_runs, strict=True)
        ]

    def last_run(self, operator: int) -> LastRun:
        """Return the newest checkpoint for which an operator ran."""
        return self._last_runs[operator]

    @property
    def base_id(self) -> int | None:
        """The id of the checkpoint, or None if the state is empty."""
        return None if self.base is None else self.base.checkpoint_id

    @property
    def next_due_ms(self) -> int | None:
        """The time at which the next timer of any operator is due, or None if unknown."""
        times = [due for due in self.due_ms if due is not None]
        return min(times) if len(times) == len(self.due_ms) else None


ALL_STATE: Final = "*"
"""The value of dropState for all state that the processor does not declare."""


def evolved_schema(
    stored: OperatorRecord,
    declared: OperatorStateSchema,
    *,
    now_ms: int,
    drop: Collection[str],
    checkpoint: str,
) -> OperatorStateSchema:
    """Return the schema of an operator that continues from a checkpoint's state."""
    schema = OperatorStateSchema.from_json(stored.schema)
    # Changes that lose no state; it raises for those that do not fit.
    evolved = evolve(schema, declared, now_ms=now_ms)
    # Changes that would lose state need the user's word for each name.
    missing = [name for name in undeclared(schema, declared) if _holds(stored, name)]
    refused = [] if ALL_STATE in drop else [name for name in missing if name not in drop]
    if refused:
        raise CheckpointError(
            f"{checkpoint} contains state that the processor of operator {stored.operator_id!r} does not "
            f"declare: {', '.join(map(repr, refused))}. Starting would delete it, and state under a "
            "changed name would start empty. Nothing was changed. Declare it in init() under the "
            f"stored name, or delete it permanently with the setting dropState={','.join(refused)!r}",
            reason="incompatible",
        )
    return evolve(schema, declared, now_ms=now_ms, drop=missing) if missing else evolved


def _holds(stored: OperatorRecord, name: str) -> bool:
    """Return whether a checkpoint's record shows that a variable or field contains data."""
    return name != TIMERS_NAME or stored.next_due_ms != NEVER_MS


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """
    The facts about the first micro-batch of a run.

    Args:
        query_id, batch_id: Spark's ids of query and micro-batch.
        times: Its times and positions.
        sources: Reads the positions of earlier micro-batches; None if unknown.
    """

    query_id: str
    batch_id: int
    times: BatchTimes
    sources: QueryTimes | None = None


def check_state_is_there(first: FirstBatch, location: str) -> None:
    """Check that a query without a checkpoint has not read any input yet."""
    if first.batch_id != 0 and first.times.position_before != NOTHING_READ:
        raise CheckpointError(
            f"the query is at batch {first.batch_id}, but {location} does not contain a checkpoint: "
            "its state is missing. Set stateLocation to the location of the state. If the query ran on Spark's "
            "own state, move it with initialState=spark_state(...) (docs/how-to/migration.md), or call "
            "disable(spark) to keep it there. To start without state, set checkpoint='empty'",
            reason="missing",
        )


def is_committed(
    first: FirstBatch,
    base: CompletedCheckpoint,
    record: BatchRecord,
    location: str,
    *,
    free: bool,
    newest_claim: Callable[[], str],
) -> bool:
    """
    Return whether the run starts with the micro-batch that the checkpoint *base* committed.

    Micro-batches without input may be missing between *base* and the first one, because a batch
    without effect is not committed.  A position that is unknown is not compared.
    """
    if record.query_id != first.query_id:  # adopted
        return False
    times = first.times
    batch_id = first.batch_id
    if batch_id == record.batch_id:
        # The number alone proves nothing: after a loss of files Spark gives it to other input.
        same = (
            _may_equal(times.position, record.position)
            and _may_equal(times.position_before, record.position_before)
            and _same_logs(first, record)
        )
        if same or free:
            return same
        _refuse_planned_anew(first, base, record, location)
    if free:
        return False
    # An older batch than the state: another driver is ahead, or files are missing.
    if batch_id < record.batch_id and first.sources is not None:
        _check_is_alone(first, first.sources, record, location, newest_claim)
    # A newer batch: only no-data batches may be between, and then the position has not moved.
    has_positions = record.position is not None and times.position_before is not None
    same = record.position == times.position_before
    if batch_id < record.batch_id or (
        batch_id > record.batch_id + 1 and not (has_positions and same)
    ):
        _refuse(
            f"the query is at batch {batch_id}, but the state in {location} is the state after batch "
            f"{record.batch_id} (checkpoint {base.checkpoint_id}): the two do not match. "
            "Files of the checkpointLocation or of the state were removed, or one of the two was "
            "restored from a backup",
            first,
            base,
            location,
        )
    if (has_positions and not same) or not _same_logs(first, record):
        _refuse_planned_anew(first, base, record, location)
    return False


def _check_is_alone(
    first: FirstBatch,
    sources: QueryTimes,
    record: BatchRecord,
    location: str,
    newest_claim: Callable[[], str],
) -> None:
    """
    Raise `FencedError` if a different driver planned this micro-batch after this run started.

    A run begins with the newest micro-batch in the checkpointLocation.  Later ones are there only
    if another driver wrote them; after a loss of files they are missing.
    """
    if sources.is_planned(record.batch_id):
        raise FencedError(
            f"a second driver is running this query: this run started with batch {first.batch_id}, and since "
            f"then {sources.checkpoint_location} has received batch {record.batch_id}, whose state is in "
            f"{location}. The newest claim there is {newest_claim()}. No state was lost. "
            "Stop this driver. After the other driver has stopped, a restart continues the job"
        )


def _may_equal(position: str | None, recorded: str | None) -> bool:
    return position is None or recorded is None or position == recorded


def _same_logs(first: FirstBatch, record: BatchRecord) -> bool:
    """Return whether the logs of two file sources list the same files."""
    if not record.source_logs or first.sources is None:
        return True
    return first.sources.read_again(record.source_logs) == record.source_logs


def _refuse_planned_anew(
    first: FirstBatch, base: CompletedCheckpoint, record: BatchRecord, location: str
) -> NoReturn:
    _refuse(
        f"Spark has planned batch {record.batch_id} again: it covers different input than "
        f"the batch {record.batch_id} whose state is in {location} (checkpoint "
        f"{base.checkpoint_id}). Files of the checkpointLocation were removed, or it was restored "
        "from a backup. Continuing would lose rows or count them twice",
        first,
        base,
        location,
    )


def _refuse(what: str, first: FirstBatch, base: CompletedCheckpoint, location: str) -> NoReturn:
    place = "CHECKPOINT_LOCATION" if first.sources is None else first.sources.checkpoint_location
    raise CheckpointError(
        f"{what}. Nothing was changed. Either make sources and state match again: `statelog "
        f"rewind {place} --state-location {location}` lists the batches that you can go back to; or continue "
        "from this state with a new checkpointLocation and adopt=True, where the options of the "
        "sources decide where reading starts",
        reason="gap",
        batch_id=first.batch_id,
        checkpoint_id=base.checkpoint_id,
    )
