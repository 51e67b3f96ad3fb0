"""`statelog dead-letters`: as a table, as JSON, their rows as a file, and `statelog replay` on them."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from tests.recorded_job import RecordedJob
from tests.recorded_processors import COLUMNS, OUTPUT, Steps

from statelog.cli import main as cli
from statelog.spark.query.error_policy import ErrorPolicy, MaxErrors

STEPS = ["--processor", "tests.recorded_processors:Steps"]


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    """Return a job with a dead letter of k1 at checkpoint 1, and of k2 at checkpoint 2."""
    made = RecordedJob(
        str(tmp_path / "state"),
        Steps(),
        COLUMNS,
        OUTPUT,
        None,
        errors=ErrorPolicy(True, MaxErrors()),
    )
    made.run([("k1", "add", 3), ("k1", "fail", 4), ("k2", "add", 1)], 1000)
    made.run([("k2", "fail", 7)], 1200)
    return made


def test_they_are_listed(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.run(["dead-letters", job.location])
    text = " ".join(capsys.readouterr().out.split())
    assert "handleInputRows" in text
    assert "cannot do 4" in text
    assert text.endswith("2 dead letters")
    assert 0 == cli.run(["dead-letters", job.location, "--since", "2"])
    assert "0 dead letters" == capsys.readouterr().out.strip()


def test_json_has_the_rows_and_the_traceback(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == cli.run(["dead-letters", job.location, "--json", "--since", "1"])
    (letter,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (2, 1, ["k2"], "ArithmeticError") == (
        letter["checkpoint_id"], letter["batch_id"], letter["key"], letter["error"],
    )  # fmt: skip
    assert [{"k": "k2", "op": "fail", "n": 7}] == letter["rows"]
    assert [] == letter["initial_rows"]
    assert "raise ArithmeticError" in letter["traceback"]


def test_their_rows_are_written_once(
    job: RecordedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failed.parquet"
    command = ["dead-letters", job.location, "--rows", str(file)]
    assert 0 == cli.run(command)
    assert f"wrote {file}: 3 rows" in capsys.readouterr().out.replace("\n", "")
    table = pq.read_table(file)
    assert job.input.names == table.column_names
    assert [("k1", "add", 3), ("k1", "fail", 4), ("k2", "fail", 7)] == [
        tuple(row.values()) for row in table.to_pylist()
    ]
    assert 2 == cli.run(command)
    assert "cannot be written" in capsys.readouterr().err


def test_replay_opens_them(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.run(["replay", job.location, "--json"])
    found = {each["key"][0]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {"k1": (0, 1), "k2": (0, 1)} == {
        key: (each["steps"], each["failures"]) for key, each in found.items()
    }
    assert 1 == cli.run(["replay", job.location, "k1", *STEPS])
    text = capsys.readouterr().out
    assert "fails as recorded" in text
    assert "ArithmeticError: cannot do 4" in text


def test_an_operator_is_named(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == cli.run(["dead-letters", job.location, "--operator", "other"])
    assert "has no operator 'other'; name one of totals" in capsys.readouterr().err
    assert 0 == cli.run(["dead-letters", job.location, "--operator", "totals"])
    assert capsys.readouterr().out.strip().endswith("2 dead letters")
