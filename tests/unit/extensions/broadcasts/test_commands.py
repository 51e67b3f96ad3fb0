"""`statelog broadcasts`: which version each checkpoint saw, and its rows."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from tests.support.jobs.rated_job import ROWS, RatedJob

from statelog.cli import main as cli


@pytest.fixture
def job(tmp_path: Path) -> RatedJob:
    """Return a job whose last micro-batch saw a second version."""
    made = RatedJob(str(tmp_path / "state"))
    for factor in (1, 1, 2):
        made.factor = factor
        made.run(ROWS)
    return made


def test_the_versions_of_all_checkpoints_are_listed(
    job: RatedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == cli.run(["broadcasts", job.location, "--json"])
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ["rules"] * 3 == [each["name"] for each in listed]
    first, second, third = listed
    assert first["version"] == second["version"] != third["version"]
    assert (first["since"], third["since"]) == (second["since"], third["checkpoint_id"])
    newest = str(third["checkpoint_id"])
    assert 0 == cli.run(["broadcasts", job.location, "--checkpoint", newest])
    shown = capsys.readouterr().out.split()
    assert {"rules", third["version"], "1", "row"} <= set(shown)


def test_the_rows_of_a_version_are_shown_and_written(
    job: RatedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == cli.run(["broadcasts", job.location, "rules", "--checkpoint", "1", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [{"op": "add", "factor": 1}, {"op": "put", "factor": 1}] == rows
    file = tmp_path / "rules.parquet"
    assert 0 == cli.run(["broadcasts", job.location, "rules", "--to", str(file)])
    assert [2, 2] == pq.read_table(file)["factor"].to_pylist()
    capsys.readouterr()
    assert 2 == cli.run(["broadcasts", job.location, "--to", str(file)])
    assert "--to needs the name" in capsys.readouterr().err
    assert 2 == cli.run(["broadcasts", job.location, "prices"])
    assert "it has rules" in capsys.readouterr().err
