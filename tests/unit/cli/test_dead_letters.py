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

pytestmark = pytest.mark.job

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


def test_frozen_keys_are_listed_and_unfrozen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = ErrorPolicy(True, MaxErrors(), freezes=True)
    job = RecordedJob(str(tmp_path / "state"), Steps(), COLUMNS, OUTPUT, None, errors=policy)
    job.run([("k1", "fail", 3), ("k2", "fail", 4), ("k3", "fail", 4), ("k4", "add", 1)], 1000)
    job.run([("k1", "add", 5)], 1200)

    def said(*arguments: str) -> str:
        assert 0 == cli.run([*arguments])
        return " ".join(capsys.readouterr().out.split())

    marks = said("read", job.location, "$frozen")
    assert "k2" in marks
    assert "ArithmeticError: cannot do 4" in marks
    assert "frozen since checkpoint 1" in said("dead-letters", job.location)
    assert "3 keys would be unfrozen This was a dry run; --apply does it." in said(
        "unfreeze", job.location
    )
    assert "1 key unfrozen in checkpoint" in said("unfreeze", job.location, "k1", "--apply")
    assert "0 keys would be unfrozen, 1 not frozen" == said("unfreeze", job.location, "k1")
    report = json.loads(said("unfreeze", job.location, "--apply", "--json"))
    counts = report["counts"]
    assert (False, 2) == (report["dry_run"], counts["updated"] + counts["deleted"])
    assert "0 keys would be unfrozen" == said("unfreeze", job.location)
    assert 2 == cli.run(["unfreeze", job.location, "k1", "k2"])
    assert "2 given" in capsys.readouterr().err


def test_a_query_that_never_froze_a_key_has_none(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == cli.run(["unfreeze", job.location])
    assert "no query with onError='freeze' has run on it" in " ".join(
        capsys.readouterr().err.split()
    )


def test_an_operator_is_named(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == cli.run(["dead-letters", job.location, "--operator", "other"])
    assert "has no operator 'other'; name one of totals" in capsys.readouterr().err
    assert 0 == cli.run(["dead-letters", job.location, "--operator", "totals"])
    assert capsys.readouterr().out.strip().endswith("2 dead letters")
