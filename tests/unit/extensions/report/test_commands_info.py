"""`statelog info`: what it says of a location, and the completion of the shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import coordinator
from tests.support.locations.costly_history import small_job
from tests.support.locations.histories import NAMES, History, local

from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import put_tag
from statelog.cli import main as cli
from statelog.store import open_store


def test_info_shows_kind_size_and_next_commands(call, tmp_path: Path) -> None:
    job = tmp_path / "a job"
    small_job(job)
    said = call("info", str(job))
    assert f"{job}: the state of a query" in said
    assert "newest       checkpoint 4, micro-batch " in said
    assert "checkpoints  2 of 2 can be restored" in said and " of log in " in said
    assert f"  statelog checkpoints '{job}'" in said
    assert "attention    Tasks were repeated 2 times" in said


def test_json_has_the_same_facts(call, tmp_path: Path) -> None:
    small_job(tmp_path / "job")
    store = open_store(str(tmp_path / "job"))
    put_tag(store, Tag(kind=TagKind.TAG, name="kept", checkpoint_id=4), clock_ms=lambda: 0)
    printed = call.lines("info", str(tmp_path / "job"))[0]
    assert ("the state of a query", 4) == (printed["kind"], printed["newest"])
    assert ["tag kept: checkpoint 4"] == printed["pins"]
    assert "" == printed["claimed"]
    assert "attention" in {finding["level"] for finding in printed["findings"]}


def test_operators_and_variables_are_named(call, tmp_path: Path) -> None:
    history = History("info", local(tmp_path))
    history.run(3)
    (operator,) = call.lines("info", str(tmp_path))[0]["operators"]
    assert set(NAMES) <= {variable["name"] for variable in operator["variables"]}
    assert {"value", "list", "map"} <= {variable["kind"] for variable in operator["variables"]}
    said = call("info", str(tmp_path))
    assert f"operator     {operator['name']}, by {operator['key']}" in said
    assert f"  statelog read {tmp_path} {operator['variables'][0]['name']}" in said


def test_a_claim_after_the_newest_checkpoint_is_shown(call, tmp_path: Path) -> None:
    small_job(tmp_path / "job")
    coordinator(open_store(str(tmp_path / "job")), "another").claim()
    said = call("info", str(tmp_path / "job"))
    assert "claimed by 'another'" in said and "it has not committed yet" in said


def test_a_location_without_a_checkpoint(call, tmp_path: Path) -> None:
    coordinator(open_store(str(tmp_path / "job")), "first").claim()
    said = call("info", str(tmp_path / "job"))
    assert "claimed, without a checkpoint" in said and "0 of 0 can be restored" in said


def test_damage_is_a_finding(call, tmp_path: Path) -> None:
    small_job(tmp_path / "job")
    path = tmp_path / "job" / "chk-4" / "_metadata"
    path.write_bytes(path.read_bytes()[:-9])
    said = call("info", str(tmp_path / "job"), status=1)
    assert "Checkpoint 4 is damaged" in said and " --repair" in said


@pytest.mark.parametrize(
    ("words", "expected"), [("statelog che", "checkpoints"), ("statelog info --js", "--json")]
)
def test_the_shell_completes_verbs_and_options(words: str, expected: str) -> None:
    variables = {
        "_STATELOG_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [str(Path(sys.executable).with_name("statelog"))]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )
    assert expected in done.stdout.split(), done.stderr


def test_without_words_the_first_commands_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == cli.run([])
    shown = capsys.readouterr().out
    commands = [line.split()[1] for line in shown.splitlines() if line.startswith("statelog ")]
    assert ["demo", "info", "checkpoints", "read", "get"] == commands
    assert "statelog --help" in shown
