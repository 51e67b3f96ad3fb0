"""A location that others wrote, given to every command: nothing is run, and a terminal obeys nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.forged import forge_recordings
from tests.recorded_job import RecordedJob

from statelog.checkpoint.audited import audited
from statelog.checkpoint.tags import Tag, TagKind, put_tag
from statelog.cli import main as cli
from statelog.errors import ProcessorError
from statelog.spark.query.record import RecordRule
from statelog.store import open_location

BAD = "\x1b[2J\x9b31m\u202e\x7f\r\nall intact: forged"
NAME = f"v{BAD}"
TICKED = f"`k{BAD}`"


class Hostile(StatefulProcessor):
    """State whose names a terminal would obey."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState(NAME, f"`n{BAD}` long")
        self.map = handle.getMapState("map" + BAD, f"`m{BAD}` string", "n string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            self.value.update((1,))
            self.map.updateValue((BAD,), (BAD,))
            if key[0] == "fails":
                raise ArithmeticError(BAD)
            yield Row(**{f"o{BAD}": BAD})


class Trap(Hostile):
    """What the recordings name; the location has its module."""


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a location with hostile text in all names, in a tag and a failure."""
    folder = tmp_path_factory.mktemp("forged") / "state"
    job = RecordedJob(
        str(folder), Hostile(), f"{TICKED} string, n long", f"`o{BAD}` string",
        RecordRule(keys=(("k1",),)), operator_id="op" + BAD
    )  # fmt: skip
    job.checkpoint_location = f"/no/such{BAD}"
    for number in range(3):
        job.run([("k1", 1), (BAD, number)], 1000 + number)
    tag = Tag(kind=TagKind.TAG, name="kept", checkpoint_id=1)
    put_tag(job.store, job.paths, tag, clock_ms=lambda: 0, facts={"comment": BAD})
    with audited(open_location(str(folder)), BAD, **{BAD: BAD}) as operation:
        operation.begin()
    (folder / "audit" / f"x{BAD.replace('/', '')}").write_bytes(b"no line")
    with pytest.raises(ProcessorError):
        job.run([("fails", 1)], 2000)
    (folder / "trap.py").write_text(
        f"open({str(folder / 'ran')!r}, 'w').close()\n"
        "from tests.unit.cli.test_forged_location import Trap\n"
    )
    (folder / ".pdbrc").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\n")
    forge_recordings(job.store, processor="trap:Trap", source=str(folder / "trap.py"))
    return str(folder)


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


COMMANDS = {
    "checkpoints": [["LOC"]],
    "read": [["LOC"], ["LOC", NAME], ["LOC", "nothing"]],
    "get": [["LOC", NAME, "k1"], ["LOC", NAME, "k1", "k2"]],
    "history": [["LOC", NAME, "k1"]],
    "diff": [["LOC", "0", "2"], ["LOC", "0", "9"]],
    "sql": [["LOC", "from nothing"], ["LOC", f'from "{NAME}"']],
    "export": [["LOC", "OUT"]],
    "cat": [["LOC/chk-2/_metadata", "--values", "text"], ["LOC/trap.py"]],
    "gc": [["LOC", "--min-age", "0s"], ["LOC", "--min-age", "0s", "--delete"]],
    "verify": [["LOC"]],
    "log": [["LOC"]],
    "repair": [["LOC", "--min-age", "0s"], ["LOC", "--give-up-after", "0"]],
    "rewind": [["LOC"], ["LOC", "--state-location", "LOC"]],
    "tag": [["LOC"], ["LOC", "new"]],
    "untag": [["LOC", "nothing"], ["LOC", "kept"]],
    "fork": [["LOC", "NEW"], ["LOC", "NEW", "--tag", "kept"], ["LOC", "NEW", "--state-only"]],
    "report": [["LOC", "-o", "OUT.html"]],
    "replay": [["LOC"], ["LOC", "k1"], ["LOC", "k1", "--processor", "trap:Trap", "--pdb"],
               ["LOC", "k1", "--processor", f"{__name__}:Hostile", "--write-test", "OUT.py"],
               ["LOC", "fails", "--processor", f"{__name__}:Hostile", "--write-test", "OUT.py"]],
    "copy": [["LOC", "NEW"]],
    "forget": [["LOC", "k1"], ["LOC", "nobody"]],
    "edit": [["LOC", "--delete", "LOC/trap.py"], ["LOC", "--set", f"{NAME}=OUT{BAD}.parquet"]],
}  # fmt: skip
"""Calls of each command; those with --json too."""


def test_every_command_is_tried() -> None:
    names = {one.callback.__name__ for one in cli.verbs.registered_commands if one.callback}
    assert names == {*COMMANDS, "demo"}, "demo reads no location"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("which", ["location", "damaged"])
def test_a_forged_location_makes_a_command_do_nothing_else(
    which: str,
    command: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = request.getfixturevalue("damaged")
    if which == "location":
        for orphan in Path(place).rglob("x\x1b*"):
            orphan.unlink()
        whole = Path(request.getfixturevalue("location"))
        (Path(place) / "chk-1" / "_metadata").write_bytes(
            (whole / "chk-1" / "_metadata").read_bytes()
        )
    monkeypatch.chdir(place)
    for number, words in enumerate(COMMANDS[command]):
        for form in ([], ["--json"]):
            out = str(tmp_path / f"out{number}{len(form)}")
            full = [
                one.replace("LOC", place).replace("OUT", out).replace("NEW", out) for one in words
            ]
            status = cli.run([command, *full, *form])
            said = capfd.readouterr()
            check(said.out, said.err, as_json=bool(form))
            assert status in (0, 1, 2), said
    assert not list(tmp_path.rglob("ran"))


def check(out: str, err: str, *, as_json: bool) -> None:
    raw = sorted({one for one in out + err if not one.isprintable() and one != "\n"})
    assert [] == raw, (out, err)
    assert not re.search(r"^\s*all intact: forged", out, re.MULTILINE), (out, err)
    assert not re.search(r"^all intact: forged", err, re.MULTILINE), (out, err)
    if as_json:
        assert all(line.startswith("{") for line in out.splitlines()), out


def test_the_command_line_prints_through_its_console() -> None:
    """Checks that no command has a way around the escapes."""
    way_around = re.compile(
        r"rich\.table|(?<!Plain)Console\(|(?<!\.)\bprint\(|sys\.std(out|err)\.write"
    )
    found = {
        (file.name, match[0])
        for file in Path(cli.__file__).parent.glob("*.py")
        if file.name != "output.py"
        for match in way_around.finditer(file.read_text())
    }
    # A version number; and the lines of cat, which have escapes of their own.
    assert found == {
        ("main.py", "sys.stdout.write"),
        ("cat.py", "sys.stdout.write"),
        ("cat.py", "sys.stderr.write"),
    }
