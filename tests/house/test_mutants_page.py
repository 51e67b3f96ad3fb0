"""The page about mutants names the mutants and the tests there are."""

import re

from tests.house.sources import ROOT, tree_of
from tests.house.test_parity_page import is_there
from tests.model.campaign import MUTANTS
from tests.simulation import test_mutants
from tests.unit.checkpoint import test_simulation_mutants
from tests.unit.state import test_recovery_mutants

PAGE = ROOT / "docs" / "contributing" / "mutants.md"
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def section(title: str) -> str:
    """Return what stands under a heading of the page."""
    found = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    (text,) = [part for part in found if part.startswith(f"{title}\n")]
    return text


def test_the_mutants_of_the_simulated_world_are_on_the_page() -> None:
    names = [mutant.replacement.__name__ for mutant in test_mutants.MUTANTS]
    assert names == ROW.findall(section("The simulated world"))


def test_the_mutants_of_the_owners_are_on_the_page() -> None:
    names = [function.__name__ for _, function, _ in test_simulation_mutants.MUTANTS]
    assert sorted(set(names)) == sorted(ROW.findall(section("Owners and conflicts")))


def test_the_mutants_of_timelines_are_on_the_page() -> None:
    names = [mutant.rule for mutant in MUTANTS if mutant.bounds.rewinds]
    assert names == ROW.findall(section("Timelines"))


def test_the_mutants_of_recovery_are_on_the_page() -> None:
    names = [mutant.name for mutant in test_recovery_mutants.MUTANTS]
    assert names == ROW.findall(section("Recovery"))


def test_each_test_that_the_page_names_exists() -> None:
    named = TEST.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) >= 4
    for file, test in named:
        assert tree_of(ROOT / file).body
        assert not test or is_there(file, test), f"{file}::{test}"
