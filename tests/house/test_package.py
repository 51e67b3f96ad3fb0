"""The package as its users meet it."""

import importlib
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.house.sources import ROOT, SRC, modules, repository_files

import statelog

# What a base install does not bring; importing statelog may not need it.
EXTRAS = (
    "pyspark",
    "py4j",
    "pandas",
    "typer",
    "rich",
    "prometheus_client",
    "opentelemetry",
    "yaml",
)
LEFT_OUT = (".gitattributes", ".gitignore")


class Built(NamedTuple):
    """A wheel and a source distribution."""

    wheel: Path
    sdist: Path

    def names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as opened:
            return set(opened.namelist())

    def text(self, name: str) -> str:
        with zipfile.ZipFile(self.wheel) as opened:
            return opened.read(name).decode()


def build(sources: Path, into: Path) -> Built:
    """Build both from a folder; without a build environment, so without pip."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
    subprocess.run(command, cwd=sources, check=True, capture_output=True)
    return Built(next(into.glob("*.whl")), next(into.glob("*.tar.gz")))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def headers(built: Built) -> Message:
    name = f"statelog-{statelog.__version__}.dist-info/METADATA"
    return Parser().parsestr(built.text(name))


def test_importing_statelog_imports_nothing_that_an_extra_brings() -> None:
    code = f"import sys, statelog; print(*sorted(set(sys.modules) & set({EXTRAS!r})))"
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (0, "\n", "") == (said.returncode, said.stdout, said.stderr)


FACTS = {"reason": "Reason", "path": "str", "checkpoint_id": "int"}
FACES = ("statelog", "statelog.changelog", "statelog.spark", "statelog.testing")


@pytest.mark.parametrize(("face", "most"), list(zip(FACES, (33, 65, 50, 1), strict=True)))
def test_a_face_is_counted_in_dozens_and_importable(face: str, most: int) -> None:
    module = importlib.import_module(face)
    assert len(module.__all__) <= most
    assert sorted(set(module.__all__)) == module.__all__
    assert [] == [name for name in module.__all__ if not hasattr(module, name)]


def test_a_type_checker_finds_each_public_name(tmp_path: Path) -> None:
    """The names are imported at their first use, which a type checker does not see."""
    names = [(face, name) for face in FACES for name in importlib.import_module(face).__all__]
    lines = [f"from {face} import {name} as a{at}" for at, (face, name) in enumerate(names)]
    lines.append(f"reveal_type(a{names.index(('statelog', 'open_store'))})")
    error = f"a{names.index(('statelog', 'CheckpointError'))}('')"
    lines.append("from typing import assert_type; from statelog.errors import Reason")
    lines += [f"assert_type({error}.{fact}, {kind} | None)" for fact, kind in FACTS.items()]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ObstoreStore" in run.stdout
    assert 0 == run.returncode, run.stdout


def test_the_types_are_shipped() -> None:
    assert (SRC / "statelog" / "py.typed").is_file()


def test_the_installed_version_is_the_one_of_the_sources() -> None:
    """After a change of the version, `make setup` installs the sources again."""
    assert statelog.__version__ == metadata.version("statelog")


def test_the_newest_section_of_the_changelog_is_of_this_version() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    newest = next(line for line in lines if line.startswith("## "))
    assert newest.startswith(f"## [{statelog.__version__}] - ")


def test_the_wheel_holds_the_modules_and_nothing_else(built: Built) -> None:
    info = f"statelog-{statelog.__version__}.dist-info"
    expected = {path.relative_to(SRC).as_posix() for path in modules()} | {"statelog/py.typed"}
    expected |= {path.relative_to(SRC).as_posix() for path in SRC.rglob("*.pyi")}
    expected |= {f"statelog/extensions/report/page.{ending}" for ending in ("css", "html", "js")}
    inside = {name for name in built.names() if not name.startswith(f"{info}/")}
    assert expected == inside
    assert {"statelog"} <= {name.partition("/")[0] for name in inside}
    assert {name.partition("/")[0] for name in inside} <= {"statelog", "pyspark_statelog"}
    assert f"{info}/licenses/LICENSE" in built.names()


def test_the_wheel_has_the_command_and_the_extras(built: Built) -> None:
    info = f"statelog-{statelog.__version__}.dist-info"
    entries = built.text(f"{info}/entry_points.txt")
    assert "statelog = statelog.__main__:main" in entries
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = headers(built)
    assert set(project["optional-dependencies"]) == set(found.get_all("Provides-Extra", []))
    assert (statelog.__version__, ">=3.11") == (found["Version"], found["Requires-Python"])


def test_the_sdist_builds_the_same_wheel(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    again = build(unpacked, tmp_path / "dist")
    assert built.wheel.name == again.wheel.name
    assert built.wheel.read_bytes() == again.wheel.read_bytes()


def test_the_sdist_holds_the_repository(built: Built) -> None:
    with tarfile.open(built.sdist) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    tracked = {path.relative_to(ROOT).as_posix() for path in repository_files()}
    assert set() == {name for name in tracked - inside if name not in LEFT_OUT}


def test_a_public_name_is_looked_up_once() -> None:
    """A program may write `cl.StateChange(...)` for each of its changes."""
    for face in FACES:
        module = importlib.import_module(face)
        name = module.__all__[0]
        assert getattr(module, name) is vars(module)[name]
