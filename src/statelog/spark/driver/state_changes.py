"""
Take over the state of a checkpoint for a processor that may declare other state.

A variable or field that the processor no longer declares would be lost, and after a change of its name
begin empty.  So the start is rejected with its name, until the setting `dropState` has the name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from statelog.checkpoint.batch_record import OperatorRecord
from statelog.errors import CheckpointError
from statelog.spark.worker.protocol import NEVER_MS
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, evolve, undeclared

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
    evolved = evolve(schema, declared, now_ms=now_ms)
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
