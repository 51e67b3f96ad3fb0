"""
Escape control characters before text is shown on a terminal, in a log or to a reader.

Names of variables, columns, operators, tags and objects come from storage, and others may have
written them.  A name with an escape sequence rewrites a terminal, one with a line break adds a line
to a log, one with a change of the writing direction is read as another name.  Characters that are
not printable are replaced by Python's escapes.  Text for people passes through here: errors in
their constructor, logs in `statelog.logs`, the command line in its console.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Final

_LAYOUT: Final = "\n\t"
_NOT_ASCII: Final = re.compile(r"[^\x20-\x7e]+")


def one_line(text: str) -> str:
    """Convert *text* to a single line, with all unprintable characters escaped."""
    return text if text.isprintable() else "".join(map(_escape, text))


def plain_text(text: str) -> str:
    """Escape *text* like `one_line`, but keep line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(character if character in _LAYOUT else _escape(character) for character in text)


def plain_json(text: str) -> str:
    """Replace unprintable characters in JSON with JSON escapes, which keeps the value equal."""
    return _NOT_ASCII.sub(_json_escapes, text)


def _json_escapes(match: re.Match[str]) -> str:
    text = match[0]
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def facts_as_html(title: str, facts: Mapping[str, object]) -> str:
    """Format a title and named facts as an HTML table, with all text escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{_escaped(name)}</th>"
        f"<td style='text-align:left'>{_escaped(value)}</td></tr>"
        for name, value in facts.items()
        if value not in (None, "")
    )
    return f"<table><caption style='text-align:left'>{_escaped(title)}</caption>{rows}</table>"


def _escaped(value: object) -> str:
    return html.escape(one_line(str(value)))
