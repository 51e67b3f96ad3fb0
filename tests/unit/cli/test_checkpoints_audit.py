"""Each command that changes a location writes one audit line, each other command none."""

import base64
import datetime as dt
import getpass
import os
import shutil
import socket
from pathlib import Path

import pytest
from tests.support.locations import changing_commands
from tests.support.locations.changing_commands import Place, key_texts
from tests.support.locations.histories import key_of
from tests.support.locations.stored_job import StoredJob
from tests.support.stores.killed_command import Killer

import statelog
from statelog.checkpoint import verify_location
from statelog.checkpoint.audit import USER_ENVIRONMENT, AuditLine, audited, read_audit_log
from statelog.checkpoint.clean_up import collect_garbage
from statelog.cli import main as cli
from statelog.errors import StoreError
from statelog.store import open_existing_store, open_location, open_store

KEY = key_texts(changing_commands.KEY)

READ_ONLY = {
    "info": ["LOC"], "checkpoints": ["LOC"], "read": ["LOC"], "get": ["LOC", "total", *KEY],
    "get --history": ["LOC", "total", *KEY], "diff": ["LOC", "2", "3"], "sql": ["LOC", "select 1"],
    "read --to": ["OUT", "LOC"], "changelog": ["LOC/chk-3/_metadata"], "verify": ["LOC"],
    "report": ["LOC", "-o", "OUT.html"], "replay": ["LOC"], "dead-letters": ["LOC"],
    "side-outputs": ["LOC"], "broadcasts": ["LOC"], "audit": ["LOC"],
}  # fmt: skip
"""A call of each command that changes no location."""
DRY_RUNS = {
    "gc": ["LOC", "--min-age", "0s"], "verify --repair": ["LOC", "--min-age", "0s"],
    "rewind": ["QUERY", "--batch-id", "2", "--state-location", "LOC"], "tag": ["LOC"],
    "tag --remove": ["LOC", "nothing"], "forget": ["LOC", *KEY, "--now"],
    "edit": ["LOC", "--delete", "OUT/total.parquet"],
}  # fmt: skip
"""A call of each command that changes a location if it is told to."""
NO_LINE = {"demo", "publish"}
"""Commands without a location, or which keep the position of a reader there and change nothing."""
ELSEWHERE = {"unfreeze"}
"""Needs frozen keys; tests/unit/extensions/bad_records/test_worker_frozen_keys.py reads its line."""
CHANGING = {
    "fork", "fork a tag", "fork --copy", "fork --state-only", "copy", "tag", "tag --remove", "rewind",
    "verify --repair", "verify --give-up-after", "edit from files", "forget", "forget --now", "gc",
}  # fmt: skip
"""Commands of the campaign of kills, each once in the form that it has there."""
REPAIRS = ("verify --repair", "verify --give-up-after")
OPERATIONS = {"tag --remove": "untag", **dict.fromkeys(REPAIRS, "repair")}
"""What their lines call them, where that is not the command."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "work")
    job = StoredJob("killed 4", place.root, retained=3)
    for _ in range(changing_commands.BATCHES):
        job.micro_batch()
    return place


def lines_of(location: str) -> list[AuditLine]:
    if not Path(location, "audit").is_dir():
        return []
    log = read_audit_log(open_existing_store(location))
    assert ((), ()) == (log.unknown, tuple(line.problem for line in log.lines if line.problem))
    return list(log.lines)


def run(place: Place, command: str, words: list[str]) -> int:
    names = {"LOC": place.state, "QUERY": place.query, "OUT": str(place.root / "out")}
    for name, value in names.items():
        words = [word.replace(name, value) for word in words]
    return cli.run([*command.split(), *words])


def test_no_command_is_forgotten():
    callbacks = [command.callback for command in cli.verbs.registered_commands]
    names = {callback.__name__.replace("_", "-") for callback in callbacks if callback}
    changing = {name.split()[0] for name in CHANGING}
    reading = {name.split()[0] for name in READ_ONLY}
    assert names == NO_LINE | ELSEWHERE | reading | changing
    assert {name.split()[0] for name in DRY_RUNS} <= changing


@pytest.mark.parametrize("command", READ_ONLY | DRY_RUNS)
def test_a_command_that_changes_nothing_writes_no_line(command, place):
    if command == "edit":
        changing_commands.with_export(place)
    before = sorted(Path(place.state).rglob("*"))
    assert run(place, command, (READ_ONLY | DRY_RUNS)[command]) in (0, 1, 2)
    assert before == sorted(Path(place.state).rglob("*"))


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_a_command_that_changes_a_location_writes_one_line(name, place):
    prepare, command = changing_commands.COMMANDS[name]
    prepare(place)
    earlier = {line.name for line in lines_of(place.state)}
    assert command(place) == 0
    new = [line for line in lines_of(place.state) if line.name not in earlier]
    expected = OPERATIONS.get(name, name.split()[0])
    if expected in ("fork", "copy"):
        (line,) = [line for line in lines_of(place.new) if line.name not in earlier]
        check_line(line, expected, place.new)
    if expected != "copy":
        (line,) = [written for written in new if operation_of(written) == expected]
        check_line(line, expected, place.state)
        # `fork --copy` needs its parent no more, and says there that it has released it.
        assert len(new) == (2 if name == "fork --copy" else 1)
    count = len(lines_of(place.state))
    assert command(place) == 0
    repeated = len(lines_of(place.state)) - count
    assert repeated == (name == "verify --give-up-after"), "it claims the location again"


def operation_of(line: AuditLine) -> str:
    return line.begin.operation if line.begin else ""


def check_line(line: AuditLine, operation: str, location: str) -> None:
    assert line.begin is not None
    assert ("done", operation) == (line.outcome, line.begin.operation)
    assert (getpass.getuser(), socket.gethostname(), os.getpid()) == (
        line.begin.user, line.begin.host, line.begin.process
    )  # fmt: skip
    assert f"file://{location}" == line.begin.location


@pytest.mark.parametrize("name", ["gc", "edit from files", "copy", "rewind", "forget --now"])
def test_a_command_that_was_killed_is_unfinished(name, place, tmp_path, monkeypatch):
    prepare, command = changing_commands.COMMANDS[name]
    killer = Killer()
    killer.install(monkeypatch)
    prepare(place)
    template = tmp_path / "template"
    shutil.copytree(place.root, template)
    killer.run(lambda: command(place))
    changes = killer.changes
    changed = place.new if name == "copy" else place.state
    for limit in range(changes):
        shutil.rmtree(place.root)
        shutil.copytree(template, place.root)
        killer.run(lambda: command(place), limit)
        outcomes = [
            line.outcome for line in lines_of(changed) if operation_of(line) == name.split()[0]
        ]
        assert (["unfinished"] if limit else []) == outcomes, f"killed before change {limit}"


def test_a_line_has_no_key_and_no_secret(place):
    assert run(place, "forget", ["LOC", *KEY, "--now", "--apply"]) == 0
    (line,) = lines_of(place.state)
    assert line.begin is not None
    assert {"now": True} == line.begin.arguments
    content = b"".join(path.read_bytes() for path in Path(place.state, "audit").iterdir())
    assert not any(len(part) > 2 and part.encode() in content for part in KEY)
    with audited(open_location(place.new), "test", url="s3://key:secret@bucket/x") as operation:
        operation.begin()
    (line,) = lines_of(place.new)
    assert line.begin is not None
    assert {"url": "s3://***@bucket/x"} == line.begin.arguments


def test_an_error_is_named_without_its_text(place):
    with pytest.raises(StoreError), audited(open_location(place.new), "test") as operation:
        operation.begin()
        raise StoreError("the key of a person")
    (line,) = lines_of(place.new)
    assert line.end is not None
    assert ("failed", "StoreError") == (line.outcome, line.end.error)


def test_nothing_is_changed_without_a_line(place):
    changing_commands.with_garbage(place)
    Path(place.state, "audit").write_bytes(b"no folder")
    assert run(place, "gc", ["LOC", "--min-age", "0s", "--apply"]) == 1
    assert Path(place.state, "dstl", "orphan").exists()


def test_the_log_is_shown(place, call, monkeypatch):
    assert "is empty" in call("audit", place.state)
    monkeypatch.setenv(USER_ENVIRONMENT, "ann\x1b[2J")
    for name in ("a", "b", "c"):
        call("tag", place.state, name)
    text = call("audit", place.state)
    assert text.index("name=a") < text.index("name=b") < text.index("name=c")
    assert "ann\\x1b[2J" in text
    assert "2 earlier lines" in call("audit", place.state, "--limit", "1")
    before, last, summary = call.lines("audit", place.state, "--limit", "2")
    assert ("b", "c") == (before["arguments"]["name"], last["arguments"]["name"])
    assert {"lines": 2, "earlier": 1, "problems": []} == summary["summary"]
    assert ("done", "tag") == (last["outcome"], last["operation"])
    assert 4 == last["result"]["checkpoint_id"]


def test_damaged_lines_are_reported(place, call):
    for name in ("a", "b", "c"):
        call("tag", place.state, name)
    first, second, _, fourth, fifth, _ = sorted(Path(place.state, "audit").iterdir())
    first.write_bytes(b"\x00" + b"forged")
    fourth.write_bytes(bytes(100_000))
    fifth.unlink()
    (first.parent / "other").write_bytes(b"")
    text = call("audit", place.state, status=1)
    assert first.name in text
    assert "a different program wrote it" in text
    assert "the object that records its start is missing" in text
    assert "audit/other is not part of an audit line" in text
    assert second.exists()
    call("copy", place.state, place.new)
    assert first.name in call("audit", place.new, status=1), "copied as it is"


def test_the_folder_is_kept_by_gc_and_copied_by_copy(place, call):
    call("tag", place.state, "a")
    store = open_store(place.state)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    report = collect_garbage(store, min_age=dt.timedelta(0), apply=True, now=later)
    assert 0 == report.unknown
    assert [] == [item.problem for item in verify_location(store) if item.problem]
    call("copy", place.state, place.new)
    assert ["tag", "copy"] == [operation_of(line) for line in lines_of(place.new)]
    assert ["tag"] == [operation_of(line) for line in lines_of(place.state)]


def test_the_lines_of_an_encrypted_location_are_encrypted(place, call, monkeypatch):
    monkeypatch.setenv("KEYS", "k:" + base64.b64encode(bytes(32)).decode())
    call("copy", place.state, place.new, "--new-encryption", "env:KEYS")
    monkeypatch.setenv("STATELOG_ENCRYPTION", "env:KEYS")
    call("tag", place.new, "a")
    objects = list(Path(place.new, "audit").iterdir())
    assert all(path.read_bytes().startswith(b"STLGENC1") for path in objects)
    assert 4 == len(objects)
    assert "name=a" in call("audit", place.new)


def test_calls_from_python_write_lines_too(place):
    statelog.tag(place.state, "a")
    changing_commands.edit(place)
    statelog.forget(place.state, key_of(changing_commands.KEY), apply=True)
    statelog.forget(place.state, key_of(changing_commands.KEY), apply=True)
    operations = [operation_of(line) for line in lines_of(place.state)]
    assert ["tag", "edit", "forget"] == operations
