"""The command line on real locations: what it prints, and with which exit status it ends."""

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.support.locations.checkpoints import (
    batch_of,
    log_in_file,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.processes.script import run_script

from statelog.cli.main import run, verbs
from statelog.cli.output import progress
from statelog.format.buffers import checksum
from statelog.format.segment import SegmentWriter
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot
from statelog.store import open_store

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
COMMANDS: dict[str, Any] = typer.main.get_command(verbs).commands
ALL = KeyGroupRange(0, 7)
TAKES_A_WHILE = 300_000


@pytest.fixture
def location(tmp_path) -> str:
    """Return a location with the checkpoints 1, 2 and 3; entry 0 is the claim."""
    store = open_store(str(tmp_path / "job"))
    coordinator = started(store, retained=2)
    small_checkpoint(coordinator, 1, properties={"batch": 0})
    small_checkpoint(coordinator, 2)
    store.put("taskowned/s", b"state")
    handle = FileStateHandle("taskowned/s", 5, checksum([b"state"]))
    log = log_in_file(store, ALL, [[(1, b"a")], [(2, b"b")]])
    snapshot = TaskStateSnapshot(ALL, log, MaterializedHandle(ALL, 2, handle))
    run_checkpoint(coordinator, 3, [snapshot], properties={"batch": 2, "[odd]": "[/red]"})
    store.put("dstl/orphan", b"12345")
    return str(tmp_path / "job")


def damage(location: str, name: str) -> None:
    path = Path(location, name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


# ------------------------------------------------------------------------------------ checkpoints


def test_checkpoints_are_listed_for_programs(call, location):
    checkpoints = call.lines("checkpoints", location)
    states = {item["checkpoint_id"]: item["state"] for item in checkpoints}
    assert states == {1: "subsumed", 2: "retained", 3: "retained"}
    last = checkpoints[-1]
    assert (last["parent_id"], last["snapshot_count"], last["log_length"]) == (2, 1, 1)
    assert last["properties"] == {"batch": 2, "[odd]": "[/red]"}
    assert last["size_bytes"] == Path(location, "chk-3/_metadata").stat().st_size


def test_checkpoints_are_listed_for_people(call, location):
    text = call("checkpoints", location)
    assert "retained" in text
    assert "batch=2 [odd]=[/red]" in text
    assert "3 checkpoints in " in text
    assert "2023-11-14 22:13:20" in text


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_a_narrow_terminal_shows_ids_and_states(call, location, columns, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    text = call("checkpoints", location)
    *table, last = re.sub(r"\x1b\[\d+m", "", text).splitlines()
    assert last.endswith("2 retained")
    assert max(map(len, table)) <= columns
    shown = [line.split() for line in table if line.strip()]
    assert {"id", "state"} <= set(shown[0])
    assert [["1", "2", "3"], ["subsumed", "retained", "retained"]] == [
        [row[0] for row in shown[2:]],
        [next(word for word in row if word.endswith(("sumed", "tained"))) for row in shown[2:]],
    ]


def test_a_damaged_checkpoint_is_a_finding(call, location):
    damage(location, "chk-3/_metadata")
    assert "damaged" in call("checkpoints", location, status=1)
    checkpoints = call.lines("checkpoints", location, status=1)
    assert [item["state"] for item in checkpoints] == ["retained", "retained", "damaged"]
    assert "checksum" in checkpoints[-1]["problem"]


# -------------------------------------------------------------------------------------------- cat


@pytest.mark.parametrize("manifest", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_cat_reads_what_flink_wrote(call, manifest):
    file = manifest.with_suffix(".dstl")
    change_sets = json.loads(manifest.read_text())["changeSets"]
    expected = []
    for change_set in sorted(change_sets, key=lambda change_set: change_set["offset"]):
        for change in change_set["changes"]:
            digest = change.get("sha256")
            digest = digest or hashlib.sha256(bytes.fromhex(change["hex"])).hexdigest()
            facts = {"key_group": change["kg"], "size": change["len"], "sha256": digest}
            expected.append({"change_set": change_set["offset"], **facts})
    assert call.lines("changelog", str(file)) == expected
    last = max(change_set["offset"] for change_set in change_sets)
    assert call.lines("changelog", str(file), "--offset", str(last)) == [
        change for change in expected if change["change_set"] == last
    ]
    assert len(call("changelog", file.as_uri()).splitlines()) == len(expected) + 1


def test_cat_reads_the_changes_inside_a_checkpoint(call, location):
    text = call("changelog", f"{location}/chk-2/_metadata")
    heading, *rows = [line.split() for line in text.splitlines()]
    assert heading == ["change_set", "key_group", "size", "sha256"]
    assert [row[1] for row in rows] == ["0", "3", "7"]
    assert rows[0] == ["0", "0", "3", hashlib.sha256(b"2/0").hexdigest()]


def test_cat_shows_a_claim(call, location):
    file = f"{location}/chk-0/_metadata"
    shown = call("changelog", file)
    assert shown.startswith("claim 0 of 'a', at ")
    assert shown.endswith("UTC: no earlier checkpoint, the next id is 1\n")
    (claim,) = call.lines("changelog", file)
    assert (0, "a", None) == (claim["claim"], claim["owner_id"], claim["newest"])
    said = call("changelog", file, "--offset", "0", status=2)
    assert "no change set begins at payload offset 0" in said


def write_file(file: Path, *sets, compress: bool = False) -> list[int]:
    """Write change sets to a changelog file, and return their offsets."""
    writer = SegmentWriter(compress=compress)
    offsets = [writer.add([batch_of(changes)]).offset for changes in sets]
    file.write_bytes(b"".join(bytes(piece) for piece in writer.finish()))
    return offsets


def test_cat_takes_several_offsets(call, tmp_path):
    file = str(tmp_path / "log")
    offsets = write_file(tmp_path / "log", *([(i, b"v%d" % i)] for i in range(4)))
    chosen = [word for number in (2, 0) for word in ("--offset", str(offsets[number]))]
    assert [item["key_group"] for item in call.lines("changelog", file, *chosen)] == [2, 0]
    text = call("changelog", file, "--offset", "5", status=2)
    assert f"change sets begin at {', '.join(map(str, offsets))}" in text


@pytest.mark.parametrize("compress", [False, True])
def test_cat_refuses_a_file_whose_mark_is_damaged(call, tmp_path, compress):
    """It may not be taken for a file of Flink, which has no checksums."""
    file = tmp_path / "log"
    write_file(file, [(3, b"value")], compress=compress)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "not statelog's mark" in call("changelog", str(file), status=1)


def values_file(tmp_path, *values: bytes) -> str:
    meta = (-1, b"\x00meta\x1b[31m")
    write_file(tmp_path / "file", [meta, *((5, value) for value in values)])
    return str(tmp_path / "file")


def test_cat_shows_values_as_text_on_one_line_and_without_control_characters(call, tmp_path):
    file = values_file(tmp_path, "größe\n".encode(), b"\xff\xfe", b"back\\slash", b"x" * 100)
    rows = call("changelog", file, "--values", "text").splitlines()[1:]
    cut = "x" * 64 + "... (36 more bytes)"
    texts = [r"\x00meta\x1b[31m", r"größe\n", r"\xff\xfe", r"back\\slash", cut]
    assert all(row.endswith(f"  {text}") for row, text in zip(rows, texts, strict=True))


def test_cat_shows_values_as_hex_up_to_a_bound(call, tmp_path):
    file = values_file(tmp_path, bytes(range(4)), b"")
    rows = call("changelog", file, "--values", "hex", "--value-bytes", "3").splitlines()[1:]
    assert rows[0].endswith("  006d65... (7 more bytes)")
    assert rows[1].endswith("  000102... (1 more bytes)")
    assert rows[2].endswith(hashlib.sha256(b"").hexdigest() + "  ")
    assert "  00010203\n" in call("changelog", file, "--values", "hex", "--value-bytes", "0")


def test_cat_shows_text_on_a_terminal_that_has_no_unicode(tmp_path):
    file = values_file(tmp_path, "größe".encode())
    said = subprocess.run(
        [sys.executable, "-m", "statelog.cli.main", "changelog", file, "--values", "text"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.splitlines()[2].endswith(r"  gr\xf6\xdfe")


def test_cat_shows_values_to_programs(call, tmp_path):
    file = values_file(tmp_path, b"one", b"x" * 10)
    changes = call.lines("changelog", file, "--values", "text", "--value-bytes", "4")
    values = [(item["value"], item["cut_bytes"]) for item in changes]
    assert values == [(r"\x00met", 6), ("one", 0), ("xxxx", 6)]
    assert [item["key_group"] for item in changes] == [-1, 5, 5]
    assert {"value", "cut_bytes"}.isdisjoint(call.lines("changelog", file)[0])
    for wrong in (["--values", "base64"], ["--value-bytes", "-1"]):
        call("changelog", file, *wrong, status=2)


def test_cat_explains_the_key_group_of_metadata(tmp_path, capsys):
    assert run(["changelog", values_file(tmp_path, b"one")]) == 0
    said = capsys.readouterr()
    assert said.err == "key group -1: metadata, which every reader receives\n"
    assert len(said.out.splitlines()) == 3  # what programs read stays rows
    write_file(tmp_path / "plain", [(5, b"one")])
    for arguments in ([str(tmp_path / "plain")], [str(tmp_path / "file"), "--json"]):
        assert run(["changelog", *arguments]) == 0
        assert capsys.readouterr().err == ""


def test_cat_explains_what_it_cannot_read(call, tmp_path, location):
    assert "the object does not exist" in call("changelog", f"{location}/nope", status=2)
    assert "is a directory" in call("changelog", location, status=2)
    assert "does not exist" in call("changelog", f"{location}/x/y/z", status=2)
    (tmp_path / "text").write_text("hello")
    assert "neither plain nor Snappy" in call("changelog", str(tmp_path / "text"), status=1)
    (tmp_path / "empty").write_text("")
    assert "empty" in call("changelog", str(tmp_path / "empty"), status=1)
    damage(location, "chk-2/_metadata")
    assert "damaged" in call("changelog", f"{location}/chk-2/_metadata", status=1)


# ------------------------------------------------------------------------------------- gc, verify


def test_gc_is_a_dry_run_without_apply(call, location):
    orphan = Path(location, "dstl/orphan")
    assert "1 younger than 1h" in call("gc", location).replace("2 younger", "1 younger")
    text = call("gc", location, "--min-age", "0s")
    assert "would delete dstl/orphan" in text
    assert "--apply makes the changes" in text
    *actions, last = call.lines("gc", location, "--min-age", "0s")
    assert {"path": "dstl/orphan", "action": "would-delete"} in actions
    assert (len(actions), True) == (last["summary"]["orphans"], last["summary"]["dry_run"])
    assert orphan.exists()
    assert "deleted dstl/orphan" in call("gc", location, "--apply", "--min-age", "0")
    assert not orphan.exists()
    assert "0 orphans" in call("gc", location, "--apply", "--min-age", "0")
    assert "all intact" in call("verify", location)


@pytest.mark.parametrize("text", ["", "1x", "-1h", "h", "1h30m"])
def test_a_wrong_duration_is_a_wrong_call(call, location, text):
    assert "--min-age must be a duration" in call("gc", location, f"--min-age={text}", status=2)


def test_verify_reads_everything(call, location):
    *objects, last = call.lines("verify", location)
    summary = last["summary"]
    assert (5, 0, 3) == (summary["objects"], summary["findings"], summary["newest_sound"])
    log = [item["path"] for item in objects if item["kind"] == "changelog"]
    metadata = [f"chk-{number}/_metadata" for number in (1, 2, 3)]
    assert [item["path"] for item in objects] == [*metadata, *log, "taskowned/s"]
    assert all(item["ok"] for item in objects)
    assert sum(item["change_sets"] for item in objects) == 4
    assert "all intact" in call("verify", location)


def test_verify_reports_a_location_that_went_back(call, location):
    assert "all intact" in call("verify", location, "--at-least", "3")
    said = call("verify", location, "--at-least", "4", status=1)
    assert "the newest checkpoint is 3, but checkpoint 4 is known to exist" in said
    *_, finding, summary = call.lines("verify", location, "--at-least", "4", status=1)
    assert finding["ok"] is False
    assert summary["summary"]["findings"] == 1


def test_verify_finds_that_the_checkpoint_of_a_claim_is_lost(call, location):
    started(open_store(location), "next")
    assert "all intact" in call("verify", location)
    Path(location, "chk-3/_metadata").unlink()
    *objects, last = call.lines("verify", location, status=1)
    assert [("chk-3/_metadata", "missing")] == [
        (item["path"], item["finding"]) for item in objects if not item["ok"]
    ]
    assert (1, 2) == (last["summary"]["findings"], last["summary"]["newest_sound"])


# ------------------------------------------------------------------------------------ the process


def process(*arguments: str, **more) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "statelog.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores it, and so do all that it starts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        **more,
    )


def test_progress_is_shown_on_a_terminal_only(capsys, monkeypatch):
    with progress("reading") as update:
        update("more")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("reading [red]") as update:
        shown = _shown_on_stderr(capsys, "reading [red]")
        update("more [bold]")
        shown += _shown_on_stderr(capsys, "more [bold]")
    assert shown.index("reading [red]") < shown.index("more [bold]")
    assert capsys.readouterr().out == ""


def _shown_on_stderr(capsys, text: str) -> str:
    """What was written until `text` appeared; a thread draws it, whenever the machine lets it."""
    shown = ""
    end = time.monotonic() + 60
    while text not in shown:
        assert time.monotonic() < end, f"never shown: {text!r}; instead {shown!r}"
        time.sleep(0.01)
        written = capsys.readouterr()
        assert written.out == ""
        shown += written.err
    return shown


def test_version_help_and_wrong_calls(call):
    assert call("--version").startswith("statelog ")
    text = call("--help")
    assert len(COMMANDS) > 10
    for verb in COMMANDS:
        assert verb in text
        assert "--json" in call(verb, "--help"), verb
    assert "No such command" in call("nope", status=2)
    assert "Missing argument" in call("changelog", status=2)
    assert "--offset" in call("changelog", "x", "--offset", "-1", status=2)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_verb_has_examples_that_can_be_typed(name, call):
    heading, *examples = COMMANDS[name].epilog.split("\n\n")
    assert ("Examples:", True) == (heading, 2 <= len(examples) <= 3)
    said = " ".join(call(name, "--help").split())
    for example in examples:
        program, verb, *words = shlex.split(example)
        assert ("statelog", name) == (program, verb)
        COMMANDS[name].make_context(f"statelog {name}", words)
        assert example in said


@pytest.mark.parametrize("name", [command for command in COMMANDS if command != "demo"])
def test_a_verb_without_arguments_says_what_to_type(name, call):
    said = call(name, status=2)
    assert f"Usage: statelog {name} [OPTIONS] " in said
    assert f"Example: {COMMANDS[name].epilog.split(chr(10))[2]}\n" in said


def test_a_verb_imports_nothing_of_other_verbs_or_spark(tmp_path):
    code = """
import sys
from statelog.cli.main import run
run(["checkpoints", sys.argv[1]])
others = {"extensions.report", "extensions.operations", "extensions.read", "state.reader"}
others = {f"statelog.{name}" for name in others} | {"pyspark", "py4j", "pandas"}
bad = others & set(sys.modules)
sys.exit(str(bad) if bad else 0)
"""
    run_script(code, str(tmp_path))


@pytest.fixture(scope="module")
def large_file(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("large") / "log"
    write_file(file, [(i % 100, b"v%d" % i) for i in range(TAKES_A_WHILE)], compress=True)
    return str(file)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_broken_pipe_ends_quietly(large_file, options):
    command = process("changelog", large_file, *options)
    command.stdout.readline()
    command.stdout.close()
    assert (command.stderr.read(), command.wait(30)) == ("", 141)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interruption_ends_quietly(large_file):
    command = process("changelog", large_file)
    command.stdout.readline()
    time.sleep(0.1)  # it now waits for the pipe to be read
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=30)
    assert (said, command.returncode) == ("", 130)
