"""
Words that this project does not use: see "Words" in docs/contributing/house-rules.md.

Data is stored, it does not lie or stand somewhere; the actor of a sentence has a name.
"""

import re

from tests.house.sources import ROOT, breaches, modules, pages, text_of

START = (
    "index",
    "tutorial/story",
    "tutorial/from-spark",
    "tutorial/test-it",
    "tutorial/is-it-for-me",
)
"""The pages that a newcomer reads, in the order of the navigation."""

WORDS = re.compile(r"\b(?:nobody|whoever|somebody|lies in|stands in|told of)\b", re.IGNORECASE)
QUOTED = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|^>.*$", re.MULTILINE)


def findings(text: str) -> list[str]:
    """Return the lines with such a word outside of quotations."""
    lines = QUOTED.sub("", text).splitlines()
    return [f"{number}: {line}" for number, line in enumerate(lines, 1) if WORDS.search(line)]


def test_no_page_has_such_a_word() -> None:
    assert {} == breaches(pages(), lambda path: findings(text_of(path)))


def test_the_first_pages_are_short() -> None:
    assert len(text_of(ROOT / "README.md").split()) <= 900
    words = {name: len(text_of(ROOT / "docs" / f"{name}.md").split()) for name in START}
    assert sum(words.values()) <= 2800, words


def test_the_newest_section_of_the_changelog_has_no_such_word() -> None:
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert [] == findings(sections[1])


def test_no_module_has_such_a_word() -> None:
    """Texts in quotes are messages here, not quotations."""
    assert {} == breaches(modules(), lambda path: findings(text_of(path).replace('"', "")))


def test_the_check_finds_what_it_is_for() -> None:
    assert findings("The state lies in a folder.") != []
    assert findings('`whoever` is a word, and "nobody" too.\n> told of') == []
