"""What cannot be read of recordings is reported, and the rest is used."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.support.forgeries.recordings import forge_recordings
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import COLUMNS, OUTPUT, Steps

from statelog.cli import main as cli
from statelog.errors import ProcessorError, UsageError
from statelog.extensions.operations.repair import plan_give_up
from statelog.extensions.recordings import location
from statelog.extensions.recordings.location import (
    StoredRecording,
    list_recordings,
    objects_with_key,
)
from statelog.extensions.testing.replay import replay
from statelog.spark.query.record import Record
from statelog.store import ObjectStore

pytestmark = pytest.mark.campaign

STEPS = ["--processor", "tests.support.jobs.recorded_processors:Steps"]


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    """Return a job with three recorded steps of k1, and a failure of k3."""
    job = RecordedJob(
        str(tmp_path / "state"), Steps(), COLUMNS, OUTPUT, Record(keys=(("k1",),)), retained=2
    )
    for number in range(3):
        job.run([("k1", "add", number), ("k1", "yield", 0)], 1000 + number)
    with pytest.raises(ProcessorError):
        job.run([("k3", "fail", 7)], 1200)
    return job


def objects(job: RecordedJob) -> list[Path]:
    """Return the files with recordings, oldest first; the failure is the last."""
    return [Path(job.location) / one.path for one in list_recordings(job.store)]


def flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def verified(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, Any]:
    status = cli.run(["verify", job.location, "--json"])
    *found, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return status, [one for one in found if not one["ok"]], summary["summary"]


def test_whole_recordings_are_verified(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (0, []) == verified(job, capsys)[:2]
    cli.run(["verify", job.location, "--json"])
    kinds = [json.loads(line).get("kind") for line in capsys.readouterr().out.splitlines()]
    assert 4 == kinds.count("recording")


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("at", [-1, 0, 12])
def test_verify_reports_a_damaged_recording(
    job: RecordedJob, which: int, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(objects(job)[which], at)
    status, (bad,), summary = verified(job, capsys)
    assert (1, "recording", "damaged") == (status, bad["kind"], bad["finding"])
    assert "damaged recording" in bad["problem"]
    newest = job.coordinator.latest.checkpoint_id
    assert newest == summary["newest_sound"], "state is restored without recordings"
    with pytest.raises(UsageError, match="all its objects are sound"):
        plan_give_up(job.store, newest)


def test_verify_reports_a_newer_and_a_missing_recording(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = objects(job)
    data = first.read_bytes()
    first.write_bytes(data[:4] + b"\x09" + data[5:])
    second.unlink()
    status, bad, summary = verified(job, capsys)
    assert (1, {"newer", "missing"}) == (status, {one["finding"] for one in bad})
    assert summary["newest_sound"] is None, "a restore needs every object to exist"


@pytest.mark.parametrize("harm", [Path.unlink, flip])
def test_the_others_are_replayed_and_the_gap_is_reported(
    job: RecordedJob,
    harm: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = objects(job)[1]
    name = f"recordings/{file.name}"
    harm(file)
    assert 1 == cli.run(["replay", job.location, "k1", *STEPS, "--json"])
    said = capsys.readouterr()
    assert [1, 3] == [json.loads(line)["checkpoint_id"] for line in said.out.splitlines()]
    assert f"the recording {name} is left out: " in said.err
    assert 1 == cli.run(["replay", job.location, "--json"])
    said = capsys.readouterr()
    assert {2, 0} == {json.loads(line)["steps"] for line in said.out.splitlines()}
    assert f"the recording {name} is left out: " in said.err
    with caplog.at_level(logging.WARNING, "statelog.spark"):
        assert 2 == len(replay(job.location, "k1", processor=Steps()))
    assert [name in one.getMessage() for one in caplog.records] == [True]


def test_a_recording_that_a_query_deletes_meanwhile_is_no_gap(
    job: RecordedJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = objects(job)[-1]
    original = location.read_recording

    def read(store: ObjectStore, stored: StoredRecording) -> Any:
        if stored.is_failure:
            gone.unlink(missing_ok=True)
        return original(store, stored)

    monkeypatch.setattr(location, "read_recording", read)
    assert 0 == cli.run(["replay", job.location, "k1", *STEPS])
    assert "" == capsys.readouterr().err


def test_the_error_of_a_key_without_steps_names_the_gap(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(objects(job)[-1])
    assert 2 == cli.run(["replay", job.location, "k3", *STEPS])
    assert "cannot be read: damaged recording" in capsys.readouterr().err


def test_a_schema_that_is_none_is_a_gap(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    forge_recordings(job.store, schema=b"{}")
    assert 1 == cli.run(["replay", job.location])
    assert 4 == capsys.readouterr().err.count("is left out: not a state schema")


def test_a_missing_recording_holds_no_key(job: RecordedJob) -> None:
    first, second, *_ = objects(job)
    first.unlink()
    assert f"recordings/{second.name}" in objects_with_key(job.store, "k1")
