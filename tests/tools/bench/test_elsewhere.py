"""The comparison with other engines: its events, its answers, and what is counted of a program."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from bench.elsewhere.events import check_answers, make_events
from bench.elsewhere.watch import watch

EVENTS, KEYS = 2_000, 50


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of events."""
    folder = tmp_path_factory.mktemp("events")
    make_events(folder, events=EVENTS, keys=KEYS, batches=3)
    return folder


def right_answers(events: Path, query: str) -> dict[int, list[float]]:
    """Return the answers from the CSV files, one event after the other."""
    values: dict[int, list[float]] = {}
    for path in sorted((events / "csv").iterdir()):
        for line in path.read_text().splitlines():
            key, value = line.split(",")
            values.setdefault(int(key), []).append(float(value))
    if query == "last_ten":
        return {key: of_key[-10:] for key, of_key in values.items()}
    return {key: [len(of_key), sum(of_key)] for key, of_key in values.items()}


def write_answers(folder: Path, answers: dict[int, list[float]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [" ".join(map(str, [key, *numbers])) for key, numbers in answers.items()]
    (folder / "answers").write_text("\n".join(lines))


def test_the_files_of_all_formats_have_the_same_events_in_the_same_order(events: Path) -> None:
    for partition in (0, 1):
        lines = (events / f"csv/{partition}.csv").read_text().splitlines()
        files = sorted((events / "parquet").glob(f"*-{partition}.parquet"))
        rows = [row for path in files for row in pq.read_table(path).to_pylist()]
        assert lines == [f"{row['key']},{row['value']}" for row in rows]
        assert {row["key"] % 2 for row in rows} == {partition}


def test_spark_reads_the_files_in_the_order_of_their_events(events: Path) -> None:
    # By the time of a file, in milliseconds: files of one time have no order.
    times = [path.stat().st_mtime_ns // 10**6 for path in sorted((events / "parquet").iterdir())]
    assert all(later - earlier >= 1_000 for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize("query", ["totals", "last_ten"])
def test_right_answers_are_accepted(events: Path, tmp_path: Path, query: str) -> None:
    answers = right_answers(events, query)
    write_answers(tmp_path, answers)
    assert len(answers) == check_answers(events, tmp_path, query)


@pytest.mark.parametrize("query", ["totals", "last_ten"])
def test_a_wrong_or_missing_answer_is_found(events: Path, tmp_path: Path, query: str) -> None:
    answers = right_answers(events, query)
    key = next(iter(answers))
    wrong = answers | {key: [answers[key][0] + 1, *answers[key][1:]]}
    write_answers(tmp_path / "wrong", wrong)
    with pytest.raises(AssertionError, match=f"key {key}: "):
        check_answers(events, tmp_path / "wrong", query)
    del wrong[key]
    write_answers(tmp_path / "missing", wrong)
    with pytest.raises(AssertionError, match="keys are answered"):
        check_answers(events, tmp_path / "missing", query)


def test_the_events_of_all_processes_count_without_the_first_tenth(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    for process in range(2):
        lines = [f"{1_000 + second} {100 * (second + 1)}" for second in range(10)]
        (tmp_path / f"marks/{process}").write_text("\n".join(lines))
    environment = {"ELSEWHERE_MARKS": str(tmp_path / "marks")}
    program = [sys.executable, "-c", "sum(range(10**6))"]
    seen = watch(program, environment, tmp_path / "log", limit_s=60)
    assert (0, 9.0) == (seen.code, seen.events_s)
    assert 1_800 == seen.events  # of 2,000


def test_a_program_that_does_not_end_is_ended_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    environment = {"ELSEWHERE_MARKS": str(tmp_path / "marks")}
    program = [sys.executable, "-c", "import time; print('started', flush=True); time.sleep(60)"]
    seen = watch(program, environment, tmp_path / "log", limit_s=1.5)
    assert seen.code is None
    assert seen.wall_s < 30
    assert np.isclose(0, seen.events)
    assert "started" in (tmp_path / "log").read_text()
