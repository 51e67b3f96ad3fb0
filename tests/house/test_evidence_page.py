"""The page of evidence has the newest records, and what it says of bugs is in the repository."""

import importlib.util
import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.house.sources import ROOT, is_there
from tests.support.project import evidence

FOLDER = ROOT / "docs" / "evidence"
FINDINGS: list[dict[str, Any]] = json.loads((FOLDER / "findings.json").read_text(encoding="utf-8"))
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
PROOFS = {"message", "run", "message, run", "page"}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence_tool", ROOT / "tools" / "evidence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(name: str, **facts: Any) -> dict[str, Any]:
    stored = {**evidence.Record(name).to_json(), "machine": "2 cores", "date": "2026-01-01 10:00"}
    assert facts.keys() <= stored.keys()
    return {**stored, **facts}


def page_of(tool: ModuleType, folder: Path, *records: dict[str, Any]) -> str:
    for number, each in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(each), encoding="utf-8")
    return str(tool.page(folder))


def row(page: str, name: str) -> list[str]:
    (line,) = re.findall(rf"^\| {re.escape(name)} \|.*$", page, re.MULTILINE)
    return [each.strip() for each in line.strip("|").split("|")]


def git(*arguments: str) -> str | None:
    """Return the output of git; None where the history is not there or not whole."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def test_a_record_in_the_repository_is_one_of_a_campaign() -> None:
    names = record("a").keys()
    paths = [path for path in FOLDER.glob("*") if path.name != "findings.json"]
    assert paths
    for path in paths:
        stored = json.loads(path.read_text(encoding="utf-8"))
        assert names == stored.keys(), path.name
        assert stored["findings"] or stored["lost"] is not None, path.name


def test_totals_are_sums_and_keep_simulations_apart(tool: ModuleType, tmp_path: Path) -> None:
    page = page_of(
        tool,
        tmp_path,
        record("a", kills=1200, commits=5, store_faults={"503": 2}, servers=["moto 5"]),
        record("a", case="disk", kills=34, store_faults={"503": 3, "reset": 1}),
        record("s", simulated=True, runs=7, kills=2, simulated_hours=1.5, store_faults={"409": 9}),
        record("t", simulated=True, counts={"conforming traces": 6}),
        record("f", counts={"forged inputs": 15373}, seeds=[5, 9], seconds=60.2),
    )
    expected = {
        "Kills": "1,234",
        "Store faults": "6",
        "Simulated deaths": "2",
        "Simulated store faults": "9",
        "Simulated schedules": "7",
        "Simulated hours of the storage": "1.5",
        "Traces replayed against the model, all conforming": "6",
        "Forged or damaged files read": "15,373",
        "Servers": "moto 5",
        "Committed changes or rows lost": "0",
        "Campaigns that failed": "0",
    }
    assert expected == {name: row(page, name)[1] for name in expected}
    assert ["503", "5", ""] == row(page, "503")
    assert ["409", "", "9"] == row(page, "409")
    assert "5 to 9" in re.findall(r"^\| f \| .*$", page, re.MULTILINE)[0]
    assert "## Failures" not in page


def test_the_newest_record_of_a_machine_counts(tool: ModuleType, tmp_path: Path) -> None:
    page = page_of(
        tool,
        tmp_path,
        record("a", kills=1, date="2026-01-02 09:00"),
        record("a", kills=10, date="2026-01-01 10:00"),
        record("a", kills=100, machine="64 cores"),
    )
    assert "101" == row(page, "Kills")[1]
    assert re.findall(r"^### (.* cores)$", page, re.MULTILINE) == ["2 cores", "64 cores"]


def test_a_failed_campaign_is_on_the_page(tool: ModuleType, tmp_path: Path) -> None:
    failed = record("a", case="disk", lost=None, findings=["AssertionError: <path> | gone"])
    page = page_of(tool, tmp_path, failed, record("b"))
    assert "unknown" == row(page, "Committed changes or rows lost")[1]
    assert "1" == row(page, "Campaigns that failed")[1]
    assert "## Failures\n\n- a, disk: AssertionError: &lt;path> \\| gone\n" in page


def test_findings_are_whole_and_named_once(tool: ModuleType) -> None:
    for each in FINDINGS:
        assert {"kind", "campaign", "bug", "shows", "commit", "proof"} == each.keys()
        assert each["kind"] in tool.KINDS
        assert each["proof"] in PROOFS
        assert each["shows"]
    assert [] == [bug for bug, n in Counter(each["bug"] for each in FINDINGS).items() if n > 1]


def test_the_tests_that_show_a_bug_exist_or_were_in_its_commit() -> None:
    missing = []
    for each in FINDINGS:
        for file, test in TEST.findall(" ".join(each["shows"])):
            if is_there(file, test):
                continue
            then = git("show", f"{each['commit']}:{file}")
            if then is None or f"def {test}(" not in then:
                missing.append(f"{file}::{test}")
    assert [] == missing


def test_the_commits_are_in_the_history() -> None:
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the history is not here")
    commits = sorted({each["commit"] for each in FINDINGS})
    assert [] == [
        commit for commit in commits if git("merge-base", "--is-ancestor", commit, "HEAD") is None
    ]
