"""The workflows of the forge call targets that exist, with pinned actions and the least rights."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.house.sources import ROOT

from statelog.extras import SPARK_VERSIONS

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w.-]+@([0-9a-f]{40})  # (v\d+\.\d+\.\d+)")
SETTING = re.compile(r"[A-Z]+=")


def parsed(path: Path) -> dict[Any, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in parsed(path)["jobs"].values():
        yield from job["steps"]


def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))


def called(path: Path) -> list[str]:
    """Return the targets of `make` in the steps that run a command."""
    runs = [re.sub(r"\$\{\{.*?\}\}", "x", str(step.get("run", ""))) for step in steps(path)]
    lines = [line for run in runs for line in run.splitlines()]
    words = [line.split()[1:] for line in lines if line.startswith("make ")]
    return [word for line in words for word in line if not SETTING.match(word)]


def matrix(job: str) -> dict[str, Any]:
    return dict(parsed(FOLDER / "ci.yml")["jobs"][job]["strategy"]["matrix"])


def test_there_is_one_for_changes_and_one_for_releases() -> None:
    assert ["ci.yml", "release.yml"] == [path.name for path in WORKFLOWS]
    # YAML 1.1 reads the key "on" as true.
    assert {"push", "pull_request"} == set(parsed(FOLDER / "ci.yml")[True])
    assert {"push": {"tags": ["v*"]}} == parsed(FOLDER / "release.yml")[True]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_target_exists(path: Path) -> None:
    found = called(path)
    assert {"check", "package"} <= set(found)
    assert [] == [target for target in found if target not in targets()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_is_pinned_by_hash(path: Path) -> None:
    """A tag can be moved to other code; a commit cannot.  The comment says which version it is."""
    lines = path.read_text(encoding="utf-8").splitlines()
    uses = [line.strip().removeprefix("- ") for line in lines if "uses:" in line]
    assert len(uses) > 3
    assert [] == [line for line in uses if not PINNED.fullmatch(line)]
    assert not PINNED.fullmatch("uses: actions/checkout@v7.0.0")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_only_the_publication_may_do_more_than_read(path: Path) -> None:
    workflow = parsed(path)
    assert {"contents": "read"} == workflow["permissions"]
    more = {
        name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job
    }
    expected = {"publish": {"id-token": "write"}} if path.name == "release.yml" else {}
    assert expected == more
    assert "secrets." not in path.read_text(encoding="utf-8")


def test_the_pythons_are_those_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert named == matrix("pure")["python"]
    assert f">={named[0]}" == project["requires-python"]


def test_the_newest_spark_runs_in_full_and_no_unknown_one_runs() -> None:
    found = matrix("spark")
    assert [".".join(map(str, SPARK_VERSIONS[-1]))] == found["spark"]
    others = [tuple(map(int, one["spark"].split("."))) for one in found["include"]]
    assert sorted(others) == others
    assert set(others) == set(SPARK_VERSIONS[:-1])
