"""The code of README and docs runs, and tables agree with the code: the pages that need no Spark session."""

import subprocess
import sys

import pytest
from tests.house.sources import ROOT
from tests.support.locations.costly_history import CostlyHistory
from tests.support.locations.read_state_page import write
from tests.support.project.snippets import blocks, pages_to_run, run_page

from statelog.store import open_store
from statelog.store.location import SCHEMES

PAGES = pages_to_run(with_spark=False)
STORES = (ROOT / "docs/how-to/stores.md").read_text(encoding="utf-8")


def test_there_are_pages():
    assert {"docs/tutorial/test-it.md", "docs/reference/options.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path, {"__name__": "snippets"})


def test_the_page_read_state_runs_on_a_location_as_its_examples_name_it(tmp_path, capsys):
    write(tmp_path / "bucket" / "jobs" / "totals", 41)
    names = {}
    run_page("docs/how-to/read-state.md", tmp_path, names)
    said = capsys.readouterr().out
    assert "{'total': 420.0}\n{'total': 410.0}\n" in said
    assert "\n{'DE': {'orders': 41}}\n" in said
    assert "insert c141 None {'total': 410.0}" in said
    assert "update c42 {'total': 410.0} {'total': 420.0}" in said
    assert (2, 42) == (names["changes"].num_rows, names["totals"].num_rows)
    assert "41 41" not in said
    assert names["richest"].row(0)[1:] == ("c42", 420.0)
    assert "customers" in said


def test_the_page_sizing_runs_on_a_location_as_its_examples_name_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    location = str(tmp_path / "bucket" / "jobs" / "totals")
    CostlyHistory(3, open_store(location, storage_options={"fsync": False})).run(4)
    names = {}
    run_page("docs/how-to/sizing.md", tmp_path, names)
    assert str(names["text"]).startswith("<!doctype html>")
    assert {"totals.html", "report.html"} <= {path.name for path in tmp_path.iterdir()}


def test_the_sink_of_the_page_extend_passes_the_contract(tmp_path):
    code = [block.text for block in blocks(ROOT / "docs/contributing/extend.md") if block.runs]
    assert 2 == len(code)
    (tmp_path / "test_my_sink.py").write_text("\n".join(code), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_sink.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_the_page_stores_has_every_spelling_of_a_scheme_and_where_it_was_tried(scheme):
    tried = scheme.tried
    cells = (scheme.title, scheme.put_if_absent, tried.emulator, tried.server, tried.cloud)
    assert f"| {' | '.join(cells)} |" in STORES.splitlines()
    names = STORES[STORES.index("## Names") : STORES.index("## Credentials")]
    spellings = (scheme.name, *(scheme.aliases if scheme.is_remote else ()))
    assert [name for name in spellings if f"`{name}://" not in names] == []
