"""
The state of a query as of its last committed checkpoint, and when each operator ran last.

A processor may declare other state than the checkpoint has.  A variable or field that it no longer
declares would be lost, and after a change of its name begin empty.  So the start is rejected with
its name, until the setting `dropState` has the name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.errors import CheckpointError
from statelog.model.checkpoint import CompletedCheckpoint
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
    """Return *base* as the last run of an operator."""
    base_id = base.checkpoint_id
    return LastRun(
        base_id, tuple(log.state_handle_id for log in base.log if log.checkpoint_id == base_id)
    )


class RestoredState:
    """
    The state that the next micro-batch continues.

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
        """Begin with a checkpoint."""
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
        """Continue from *completed*, which has *record*; *ran* says which operators ran in it."""
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
        """Return the newest checkpoint in which an operator ran."""
        return self._last_runs[operator]

    @property
    def base_id(self) -> int | None:
        """The id of the checkpoint; None for the empty state."""
        return None if self.base is None else self.base.checkpoint_id

    @property
    def next_due_ms(self) -> int | None:
        """When the next timer of any operator is due; None if unknown."""
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
    """Return the schema of an operator that continues the state of a checkpoint."""
    schema = OperatorStateSchema.from_json(stored.schema)
    # Changes that lose no state; it raises for those that do not fit.
    evolved = evolve(schema, declared, now_ms=now_ms)
    # Changes that would lose state need the user's word for each name.
    missing = [name for name in undeclared(schema, declared) if _holds(stored, name)]
    refused = [] if ALL_STATE in drop else [name for name in missing if name not in drop]
    if refused:
        raise CheckpointError(
            f"{checkpoint} holds state that the processor of operator {stored.operator_id!r} does not "
            f"declare: {', '.join(map(repr, refused))}. The start would drop it, and state under a "
            "changed name would begin empty. Nothing was changed. Declare it in init() under the "
            f"stored name, or drop it for good by the setting dropState={','.join(refused)!r}",
            reason="incompatible",
        )
    return evolve(schema, declared, now_ms=now_ms, drop=missing) if missing else evolved


def _holds(stored: OperatorRecord, name: str) -> bool:
    """Return whether a checkpoint holds data of a variable or field, as far as its record says."""
    return name != TIMERS_NAME or stored.next_due_ms != NEVER_MS
