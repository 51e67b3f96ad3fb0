"""`statelog dead-letters`: as a table, as JSON, their rows as a file, and `statelog replay` on them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import COLUMNS, OUTPUT, Steps

import statelog
from statelog.checkpoint.batch_record import BatchRecord
from statelog.cli import main as cli
from statelog.errors import CorruptionError, UsageError
from statelog.extensions.recordings.format import decode_file, encode_file, encode_recording
from statelog.format.arrow_data import to_stream
from statelog.spark.query.error_policy import ErrorPolicy, MaxErrors

pytestmark = pytest.mark.job

STEPS = ["--processor", "tests.support.jobs.recorded_processors:Steps"]


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
    command = ["dead-letters", job.location, "--to", str(file)]
    assert 0 == cli.run(command)
    assert f"wrote {file}: 3 rows" in capsys.readouterr().out.replace("\n", "")
    table = pq.read_table(file)
    assert job.input.names == table.column_names
    assert [("k1", "add", 3), ("k1", "fail", 4), ("k2", "fail", 7)] == [
        tuple(row.values()) for row in table.to_pylist()
    ]
    assert 2 == cli.run(command)
    assert "cannot be written" in capsys.readouterr().err


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


def test_a_damaged_one_names_its_object_and_hides_no_other(
    job: RecordedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = forge(job, calls=[(0, "handleInputRows", -1, 5)])
    assert 1 == cli.run(["dead-letters", job.location])
    output = capsys.readouterr()
    assert "k2" in output.out and "1 dead letter" in output.out
    assert f"{path} is left out: damaged recording: its calls yielded 5 rows" in output.err
    file = tmp_path / "failed.parquet"
    assert 1 == cli.run(["dead-letters", job.location, "--to", str(file)])
    assert ["k2"] == pq.read_table(file)["k"].to_pylist()
    with statelog.open(job.location) as state:
        for read in (state.dead_letters, state.dead_letter_rows):
            with pytest.raises(CorruptionError, match=path) as caught:
                read()
            assert path == caught.value.path
    with pytest.raises(CorruptionError, match=path):
        statelog.forget(job.location, ("k2",))


@pytest.mark.parametrize("time_ms", [2**62, -(2**62), 253_402_300_800_000])
def test_a_forged_time_is_no_traceback(
    job: RecordedJob, time_ms: int, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(job, recorded_at_ms=time_ms, now_ms=time_ms, watermark_ms=time_ms)
    for command in (["dead-letters"], ["dead-letters", "--json"], ["replay"], ["info"]):
        assert 0 == cli.run([command[0], job.location, *command[1:]]), command
    assert 1 == cli.run(["replay", job.location, "k1", *STEPS]), "it fails as recorded"
    assert time_ms < 0 or f"{time_ms} ms" in capsys.readouterr().out


def test_a_time_zone_that_does_not_exist_is_damage(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    column = pa.array([0, 1, 2], pa.timestamp("us", "Mars/Olympus"))
    rows = pa.table({"record": pa.array([0, 0, 0], pa.int32()), "at": column})
    path = forge(job, input=to_stream(rows), first_input=0)
    assert 1 == cli.run(["dead-letters", job.location])
    output = capsys.readouterr()
    assert f"{path} is left out: damaged recording" in output.err
    assert "k2" in output.out


def test_rows_of_two_operators_are_not_mixed(
    job: RecordedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(job, operator_id="second")
    file = tmp_path / "failed.parquet"
    command = ["dead-letters", job.location, "--to", str(file)]
    assert 2 == cli.run(command)
    error = capsys.readouterr().err
    assert "--operator" in error and "second" in error
    assert not file.exists()
    with statelog.open(job.location) as state, pytest.raises(UsageError, match="operator="):
        state.dead_letter_rows()


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
    assert (
        "3 keys would be unfrozen This was a dry run; --apply makes the changes. Stop the query first."
        in said("unfreeze", job.location)
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
