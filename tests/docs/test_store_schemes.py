"""The tables of docs/how-to/stores.md show what the rows of the schemes say."""

from pathlib import Path

import pytest

from statelog.store.location import SCHEMES, Scheme

PAGE = Path(__file__).parents[2] / "docs/how-to/stores.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMES = TEXT[TEXT.index("## Names") : TEXT.index("## Credentials")]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_what_was_tried_is_on_the_page(scheme: Scheme) -> None:
    tried = scheme.tried
    cells = (scheme.title, scheme.put_if_absent, tried.emulator, tried.server, tried.cloud)
    assert f"| {' | '.join(cells)} |" in TEXT.splitlines()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_every_spelling_is_on_the_page(scheme: Scheme) -> None:
    spellings = (scheme.name, *(scheme.aliases if scheme.is_remote else ()))
    assert [name for name in spellings if f"`{name}://" not in NAMES] == []
