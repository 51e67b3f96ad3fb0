"""
Render the figures of a location as one self-contained HTML page.

The page is the template `page.html`.  In it are the style sheet, the figures as JSON, and the
script that draws them.  The content security policy forbids every request, and names style and
script by their hashes: no other can run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from importlib.resources import files
from typing import Final

from statelog.extensions.report.bill import PRICES
from statelog.extensions.report.figures import Figures

_ESCAPES: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}
"""Without these characters, JSON text cannot end its HTML element or start a new one."""


def page(figures: Figures) -> str:
    """Return the page for a location, as text to be stored in UTF-8."""
    style = _resource("page.css")
    script = _resource("page.js")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        f"style-src {_hash(style)}; script-src {_hash(script)}"
    )
    lists = [asdict(prices) for prices in PRICES.values()]
    facts = json_text({**figures.to_json(), "price_lists": lists})
    text = _resource("page.html")
    # The figures last: a name in braces that is in them is data.
    for name, content in (
        ("policy", policy),
        ("style", style),
        ("script", script),
        ("figures", facts),
    ):
        text = text.replace(f"{{{{{name}}}}}", content)
    return text


def json_text(value: object) -> str:
    """Return JSON that is safe inside any HTML element; NaN and infinity become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(finite, separators=(",", ":")).translate(_ESCAPES)


def _resource(name: str) -> str:
    return files("statelog.extensions.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the content security policy source for an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
