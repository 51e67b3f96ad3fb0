"""`statelog report`: the file that it writes, the figures that it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import coordinator, put_named_tag
from tests.support.locations.costly_history import small_job
from tests.support.locations.histories import NAMES, History, local

from statelog.cli import main as cli
from statelog.store import open_store


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


def test_info_has_kind_size_pins_claims_and_next_commands(call, tmp_path: Path) -> None:
    job = tmp_path / "a job"
    small_job(job)
    said = call("info", str(job))
    assert f"{job}: the state of a query" in said
    assert "newest       checkpoint 4, micro-batch " in said
    assert "checkpoints  2 of 2 can be restored" in said and " of log in " in said
    assert f"  statelog checkpoints '{job}'" in said
    assert "attention    Tasks were repeated 2 times" in said
    put_named_tag(open_store(str(job)), "kept", 4)
    (facts,) = call.lines("info", str(job))
    assert ("the state of a query", 4) == (facts["kind"], facts["newest"])
    assert ["tag kept: checkpoint 4"] == facts["pins"]
    assert "" == facts["claimed"]
    assert "attention" in {finding["level"] for finding in facts["findings"]}
    coordinator(open_store(str(job)), "another").claim()
    said = call("info", str(job))
    assert "claimed by 'another'" in said and "it has not committed yet" in said


def test_operators_and_variables_are_named(call, tmp_path: Path) -> None:
    history = History("info", local(tmp_path))
    history.run(3)
    (facts,) = call.lines("info", str(tmp_path))
    (operator,) = facts["operators"]
    assert set(NAMES) <= {variable["name"] for variable in operator["variables"]}
    assert {"value", "list", "map"} <= {variable["kind"] for variable in operator["variables"]}
    said = call("info", str(tmp_path))
    assert f"operator     {operator['name']}, by {operator['key']}" in said
    assert f"  statelog read {tmp_path} {operator['variables'][0]['name']}" in said


def test_a_location_without_a_checkpoint(call, tmp_path: Path) -> None:
    coordinator(open_store(str(tmp_path / "job")), "first").claim()
    said = call("info", str(tmp_path / "job"))
    assert "claimed, without a checkpoint" in said and "0 of 0 can be restored" in said


@pytest.mark.parametrize(
    ("words", "expected"), [("statelog che", "checkpoints"), ("statelog info --js", "--json")]
)
def test_the_shell_completes_verbs_and_options(words: str, expected: str) -> None:
    environment = {
        **os.environ,
        "_STATELOG_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [str(Path(sys.executable).with_name("statelog"))]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert expected in ended.stdout.split(), ended.stderr


def test_without_words_the_first_commands_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == cli.run([])
    said = capsys.readouterr().out
    commands = [line.split()[1] for line in said.splitlines() if line.startswith("statelog ")]
    assert ["demo", "info", "checkpoints", "read", "get"] == commands
    assert "statelog --help" in said
