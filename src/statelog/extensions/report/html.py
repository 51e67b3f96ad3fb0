"""
Elements of a page as text, with the one escape.

A child or attribute that is plain text is escaped, so a name from a location cannot become markup.
Only this module makes `Html`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

_VOID: Final = ("input", "meta")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "Html | str | Iterable[Child] | None"
Attributes: TypeAlias = Mapping[str, "str | int | float | bool | None"]


def escaped(text: str) -> Html:
    """Return *text* so that it is neither markup nor the end of an attribute."""
    return Html(html.escape(_printable(text), quote=True))


def tag(name: str, attributes: Attributes | None = None, *children: Child) -> Html:
    """
    Return an element.

    Args:
        name: Its name.
        attributes: True is an attribute without a value; False and None are left out.
        children: Text, which is escaped, or elements; None is left out.
    """
    parts = [f"<{name}"]
    for key, value in (attributes or {}).items():
        if value is True:
            parts.append(f" {key}")
        elif value is not None and value is not False:
            parts.append(f' {key}="{escaped(str(value))}"')
    parts.append(">")
    if name not in _VOID:
        parts += [*_texts(children), f"</{name}>"]
    return Html("".join(parts))


def joined(*children: Child) -> Html:
    """Return elements one after the other."""
    return Html("".join(_texts(children)))


def style_sheet(css: str) -> Html:
    """Return a `<style>` of this package's own text."""
    return Html(f"<style>{css}</style>")


def script(code: str) -> Html:
    """Return a `<script>` of this package's own text."""
    return Html(f"<script>{code}</script>")


def data_block(identity: str, value: object) -> Html:
    """Return *value* as a block of JSON, in which no text can end the block."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{escaped(identity)}">{text}</script>')


def _texts(children: Child) -> Iterable[str]:
    if children is None:
        return
    if isinstance(children, Html):
        yield children
    elif isinstance(children, str):
        yield escaped(children)
    else:
        for child in children:
            yield from _texts(child)


def _printable(text: str) -> str:
    """Replace what no file in UTF-8 or page may have: lone surrogates and control characters."""
    if text.isprintable():
        return text
    return "".join(
        "\ufffd"
        if "\ud800" <= character <= "\udfff" or (character < " " and character not in "\n\t")
        else character
        for character in text
    )
