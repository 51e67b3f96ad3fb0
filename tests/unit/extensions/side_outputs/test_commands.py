"""`statelog side-outputs`: the list, the rows as a table and as JSON, and a file of them."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.jobs.emitting_processors import late_job
from tests.support.jobs.recorded_job import RecordedJob


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    """Return a job with a row of k1 at checkpoint 1, and of k2 at checkpoint 2."""
    job = late_job(tmp_path / "state")
    for number in (1, 2):
        job.run([(f"k{number}", "row", number)])
    return job


def test_side_outputs_are_listed(call, job: RecordedJob) -> None:
    words = call("side-outputs", job.location).split()
    assert ["late", "totals", "2", "1", "2", "1", "row"] == words[-7:]
    (side_output,) = call.lines("side-outputs", job.location)
    assert ("late", 2) == (side_output["name"], side_output["rows"])


def test_the_rows_are_shown(call, job: RecordedJob) -> None:
    words = call("side-outputs", job.location, "late").split()
    assert ["checkpoint_id", "batch_id", "k", "at"] == words[:4]
    assert ["2", "rows"] == words[-2:]
    (row,) = call.lines("side-outputs", job.location, "late", "--since", "1")
    assert (1, "k2") == (row["batch_id"], row["k"])
    assert row["at"].startswith("1970-01-01T00:00:02")
    assert ["0", "rows"] == call("side-outputs", job.location, "later").split()[-2:]
    said = call("side-outputs", job.location, "--since", "1", status=2)
    assert "require the name of a side output" in said


def test_a_file_has_all_rows_and_is_written_once(call, job: RecordedJob, tmp_path: Path) -> None:
    file = tmp_path / "late.parquet"
    arguments = ["side-outputs", job.location, "late", "--to", str(file)]
    assert "2 rows" in " ".join(call(*arguments).split())
    assert ["k1", "k2"] == pq.read_table(file).column("k").to_pylist()
    assert "cannot be written" in call(*arguments, status=2)
