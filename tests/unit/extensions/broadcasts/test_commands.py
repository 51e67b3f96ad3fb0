"""`statelog broadcasts`: which version each checkpoint saw, and its rows."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.jobs.rated_job import ROWS, RatedJob


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Return the location of a job whose last micro-batch saw a second version."""
    job = RatedJob(str(tmp_path / "state"))
    for factor in (1, 1, 2):
        job.factor = factor
        job.run(ROWS)
    return job.location


def test_the_versions_of_all_checkpoints_are_listed(call, location: str) -> None:
    first, second, third = call.lines("broadcasts", location)
    assert ["rules"] * 3 == [version["name"] for version in (first, second, third)]
    assert first["version"] == second["version"] != third["version"]
    assert (first["since"], third["since"]) == (second["since"], third["checkpoint_id"])
    words = call("broadcasts", location, "--checkpoint", str(third["checkpoint_id"])).split()
    assert {"rules", third["version"], "1", "row"} <= set(words)


def test_the_rows_of_a_version_are_shown_and_written(call, location: str, tmp_path: Path) -> None:
    rows = call.lines("broadcasts", location, "rules", "--checkpoint", "1")
    assert [{"op": "add", "factor": 1}, {"op": "put", "factor": 1}] == rows
    file = tmp_path / "rules.parquet"
    call("broadcasts", location, "rules", "--to", str(file))
    assert [2, 2] == pq.read_table(file)["factor"].to_pylist()
    said = call("broadcasts", location, "--to", str(file), status=2)
    assert "--to requires the name" in said
    assert "its broadcast tables are rules" in call("broadcasts", location, "prices", status=2)
