"""The package as its users meet it."""

import subprocess
import sys
import tomllib
from importlib import metadata

from tests.house.sources import ROOT, SRC

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


def test_importing_statelog_imports_nothing_that_an_extra_brings() -> None:
    code = f"import sys, statelog; print(*sorted(set(sys.modules) & set({EXTRAS!r})))"
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (0, "\n", "") == (said.returncode, said.stdout, said.stderr)


def test_all_is_sorted_and_importable() -> None:
    names = statelog.__all__
    assert len(names) > 50
    assert sorted(set(names)) == names
    assert [] == [name for name in names if not hasattr(statelog, name)]


def test_the_types_are_shipped() -> None:
    assert (SRC / "statelog" / "py.typed").is_file()


def test_the_installed_version_is_the_one_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == metadata.version("statelog")
