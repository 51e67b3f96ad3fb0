"""`statelog dead-letters`: as a table, as JSON, their rows as a file, and `statelog replay` on them."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import steps_job

import statelog
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import CorruptionError, UsageError
from statelog.extensions.bad_records.policy import ErrorPolicy, MaxErrors
from statelog.extensions.recordings.format import decode_file, encode_file, encode_recording
from statelog.format.arrow_data import to_stream

pytestmark = pytest.mark.job

STEPS = ["--processor", "tests.support.jobs.recorded_processors:Steps"]


def job_in(folder: Path, **policy: bool) -> RecordedJob:
    return steps_job(folder / "state", errors=ErrorPolicy(True, MaxErrors(1000), **policy))


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    """Return a job with a dead letter of k1 at checkpoint 1, and of k2 at checkpoint 2."""
    job = job_in(tmp_path)
    job.run([("k1", "add", 3), ("k1", "fail", 4), ("k2", "add", 1)], 1000)
    job.run([("k2", "fail", 7)], 1200)
    return job


def test_dead_letters_are_listed_and_replayed(call, job: RecordedJob) -> None:
    text = " ".join(call("dead-letters", job.location).split())
    assert "handleInputRows" in text
    assert "cannot do 4" in text
    assert text.endswith("2 dead letters")
    assert "0 dead letters" == call("dead-letters", job.location, "--since", "2").strip()
    (letter,) = call.lines("dead-letters", job.location, "--since", "1")
    facts = {name: letter[name] for name in ("checkpoint_id", "batch_id", "key", "error")}
    assert {"checkpoint_id": 2, "batch_id": 1, "key": ["k2"], "error": "ArithmeticError"} == facts
    assert [{"k": "k2", "op": "fail", "n": 7}] == letter["rows"]
    assert [] == letter["initial_rows"]
    assert "raise ArithmeticError" in letter["traceback"]
    keys = call.lines("replay", job.location)
    counts = {key["key"][0]: (key["steps"], key["failures"]) for key in keys}
    assert {"k1": (0, 1), "k2": (0, 1)} == counts
    said = call("replay", job.location, "k1", *STEPS, status=1)
    assert "fails as recorded" in said
    assert "ArithmeticError: cannot do 4" in said


def test_the_rows_are_written_once(call, job: RecordedJob, tmp_path: Path) -> None:
    file = tmp_path / "failed.parquet"
    command = ["dead-letters", job.location, "--to", str(file)]
    assert f"wrote {file}: 3 rows" in call(*command).replace("\n", "")
    table = pq.read_table(file)
    assert job.input.names == table.column_names
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert [("k1", "add", 3), ("k1", "fail", 4), ("k2", "fail", 7)] == rows
    assert "cannot be written" in call(*command, status=2)


def forge(job: RecordedJob, **fields: Any) -> str:
    """Change fields of the oldest dead letter, with a checksum that fits, and return its object."""
    with statelog.open(job.location) as state:
        checkpoint = state.reader().checkpoint
    path = BatchRecord.of(checkpoint).attachments[0].path
    file = Path(job.location) / path
    first, *others = decode_file(file.read_bytes())
    forged = [msgspec.structs.replace(first, **fields), *others]
    file.write_bytes(encode_file([encode_recording(task) for task in forged]))
    return path


def test_a_damaged_dead_letter_names_its_object_and_hides_no_other(
    call, job: RecordedJob, tmp_path: Path
) -> None:
    path = forge(job, calls=[(0, "handleInputRows", -1, 5)])
    said = call("dead-letters", job.location, status=1)
    assert "k2" in said and "1 dead letter" in said
    assert f"{path} was skipped: damaged recording: its calls yielded 5 rows" in said
    file = tmp_path / "failed.parquet"
    call("dead-letters", job.location, "--to", str(file), status=1)
    assert ["k2"] == pq.read_table(file)["k"].to_pylist()
    with statelog.open(job.location) as state:
        for read in (state.dead_letters, state.dead_letter_rows):
            with pytest.raises(CorruptionError, match=path) as caught:
                read()
            assert path == caught.value.path
    with pytest.raises(CorruptionError, match=path):
        statelog.forget(job.location, ("k2",))


@pytest.mark.parametrize("time_ms", [2**62, -(2**62), 253_402_300_800_000])
def test_a_forged_time_does_not_end_in_a_traceback(call, job: RecordedJob, time_ms: int) -> None:
    forge(job, recorded_at_ms=time_ms, now_ms=time_ms, watermark_ms=time_ms)
    commands = (["dead-letters"], ["dead-letters", "--json"], ["replay"], ["info"])
    said = [call(verb, job.location, *options) for verb, *options in commands]
    said.append(call("replay", job.location, "k1", *STEPS, status=1))
    assert "fails as recorded" in said[-1]
    assert time_ms < 0 or f"{time_ms} ms" in "".join(said)


def test_a_time_zone_that_does_not_exist_is_damage(call, job: RecordedJob) -> None:
    column = pa.array([0, 1, 2], pa.timestamp("us", "Mars/Olympus"))
    rows = pa.table({"record": pa.array([0, 0, 0], pa.int32()), "at": column})
    path = forge(job, input=to_stream(rows), first_input=0)
    said = call("dead-letters", job.location, status=1)
    assert f"{path} was skipped: damaged recording" in said
    assert "k2" in said


def test_rows_of_two_operators_are_not_mixed(call, job: RecordedJob, tmp_path: Path) -> None:
    forge(job, operator_id="second")
    file = tmp_path / "failed.parquet"
    said = call("dead-letters", job.location, "--to", str(file), status=2)
    assert "--operator" in said and "second" in said
    assert not file.exists()
    with statelog.open(job.location) as state, pytest.raises(UsageError, match="operator="):
        state.dead_letter_rows()


def test_frozen_keys_are_listed_and_unfrozen(call, tmp_path: Path) -> None:
    job = job_in(tmp_path, freezes=True)
    job.run([("k1", "fail", 3), ("k2", "fail", 4), ("k3", "fail", 4), ("k4", "add", 1)], 1000)
    job.run([("k1", "add", 5)], 1200)

    def said(verb: str, *arguments: str) -> str:
        return " ".join(call(verb, job.location, *arguments).split())

    marks = said("read", "$frozen")
    assert "k2" in marks
    assert "ArithmeticError: cannot do 4" in marks
    assert "frozen since checkpoint 1" in said("dead-letters")
    dry_run = "This was a dry run; --apply makes the changes. Stop the query first."
    assert f"3 keys would be unfrozen {dry_run}" in said("unfreeze")
    assert "1 key unfrozen in checkpoint" in said("unfreeze", "k1", "--apply")
    assert "0 keys would be unfrozen, 1 not frozen" == said("unfreeze", "k1")
    (report,) = call.lines("unfreeze", job.location, "--apply")
    counts = report["counts"]
    assert (False, 2) == (report["dry_run"], counts["updated"] + counts["deleted"])
    assert "0 keys would be unfrozen" == said("unfreeze")
    assert "got 2" in call("unfreeze", job.location, "k1", "k2", status=2)


def test_unfreeze_needs_a_query_that_froze_keys(call, job: RecordedJob) -> None:
    said = " ".join(call("unfreeze", job.location, status=2).split())
    assert "no query with onError='freeze' has run there" in said
