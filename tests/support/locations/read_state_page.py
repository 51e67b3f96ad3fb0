"""The location that the page docs/how-to/read-state.md reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.support.locations.written_state import WrittenState

from statelog.state.kinds import StateKind
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor

SCHEMA = OperatorStateSchema(
    "totals",
    pa.schema([("customer", pa.string())]),
    (
        StateDescriptor("total", StateKind.VALUE, pa.schema([("total", pa.float64())])),
        StateDescriptor(
            "countries",
            StateKind.MAP,
            pa.schema([("orders", pa.int64())]),
            pa.schema([("country", pa.string())]),
        ),
        StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([])),
    ),
)


def write(location: Path, checkpoints: int) -> None:
    """Write so many checkpoints; in each the total of c42 grows by 10, and one key is new."""
    state = WrittenState(location, SCHEMA)
    for checkpoint_id in range(1, checkpoints + 1):
        countries = {("DE",): (checkpoint_id,)}
        of_key = {"total": (10.0 * (1 + checkpoint_id),), "countries": countries}
        assert checkpoint_id == state.commit(
            {("c42",): of_key, (f"c{100 + checkpoint_id}",): of_key}
        )
