"""The page docs/how-to/read-state.md, on a location as its examples name it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.locations.read_state_page import write
from tests.support.project.snippets import run_page

PAGE = "docs/how-to/read-state.md"


def test_the_page_read_state_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "bucket" / "jobs" / "totals", 41)
    names: dict[str, object] = {}
    run_page(PAGE, tmp_path, names)
    said = capsys.readouterr().out
    assert "{'total': 420.0}\n{'total': 410.0}\n" in said
    assert "\n{'DE': {'orders': 41}}\n" in said
    assert "insert c141 None {'total': 410.0}" in said
    assert "update c42 {'total': 410.0} {'total': 420.0}" in said
    assert names["changes"].num_rows == 2  # type: ignore[attr-defined]
    assert names["totals"].num_rows == 42  # type: ignore[attr-defined]
    assert "41 41" not in said
    assert names["richest"].row(0)[1:] == ("c42", 420.0)  # type: ignore[attr-defined]
    assert "customers" in said
