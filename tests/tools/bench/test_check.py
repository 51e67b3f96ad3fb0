"""The check against the last page: what is a regression, and what the command says and returns."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench.harness import check
from bench.harness.figures import Ratio
from bench.harness.results import ROOT, write


def found(before: Ratio, after: Ratio) -> list[str]:
    return [*check.regressions({"one": before}, {"one": after})]


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        (Ratio(8.0, 0.0), Ratio(7.3, 0.0), False),  # within a tenth
        (Ratio(8.0, 0.0), Ratio(7.1, 0.0), True),
        (Ratio(8.0, 0.2), Ratio(7.1, 0.0), False),  # within the spread
        (Ratio(8.0, 0.2), Ratio(6.0, 0.0), True),
        (Ratio(8.0, 9.0), Ratio(3.9, 9.0), True),  # no spread excuses a half
        (Ratio(8.0, 0.0), Ratio(80.0, 0.0), False),
        (Ratio(1.0, 0.0, False), Ratio(1.05, 0.0, False), False),
        (Ratio(1.0, 0.0, False), Ratio(1.2, 0.0, False), True),
        (Ratio(1.0, 0.0, False), Ratio(0.5, 0.0, False), False),
        (Ratio(8.0, 0.0), Ratio(float("nan"), 0.0), True),
    ],
)
def test_a_regression_exceeds_the_tolerance(before: Ratio, after: Ratio, worse: bool) -> None:
    assert worse == bool(found(before, after))


def test_what_the_results_no_longer_have_is_listed() -> None:
    one = Ratio(1.0, 0.0)
    assert ["a"] == check.missing({"a": one, "b": one}, {"b": one, "c": one})
    assert [] == [*check.regressions({"a": one}, {"c": one})]


def peers(folder: Path, own_ms: float) -> None:
    def part(ms: float) -> dict[str, object]:
        run = {"milliseconds": [ms] * 8, "events": [100] * 8}
        return {"title": "t", "runs": [run | {"files_per_batch": 1, "bytes_per_batch": 9}]}

    parts = {"spark-tws": part(1000), "statelog-direct": part(own_ms)}
    write(folder / "peers-100k.json", {"name": "peers-100k", "parts": parts})


def run_check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "bench" / "run.py"), "--check", "--results", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_names_a_regression_and_returns_1(tmp_path: Path) -> None:
    peers(tmp_path, own_ms=100)
    write(
        tmp_path / check.NAME,
        check.to_json({"peers-100k: statelog-direct to spark-tws": Ratio(10.0, 0.0)}),
    )
    good = run_check(tmp_path)
    assert (0, "compared 1 ratios, 0 regressions") == (good.returncode, good.stdout.strip())
    peers(tmp_path, own_ms=200)
    bad = run_check(tmp_path)
    assert 1 == bad.returncode
    assert "regression: peers-100k: statelog-direct to spark-tws: 5.00x, was 10.00x" in bad.stdout


def test_an_unknown_benchmark_is_an_error() -> None:
    command = [sys.executable, str(ROOT / "bench" / "run.py"), "--only", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 2 == done.returncode
    assert "unknown: nothing; there are peers-100k" in done.stderr
