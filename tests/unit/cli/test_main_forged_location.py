"""A location that others wrote, given to every command: nothing is run, and a terminal obeys nothing."""

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
import dataclasses

import pytest
from tests.support.forgeries.hostile_location import BAD, CALLS, hostile_location, words_of
from tests.support.locations.stored_job import StoredJob

import statelog
from statelog.checkpoint.audit import audited
from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import put_tag
from statelog.cli import main as cli
from statelog.format.checkpoint_metadata import rewrite_metadata
from statelog.format.checkpoint_record import ClaimRecord, decode_record, encode_claim
from statelog.format.segment import parse_segment
from statelog.store import PATHS, open_location


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("forged") / "state"
    place = hostile_location(folder)
    (folder / "audit" / f"x{BAD.replace('/', '')}").write_bytes(b"no line")
    return place


@pytest.fixture
def damaged(location: str, tmp_path: Path) -> str:
    """Return a copy of the location with orphans of hostile names, and a damaged checkpoint."""
    copy = tmp_path / "damaged"
    shutil.copytree(location, copy)
    for name in ("changelog", "recordings/failed", "snapshots"):
        (copy / name).mkdir(exist_ok=True, parents=True)
        (copy / name / f"x{BAD.replace('/', '')}").write_bytes(b"no object")
    metadata = copy / "chk-1" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-40] + bytes(40))
    return str(copy)


@pytest.mark.parametrize("command", [name for name in CALLS if name != "demo"])
@pytest.mark.parametrize("which", ["location", "damaged"])
def test_a_command_prints_a_forged_location_escaped(which, command, request, tmp_path, monkeypatch, capfd):  # fmt: skip
    place = request.getfixturevalue("damaged")
    if which == "location":
        for orphan in Path(place).rglob("x\x1b*"):
            orphan.unlink()
        whole = Path(request.getfixturevalue("location"))
        shutil.copy(whole / "chk-1" / "_metadata", Path(place) / "chk-1" / "_metadata")
    monkeypatch.chdir(place)
    for number, words in enumerate(CALLS[command]):
        for form in ([], ["--json"]):
            out = str(tmp_path / f"out{number}{len(form)}")
            full = words_of(words, loc=place, out=out, query=place)
            status = cli.run([command, *full, *form])
            said = capfd.readouterr()
            check(said.out, said.err, as_json=bool(form))
            assert status in (0, 1, 2), said
    assert not list(tmp_path.rglob("ran"))


def check(out: str, err: str, *, as_json: bool) -> None:
    raw = sorted({char for char in out + err if not char.isprintable() and char != "\n"})
    assert [] == raw, (out, err)
    assert not re.search(r"^\s*all intact: forged", out, re.MULTILINE), (out, err)
    assert not re.search(r"^all intact: forged", err, re.MULTILINE), (out, err)
    if as_json:
        assert all(line.startswith("{") for line in out.splitlines()), out


SOURCES = Path(cli.__file__).parents[1]
PLACES = ("cli/*.py", "**/commands.py", "**/commands/*.py")
WRITERS = [file for place in PLACES for file in SOURCES.glob(place)]


def test_the_command_line_prints_through_its_console():
    """Checks that no command has a way around the escapes."""
    way_around = re.compile(
        r"rich\.table|(?<!Plain)Console\(|(?<!\.)\bprint\(|sys\.std(out|err)\.write"
    )
    writers = {
        (file.name, match[0])
        for file in WRITERS
        if file.name != "output.py"
        for match in way_around.finditer(file.read_text())
    }
    # A version number; and the lines of changelog, which it escapes itself.
    assert len(WRITERS) > 15
    assert writers == {("main.py", "sys.stdout.write"), ("changelog.py", "sys.stdout.write")}


TIMES = [2**62, -(2**62), 2**63 - 1, 253_402_300_800_000]
AT = "2100-01-01"
COMMANDS = [
    ["info"], ["info", "--json"], ["checkpoints"], ["checkpoints", "--json"], ["tag"],
    ["tag", "--json"], ["audit"], ["audit", "--json"], ["verify"], ["read"],
    ["read", "--checkpoint", "forged"], ["read", "--checkpoint", AT], ["diff", "1", "2"],
]  # fmt: skip


def forge_checkpoint(location: Path, time_ms: int) -> None:
    """Give the newest checkpoint another time, with checksums that fit."""
    with statelog.open(location) as state:
        newest = state.reader().checkpoint_id
    file = location / PATHS.metadata(newest)
    data = file.read_bytes()
    trailer = parse_segment(data).trailer
    assert trailer is not None
    stored = decode_record(trailer.sections[b"CKPT"])
    rewritten = rewrite_metadata(data, dataclasses.replace(stored, created_at_ms=time_ms))
    file.write_bytes(b"".join(map(bytes, rewritten.buffers)))


@pytest.mark.parametrize("time_ms", TIMES)
def test_no_command_ends_with_a_traceback(time_ms, tmp_path, monkeypatch, capsys):  # fmt: skip
    job = StoredJob("forged times", tmp_path)
    for _ in range(3):
        job.micro_batch()
    location = tmp_path / "state"
    store = open_location(str(location))
    for kind in (TagKind.TAG, TagKind.READER):
        put_tag(store, Tag(kind=kind, name="forged", checkpoint_id=2), clock_ms=lambda: time_ms)
    with monkeypatch.context() as patch:
        patch.setattr("statelog.checkpoint.audit.wall_clock_ms", lambda: time_ms)
        patch.setattr(
            "statelog.checkpoint.audit._name", lambda at: "20260101T000000000Z-" + 16 * "0"
        )
        with audited(store, "forged") as operation:
            operation.begin()
    forge_checkpoint(location, time_ms)
    for command in COMMANDS:
        assert cli.run([command[0], str(location), *command[1:]]) in (0, 1), command
    capsys.readouterr()
    assert 0 == cli.run(["tag", str(location)])
    assert f"{time_ms} ms" in capsys.readouterr().out
    newest = max(int(path.parent.name[4:]) for path in location.glob("chk-*/_metadata"))
    claim = ClaimRecord(
        number=newest + 1, owner_id="forged", created_at_ms=time_ms, attempt="a",
        location_id=read_checkpoint(store, newest).checkpoint.timeline.location_id,
        next_number=newest + 2, newest=newest,
    )  # fmt: skip
    store.put(PATHS.metadata(newest + 1), encode_claim(claim))
    for command in (["info"], ["checkpoints"], ["verify"]):
        assert cli.run([command[0], str(location), *command[1:]]) in (0, 1), command
    assert cli.run(["changelog", str(location / PATHS.metadata(newest + 1))]) == 0
