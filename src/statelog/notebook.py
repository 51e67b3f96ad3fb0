"""What a notebook shows of an object: its facts as a small table."""

from __future__ import annotations

import html
from collections.abc import Mapping

from statelog.plain_text import one_line


def facts_as_html(title: str, facts: Mapping[str, object]) -> str:
    """Return a title and named facts as an HTML table; all texts are escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{_escaped(name)}</th>"
        f"<td style='text-align:left'>{_escaped(value)}</td></tr>"
        for name, value in facts.items()
        if value not in (None, "")
    )
    return f"<table><caption style='text-align:left'>{_escaped(title)}</caption>{rows}</table>"


def _escaped(value: object) -> str:
    return html.escape(one_line(str(value)))
