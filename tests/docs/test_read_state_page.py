"""The page docs/how-to/read-state.md, on a location as its examples name it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.locations.written_state import WrittenState
from tests.support.project.snippets import run_page

from statelog.state.kinds import StateKind
from statelog.state.schema import (
    TIMERS_NAME,
    OperatorStateSchema,
    StateDescriptor,
)

PAGE = "docs/how-to/read-state.md"
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


def test_the_page_read_state_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "bucket" / "jobs" / "totals", 41)
    names: dict[str, object] = {}
    run_page(PAGE, tmp_path, names)
    said = capsys.readouterr().out
    assert "{'total': 420.0}\n{'total': 410.0}\n" in said
    assert "\n{'DE': {'orders': 41}}\n" in said
    assert "insert c141 None {'total': 420.0}" in said
    assert "update c42 {'total': 410.0} {'total': 420.0}" in said
    assert names["changes"].num_rows == 2  # type: ignore[attr-defined]
    assert names["totals"].num_rows == 42  # type: ignore[attr-defined]
    assert "41 41" not in said
    assert names["richest"].row(0)[1:] == ("c42", 420.0)  # type: ignore[attr-defined]
    assert "customers" in said
