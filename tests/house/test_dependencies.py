"""Every dependency has a reason that is written down, and a version that is pinned."""

import re
import tomllib

from tests.house.sources import ROOT


def canonical(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(one for extra in extras for one in extra)]
    return {canonical(requirement) for requirement in requirements}


def test_each_dependency_is_explained_and_nothing_else_is() -> None:
    page = (ROOT / "docs" / "contributing" / "dependencies.md").read_text(encoding="utf-8")
    explained = {canonical(name) for name in re.findall(r"^\| `([\w.-]+)", page, re.MULTILINE)}
    assert declared() == explained


def test_each_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonical(line) for line in lines if line and not line.startswith("#")}
    assert set() == declared() - pinned
