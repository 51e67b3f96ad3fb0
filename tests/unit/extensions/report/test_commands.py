"""`statelog report`: the file that it writes, the figures that it prints."""

from pathlib import Path

import pytest
from tests.support.locations.costly_history import small_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    small_job(tmp_path / "job")
    return tmp_path / "job"


def test_a_page_is_written(call, job: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.html"
    said = call("report", str(job), "-o", str(output), "--no-count-keys")
    text = output.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and str(job) in text
    assert f"wrote {output}" in said and "2 checkpoints" in said
    assert "attention Tasks were repeated 2 times" in said
    assert [output.name] == [path.name for path in tmp_path.iterdir() if path.is_file()]
    absent = tmp_path / "none" / "out.html"
    assert f"cannot write {absent}" in call("report", str(job), "-o", str(absent), status=2)


def test_figures_are_printed_as_json_and_no_page_is_written(
    call, job: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.html"
    (figures,) = call.lines("report", str(job), "-o", str(output), "--latency", "7")
    assert not output.exists()
    assert (4, 7.0) == (figures["newest_id"], figures["restart"]["speeds"]["latency_ms"])
    assert "s3" == figures["bill"]["prices"]["name"]
    (figures,) = call.lines("report", str(job), "--prices", "gcs", "--put-price", "2")
    prices = figures["bill"]["prices"]
    assert ("gcs", 2.0, 0.02) == (prices["name"], prices["puts_per_1000"], prices["gb_month"])
    said = call("report", str(job), "--prices", "other", status=2)
    assert "--prices must be one of s3, s3-express, gcs, azure" in said


def test_damage_is_a_finding_and_the_page_is_written(call, job: Path, tmp_path: Path) -> None:
    path = job / "chk-3" / "_metadata"
    path.write_bytes(path.read_bytes()[:-9])
    output = tmp_path / "out.html"
    said = call("report", str(job), "-o", str(output), status=1)
    assert "damage Checkpoint 3 is damaged" in said
    assert "Checkpoint 3 is damaged" in output.read_text(encoding="utf-8")
