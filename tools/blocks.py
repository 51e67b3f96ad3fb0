"""The generated blocks of a page that is otherwise written by hand."""

import re
from collections.abc import Callable
from pathlib import Path

BLOCK = re.compile(r"(<!-- begin: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: Path, table: Callable[[str], str]) -> str:
    """Return a page with each of its blocks made anew, from the name of the block."""
    text = page.read_text(encoding="utf-8")
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match[2])}\n{match[3]}", text)
