"""Words that hide the actor, and metaphors, do not come back into what people read."""

import re
from pathlib import Path

import pytest
from tests.house.sources import ROOT, name_of, repository_files

# Put together from pieces, so that this file does not find itself.
UNWANTED = re.compile(
    r"\b(?:"
    + "|".join(["no" + "body", "who" + "ever", "some" + "body", "told" + " of", "lies" + " in"])
    + r"|stands"
    + r" in)\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r'"[^"\n]*"|`[^`\n]*`|“[^”]*”')
READ_BY_PEOPLE = (".py", ".md", ".toml")
# Texts that are still to be brought into the voice; remove an entry with the texts it covers.
NOT_YET = (
    "src/statelog/state/",
    "src/statelog/spark/",
    "src/statelog/demo/",
    "docs/",
    "tests/",
    "examples/",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
)


def texts() -> list[Path]:
    return [
        path
        for path in repository_files()
        if path.suffix in READ_BY_PEOPLE and not name_of(path).startswith(NOT_YET)
    ]


def unwanted(text: str) -> list[str]:
    """Return the lines of a text with an unwanted word outside of quotations."""
    return [line.strip() for line in text.splitlines() if UNWANTED.search(QUOTED.sub("", line))]


@pytest.mark.parametrize("path", texts(), ids=name_of)
def test_a_text_names_its_actors(path: Path) -> None:
    assert [] == unwanted(path.read_text(encoding="utf-8"))


def test_each_exception_still_exists() -> None:
    names = [name_of(path) for path in repository_files()]
    gone = [each for each in NOT_YET if not any(name.startswith(each) for name in names)]
    assert [] == gone, "remove the entry from NOT_YET"


def test_the_check_finds_what_it_is_for() -> None:
    word = "no" + "body"
    assert [f"metrics: None for {word}"] == unwanted(f"metrics: None for {word}\nfine\n")
    assert [] == unwanted(f'the message "{word} reads it" is quoted')
    assert ROOT.is_dir()
