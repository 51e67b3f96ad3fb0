"""`statelog side-outputs`: the list, the rows as a table and as JSON, and a file of them."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from tests.support.jobs.emitting_processors import late_job
from tests.support.jobs.recorded_job import RecordedJob


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    """Return a job with a row of k1 at checkpoint 2, and of k2 at checkpoint 3."""
    job = late_job(tmp_path / "state")
    for number in (1, 2):
        job.run([(f"k{number}", "row", number)])
    return job


def test_side_outputs_are_listed(call, job: RecordedJob) -> None:
    assert job.base is not None
    newest = str(job.base.checkpoint_id)
    listed = call("side-outputs", job.location).split()
    assert ["late", "totals", "2", "1", newest, "1", "row"] == listed[-7:]
    (side_output,) = call.lines("side-outputs", job.location)
    assert ("late", 2) == (side_output["name"], side_output["rows"])


def test_the_rows_are_shown(call, job: RecordedJob) -> None:
    shown = call("side-outputs", job.location, "late").split()
    assert ["checkpoint_id", "batch_id", "k", "at"] == shown[:4]
    assert ["2", "rows"] == shown[-2:]
    assert job.base is not None
    since = str(job.base.checkpoint_id - 1)
    (row,) = call.lines("side-outputs", job.location, "late", "--since", since)
    assert (1, "k2") == (row["batch_id"], row["k"])
    assert row["at"].startswith("1970-01-01T00:00:02")


def test_a_file_has_all_rows_and_is_written_once(call, job: RecordedJob, tmp_path: Path) -> None:
    file = tmp_path / "late.parquet"
    arguments = ["side-outputs", job.location, "late", "--to", str(file)]
    assert "2 rows" in " ".join(call(*arguments).split())
    assert ["k1", "k2"] == pq.read_table(file).column("k").to_pylist()
    assert "cannot be written" in call(*arguments, status=2)


def test_options_of_rows_need_a_name(call, job: RecordedJob) -> None:
    said = call("side-outputs", job.location, "--since", "1", status=2)
    assert "require the name of a side output" in said


def test_an_unknown_side_output_is_empty(call, job: RecordedJob) -> None:
    assert ["0", "rows"] == call("side-outputs", job.location, "later").split()[-2:]
