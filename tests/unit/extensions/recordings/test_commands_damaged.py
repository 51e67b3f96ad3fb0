"""What cannot be read of recordings is reported, and the rest is used."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.forgeries.recordings import forge_recordings
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import Steps, steps_job

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
    job = steps_job(tmp_path / "state", record=Record(keys=(("k1",),)), retained=2)
    for number in range(3):
        job.run([("k1", "add", number), ("k1", "yield", 0)], 1000 + number)
    with pytest.raises(ProcessorError):
        job.run([("k3", "fail", 7)], 1200)
    return job


def files(job: RecordedJob) -> list[Path]:
    """Return the files with recordings, oldest first; the failure is the last."""
    return [Path(job.location) / recording.path for recording in list_recordings(job.store)]


def flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def findings(call, job: RecordedJob) -> tuple[list[Any], Any]:
    """Return what `verify` prints of each object with a finding, and its summary."""
    *objects, summary = call.lines("verify", job.location, status=1)
    return [item for item in objects if not item["ok"]], summary["summary"]


def test_whole_recordings_are_verified(call, job: RecordedJob) -> None:
    *objects, _ = call.lines("verify", job.location)
    assert {True} == {item["ok"] for item in objects}
    assert 4 == [item["kind"] for item in objects].count("recording")


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("at", [-1, 0, 12])
def test_verify_reports_a_damaged_recording(call, job: RecordedJob, which: int, at: int) -> None:
    flip(files(job)[which], at)
    (bad,), summary = findings(call, job)
    assert ("recording", "damaged") == (bad["kind"], bad["finding"])
    assert "damaged recording" in bad["problem"]
    newest = job.coordinator.latest.checkpoint_id
    assert newest == summary["newest_sound"], "state is restored without recordings"
    with pytest.raises(UsageError, match="all its objects are intact"):
        plan_give_up(job.store, newest)


def test_verify_reports_a_newer_and_a_missing_recording(call, job: RecordedJob) -> None:
    first, second, *_ = files(job)
    data = first.read_bytes()
    first.write_bytes(data[:4] + b"\x09" + data[5:])
    second.unlink()
    bad, summary = findings(call, job)
    assert {"newer", "missing"} == {item["finding"] for item in bad}
    assert summary["newest_sound"] is None, "a restore needs every object to exist"


@pytest.mark.parametrize("harm", [Path.unlink, flip])
def test_the_others_are_replayed_and_the_gap_is_reported(
    call, job: RecordedJob, harm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    file = files(job)[1]
    left_out = f"the recording recordings/{file.name} was skipped: "
    harm(file)
    steps = call.lines("replay", job.location, "k1", *STEPS, status=1)
    assert [1, 3] == [step["checkpoint_id"] for step in steps]
    assert {2, 0} == {key["steps"] for key in call.lines("replay", job.location, status=1)}
    for words in (["k1", *STEPS], []):
        assert left_out in call("replay", job.location, *words, status=1)
    with caplog.at_level(logging.WARNING, "statelog.spark"):
        assert 2 == len(replay(job.location, "k1", processor=Steps()))
    assert 1 == caplog.text.count(f"skips the recording recordings/{file.name}: ")


def test_a_recording_that_a_query_deletes_is_not_a_gap(
    job: RecordedJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = files(job)[-1]
    original = location.read_recording

    def read(store: ObjectStore, stored: StoredRecording) -> Any:
        if stored.is_failure:
            gone.unlink(missing_ok=True)
        return original(store, stored)

    monkeypatch.setattr(location, "read_recording", read)
    assert 0 == cli.run(["replay", job.location, "k1", *STEPS])
    assert "" == capsys.readouterr().err


def test_the_error_of_a_key_without_steps_names_the_gap(call, job: RecordedJob) -> None:
    flip(files(job)[-1])
    said = call("replay", job.location, "k3", *STEPS, status=2)
    assert "cannot be read: damaged recording" in said


def test_a_schema_that_cannot_be_read_is_a_gap(call, job: RecordedJob) -> None:
    forge_recordings(job.store, schema=b"{}")
    said = call("replay", job.location, status=1)
    assert 4 == said.count("was skipped: not a state schema")


def test_a_missing_recording_holds_no_key(job: RecordedJob) -> None:
    first, second, *_ = files(job)
    first.unlink()
    assert f"recordings/{second.name}" in objects_with_key(job.store, "k1")
