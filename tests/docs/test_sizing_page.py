"""The page docs/how-to/sizing.md, on a location as its examples name it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.locations.costly_history import CostlyHistory
from tests.support.project.snippets import run_page

from statelog.store import open_store

PAGE = "docs/how-to/sizing.md"


def test_the_page_sizing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CostlyHistory(
        3,
        open_store(str(tmp_path / "bucket" / "jobs" / "totals"), storage_options={"fsync": False}),
    ).run(4)
    names: dict[str, object] = {}
    run_page(PAGE, tmp_path, names)
    assert str(names["text"]).startswith("<!doctype html>")
    assert {"totals.html", "report.html"} <= {path.name for path in tmp_path.iterdir()}
