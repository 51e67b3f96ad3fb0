"""
The page: figures in, one HTML file out, which needs nothing else.

Style and script are in it, and a content security policy that forbids every request.  The policy
names the script by its hash, so no other script can run.
"""

from __future__ import annotations

import base64
import hashlib
import statistics
from importlib.resources import files
from typing import Final

from statelog.extensions.report import texts
from statelog.extensions.report.charts import table
from statelog.extensions.report.estimates import bill_section, restart_section
from statelog.extensions.report.figures import CheckpointFigures, Figures
from statelog.extensions.report.html import (
    Child,
    Html,
    data_block,
    joined,
    script,
    style_sheet,
    tag,
)
from statelog.extensions.report.sections import (
    SHOWN_MAX,
    batch_section,
    section,
    shown,
    skew_section,
    state_section,
)

_LEVELS: Final = {"damage": "Damage", "attention": "Attention", "note": "Note"}
_THEMES: Final = {"auto": "Auto", "light": "Light", "dark": "Dark"}


def page(figures: Figures) -> str:
    """Return the page of a location, as text to be stored in UTF-8."""
    css, code = _resource("page.css"), _resource("page.js")
    head = tag(
        "head",
        {},
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": _policy(code)}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "color-scheme", "content": "light dark"}),
        tag("meta", {"name": "referrer", "content": "no-referrer"}),
        tag("meta", {"name": "generator", "content": f"statelog {figures.version}"}),
        tag("title", {}, f"State of {figures.location}"),
        style_sheet(css),
    )
    sections = _sections(figures)
    body = tag(
        "body",
        {},
        tag("a", {"class": "skip", "href": "#main"}, "To the content"),
        _header(figures),
        _navigation(sections),
        tag("main", {"id": "main", "tabindex": -1}, [content for _, _, content in sections]),
        _footer(figures),
        data_block("figures", figures.to_json()),
        script(code),
    )
    return "<!doctype html>\n" + tag("html", {"lang": "en"}, head, body) + "\n"


def _resource(name: str) -> str:
    return files("statelog.extensions.report").joinpath(name).read_text(encoding="utf-8")


def _policy(code: str) -> str:
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii")
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def _sections(figures: Figures) -> list[tuple[str, str, Html]]:
    """Return identity, short name and content of each section."""
    sections = [("overview", "Overview", _overview(figures))]
    if shown(figures):
        sections += [
            ("state", "State", state_section(figures)),
            ("batches", "Micro-batches", batch_section(figures)),
            ("key-groups", "Key groups", skew_section(figures)),
        ]
    if figures.restart is not None:
        sections.append(("restart", "Restart", restart_section(figures.restart)))
    if figures.bill is not None:
        sections.append(("bill", "Bill", bill_section(figures, figures.bill)))
    sections.append(("checkpoints", "Checkpoints", _checkpoint_section(figures)))
    return sections


def _header(figures: Figures) -> Html:
    facts = [f"made {texts.moment(figures.made_at_ms)}"]
    if figures.operators:
        several = len(figures.operators) > 1
        facts.append(f"operator{'s' if several else ''} {', '.join(figures.operators)}")
        facts.append(f"{figures.delivery} delivery")
    if figures.key_groups is not None:
        facts.append(texts.plural(figures.key_groups, "key group"))
    if figures.query_id:
        facts.append(f"query {figures.query_id}")
    return tag(
        "header",
        {},
        tag(
            "div",
            {"class": "masthead"},
            tag("p", {"class": "brand"}, "statelog report"),
            tag(
                "fieldset",
                {"class": "theme"},
                tag("legend", {"class": "hidden"}, "Colours"),
                [_theme(name, label) for name, label in _THEMES.items()],
            ),
        ),
        tag("h1", {}, figures.location),
        tag("p", {"class": "facts"}, [tag("span", {}, fact) for fact in facts]),
    )


def _theme(name: str, label: str) -> Html:
    identity = f"theme-{name}"
    return joined(
        tag(
            "input",
            {
                "type": "radio",
                "name": "theme",
                "id": identity,
                "value": name,
                "checked": name == "auto",
            },
        ),
        tag("label", {"for": identity}, label),
    )


def _navigation(sections: list[tuple[str, str, Html]]) -> Html:
    links = [
        tag("li", {}, tag("a", {"href": f"#{identity}"}, name)) for identity, name, _ in sections
    ]
    return tag("nav", {"aria-label": "Sections"}, tag("ul", {}, links))


def _overview(figures: Figures) -> Html:
    if figures.findings:
        cards: Child = tag(
            "ul",
            {"class": "findings"},
            [_finding(finding.level, finding.text) for finding in figures.findings],
        )
    elif figures.checkpoints:
        cards = tag("p", {"class": "card"}, "Nothing stands out.")
    else:
        text = "The location is claimed, but contains no checkpoint yet."
        cards = tag("p", {"class": "card"}, text)
    return section("overview", "Overview", tag("ul", {"class": "tiles"}, _tiles(figures)), cards)


def _finding(level: str, text: str) -> Html:
    return tag(
        "li",
        {"class": f"finding {level}"},
        tag("strong", {}, _LEVELS[level]),
        tag("span", {}, text),
    )


def _tiles(figures: Figures) -> list[Html]:
    newest, rows = figures.newest, shown(figures)
    if newest is None:
        return []
    stored = sum(stored_kind.size_bytes for stored_kind in figures.stored)
    objects = sum(stored_kind.objects for stored_kind in figures.stored)
    tiles = [
        _tile("State entries", texts.count(newest.state_entries), _growth(rows)),
        _tile("Stored", texts.size(stored), texts.plural(objects, "object")),
        _tile("Log to replay", texts.size(newest.log_bytes), _log_note(newest)),
    ]
    totals = [row.total_ms for row in rows if row.total_ms is not None]
    if totals:
        largest = f"the longest {texts.duration(max(totals))}"
        tiles.append(
            _tile("Median micro-batch", texts.duration(statistics.median(totals)), largest)
        )
    if figures.restart is not None:
        note = (
            f"{texts.plural(figures.restart.objects, 'object')}, about "
            f"{texts.duration(figures.restart.seconds * 1000)}"
        )
        tiles.append(_tile("A restart reads", texts.size(figures.restart.size_bytes), note))
    if figures.bill is not None:
        rate = figures.bill.seconds_per_batch
        note = (
            "rate unknown" if rate is None else f"a micro-batch each {texts.duration(rate * 1000)}"
        )
        tiles.append(_tile("Store, a month", texts.money(figures.bill.dollars), note))
    return tiles


def _tile(name: str, value: str, note: str) -> Html:
    return tag(
        "li",
        {"class": "tile"},
        tag("span", {"class": "name"}, name),
        tag("span", {"class": "value"}, value),
        tag("span", {"class": "note"}, note),
    )


def _growth(rows: list[CheckpointFigures]) -> str:
    counted = [row for row in rows if row.state_entries is not None]
    if len(counted) < 2 or not counted[0].state_entries:
        return f"as of checkpoint {counted[-1].checkpoint_id}" if counted else ""
    change = (counted[-1].state_entries or 0) / counted[0].state_entries - 1
    sign = "+" if change >= 0 else "−"
    return f"{sign}{texts.percent(abs(change))} since checkpoint {counted[0].checkpoint_id}"


def _log_note(newest: CheckpointFigures) -> str:
    if not newest.full_snapshot_bytes:
        return "no snapshot yet"
    share = (newest.log_bytes or 0) / newest.full_snapshot_bytes
    return f"{texts.percent(share)} of the snapshots' size"


def _checkpoint_section(figures: Figures) -> Html:
    listed = figures.checkpoints[-SHOWN_MAX:]
    heads = [
        "Checkpoint", "State", "Committed", "Run", "Batch", "Rows", "Changes", "Commit", "Objects",
        "Snapshots", "Time",
    ]  # fmt: skip
    rows = [_row(entry) for entry in reversed(listed)]
    return section(
        "checkpoints",
        "Checkpoints",
        tag(
            "div",
            {"class": "card"},
            tag("p", {"class": "note"}, _retention(figures)),
            table(heads, rows, caption="Checkpoints", left=(0, 1, 2)) if rows else None,
        ),
    )


def _retention(figures: Figures) -> str:
    retained = sum(checkpoint.state == "retained" for checkpoint in figures.checkpoints)
    subsumed = sum(checkpoint.state == "subsumed" for checkpoint in figures.checkpoints)
    text = (
        f"{texts.plural(retained, 'checkpoint')} can be restored. A report knows only what is stored: "
        "checkpoints beyond the setting retainedCheckpoints are deleted, and with them their figures."
    )
    if subsumed:
        text += (
            f" {texts.plural(subsumed, 'older checkpoint')} cannot be restored; their files are kept "
            "because newer ones need the changes in them."
        )
    if len(figures.checkpoints) > SHOWN_MAX:
        text += f" The newest {SHOWN_MAX} are shown."
    return text


def _row(figures: CheckpointFigures) -> list[str | Html]:
    state = tag("span", {"class": f"state {figures.state}"}, figures.state)
    return [
        str(figures.checkpoint_id),
        state,
        texts.moment(figures.created_at_ms),
        texts.count(figures.epoch),
        texts.count(figures.batch_id),
        texts.count(figures.rows),
        texts.size(figures.change_bytes),
        texts.size(figures.commit_bytes),
        texts.count(figures.objects),
        texts.count(figures.snapshots),
        texts.duration(figures.total_ms),
    ]


def _footer(figures: Figures) -> Html:
    return tag(
        "footer",
        {},
        tag(
            "p",
            {},
            f"Made by statelog {figures.version} with ",
            tag("code", {}, "statelog report"),
            ". The figures are in this file as JSON, and ",
            tag("code", {}, "statelog report --json"),
            " prints them. The page makes no request.",
        ),
    )
