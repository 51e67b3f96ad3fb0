"""Every block of code in README and docs is run, checked, or says why not."""

import re
import tomllib
from typing import Any

import pytest
import typer
from tests.house.sources import ROOT
from tests.support.project.snippets import RUN, RUN_ELSEWHERE, SHOWN, Block, blocks, commands, pages

from statelog.cli.main import verbs

ALL = [block for path in pages() for block in blocks(path)]
SHELL = [block for block in ALL if block.language in ("sh", "console") and not block.no_run]
SAVED = {name for block in ALL for name in re.findall(r"\A# (\w+\.py)\n", block.text)}
"""Programs that a reader saves from a page: their first line names the file."""


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


def test_every_block_has_a_language_that_says_how_it_is_checked() -> None:
    known = RUN | SHOWN | {"sh"}
    assert len(ALL) > 40
    assert [] == [where(each) for each in ALL if each.language not in known and not each.no_run]


def test_signatures_are_on_the_generated_pages_only() -> None:
    generated = "docs/reference/python-api"
    found = [each for each in ALL if each.language == "py"]
    assert [] == [where(each) for each in found if not each.page.startswith(generated)]


@pytest.mark.parametrize(("page", "test"), RUN_ELSEWHERE.items())
def test_the_pages_that_run_elsewhere_do(page: str, test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf-8")
    assert page.rsplit("/", 1)[1] in text


@pytest.mark.parametrize("block", SHELL, ids=where)
def test_the_commands_exist(block: Block) -> None:
    for words in commands(block.text):
        check(words)


def test_commands_of_statelog_exist_where_they_cannot_run() -> None:
    excluded = [block for block in ALL if block.language in ("sh", "console") and block.no_run]
    all_commands = [words for block in excluded for words in commands(block.text)]
    statelog_commands = [words for words in all_commands if words[0] == "statelog"]
    assert len(statelog_commands) > 10
    for words in statelog_commands:
        check(words)


def check(words: list[str]) -> None:
    """Fail if a command of a shell block names what is not there."""
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    match words:
        case [] | ["export" | "mkdir" | "printf", *_]:
            pass
        case ["make", *targets]:
            made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            assert set() == {target for target in targets if "=" not in target} - made
        case ["pip", "install", what]:
            extras = re.findall(r"\w+", what.partition("[")[2])
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert set() == set(extras) - set(project["optional-dependencies"])
        case ["statelog", *arguments]:
            parse(arguments)
        case ["python", script, *_]:
            assert (ROOT / script).is_file() or script in SAVED
        case [script]:
            assert (ROOT / script).is_file()
        case _:
            pytest.fail(f"not a command that this test knows: {' '.join(words)}")


def parse(arguments: list[str]) -> None:
    """Fail if the command line does not understand its arguments; nothing is run."""
    group: Any = typer.main.get_command(verbs)
    command = group.commands[arguments[0]]
    command.make_context(f"statelog {arguments[0]}", list(arguments[1:]))


def test_the_check_finds_what_it_is_for() -> None:
    with pytest.raises(AssertionError):
        check(["make", "coffee"])
    with pytest.raises(AssertionError):
        check(["pip", "install", ".[coffee]"])
    with pytest.raises(Exception, match="No such option"):
        check(["statelog", "gc", "somewhere", "--coffee"])
