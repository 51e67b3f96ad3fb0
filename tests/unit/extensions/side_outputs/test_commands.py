"""`statelog side-outputs`: the list, the rows as a table and as JSON, and a file of them."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from tests.support.jobs.emitting_processors import late_job
from tests.support.jobs.recorded_job import RecordedJob

from statelog.cli import main as cli


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    """Return a job with a row of k1 at checkpoint 2, and of k2 at checkpoint 3."""
    made = late_job(tmp_path / "state")
    for number in (1, 2):
        made.run([(f"k{number}", "row", number)])
    return made


def words(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.split()


def test_they_are_listed(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.run(["side-outputs", job.location])
    assert job.base is not None
    newest = str(job.base.checkpoint_id)
    assert ["late", "totals", "2", "1", newest, "1", "row"] == words(capsys)[-7:]
    assert 0 == cli.run(["side-outputs", job.location, "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert ("late", 2) == (listed["name"], listed["rows"])


def test_the_rows_are_shown(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.run(["side-outputs", job.location, "late"])
    shown = words(capsys)
    assert ["checkpoint_id", "batch_id", "k", "at"] == shown[:4]
    assert ["2", "rows"] == shown[-2:]
    assert job.base is not None
    since = str(job.base.checkpoint_id - 1)
    assert 0 == cli.run(["side-outputs", job.location, "late", "--since", since, "--json"])
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (1, "k2") == (row["batch_id"], row["k"])
    assert row["at"].startswith("1970-01-01T00:00:02")


def test_a_file_has_all_rows_and_is_written_once(
    job: RecordedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "late.parquet"
    arguments = ["side-outputs", job.location, "late", "--to", str(file)]
    assert 0 == cli.run(arguments)
    assert "2 rows" in " ".join(words(capsys))
    assert ["k1", "k2"] == pq.read_table(file).column("k").to_pylist()
    assert 2 == cli.run(arguments)
    assert "cannot be written" in capsys.readouterr().err


def test_options_of_rows_need_a_name(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == cli.run(["side-outputs", job.location, "--since", "1"])
    assert "need the name of a side output" in capsys.readouterr().err


def test_an_unknown_side_output_is_empty(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == cli.run(["side-outputs", job.location, "later"])
    assert ["0", "rows"] == words(capsys)[-2:]
