"""A location that others wrote, given to every command: nothing is run, and a terminal obeys nothing."""

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.support.forgeries.hostile_location import BAD, CALLS, hostile_location, words_of

from statelog.cli import main as cli


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
        (Path(place) / "chk-1" / "_metadata").write_bytes(
            (whole / "chk-1" / "_metadata").read_bytes()
        )
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
COMMANDS = [
    *SOURCES.glob("cli/*.py"),
    *SOURCES.rglob("commands.py"),
    *SOURCES.rglob("commands/*.py"),
]


def test_the_command_line_prints_through_its_console():
    """Checks that no command has a way around the escapes."""
    way_around = re.compile(
        r"rich\.table|(?<!Plain)Console\(|(?<!\.)\bprint\(|sys\.std(out|err)\.write"
    )
    writers = {
        (file.name, match[0])
        for file in COMMANDS
        if file.name != "output.py"
        for match in way_around.finditer(file.read_text())
    }
    # A version number; and the lines of changelog, which it escapes itself.
    assert len(COMMANDS) > 15
    assert writers == {("main.py", "sys.stdout.write"), ("changelog.py", "sys.stdout.write")}
