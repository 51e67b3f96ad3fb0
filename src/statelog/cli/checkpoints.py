"""`statelog checkpoints`: the checkpoints of a location, and which can be restored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import typer
from rich import box
from rich.console import JustifyMethod
from rich.text import Text

from statelog.checkpoint.listing import (
    FIGURES_PROPERTY,
    CheckpointState,
    CheckpointSummary,
    list_checkpoints,
)
from statelog.cli.options import JsonLinesOption, LocationArgument
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    PlainTable,
    console,
    open_location,
    plural,
    print_json,
    progress,
    size_text,
    utc,
)
from statelog.redaction import redacted

_HIDDEN_BELOW = {
    "parent": 96,
    "epoch": 96,
    "changes": 96,
    "snapshots": 96,
    "created (UTC)": 76,
    "properties": 56,
}
_LEFT = ("state", "created (UTC)")
_FIELDS = tuple(field.name for field in dataclasses.fields(CheckpointSummary))
_BATCH_NUMBERS = ("batch_id", "rows", "keys", "output_rows", "delta_bytes", "tasks")
_STYLES = {
    CheckpointState.RETAINED: "green",
    CheckpointState.SUBSUMED: "dim",
    CheckpointState.DAMAGED: "bold red",
    CheckpointState.INCOMPATIBLE: "yellow",
}


def checkpoints(
    location: LocationArgument,
    as_json: JsonLinesOption = False,
) -> None:
    """
    List the checkpoints of a state location.

    "retained" ones can be restored; the file of a "subsumed" one is kept because retained ones
    need change sets in it, or until the query's next clean-up.  Exit status 1 if one is damaged.
    """
    store = open_location(location)
    with progress("reading"):
        summaries = list_checkpoints(store)
    if as_json:
        for summary in summaries:
            print_json(_json(summary))
    elif summaries:
        _print(summaries, location)
    else:
        console().print(
            f"{redacted(location)} is claimed, but contains no checkpoint yet.", markup=False
        )
    damaged = any(summary.state is CheckpointState.DAMAGED for summary in summaries)
    raise typer.Exit(EXIT_FINDING if damaged else EXIT_OK)


def _json(summary: CheckpointSummary) -> dict[str, object]:
    return {**{name: getattr(summary, name) for name in _FIELDS}, "state": summary.state.value}


def _print(summaries: list[CheckpointSummary], location: str) -> None:
    out = console()
    # A narrow terminal shows the most important columns; --json shows all.
    rows = [
        {head: cell for head, cell in _row(each).items() if out.width >= _HIDDEN_BELOW.get(head, 0)}
        for each in summaries
    ]
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for head in rows[0]:
        if head == "properties":  # the column that is shortened
            table.add_column(head, no_wrap=True, overflow="ellipsis", ratio=1)
            continue
        width = max(len(head), *(len(row[head]) for row in rows))
        justify: JustifyMethod = "left" if head in _LEFT else "right"
        table.add_column(head, justify=justify, no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*row.values())
    out.print(table)
    for each in summaries:
        if each.problem:
            out.print(Text(each.problem, style=_STYLES[each.state]), soft_wrap=True)
    retained = sum(each.state is CheckpointState.RETAINED for each in summaries)
    summary = f"{plural(len(summaries), 'checkpoint')} in {redacted(location)}, {retained} retained"
    out.print(summary, markup=False, soft_wrap=True)


def _row(summary: CheckpointSummary) -> dict[str, str | Text]:
    readable = summary.created_at_ms is not None
    return {
        "id": str(summary.checkpoint_id),
        "parent": _number(summary.parent_id),
        "epoch": _number(summary.epoch),
        "state": Text(summary.state.value, style=_STYLES[summary.state]),
        "created (UTC)": utc(summary.created_at_ms),
        "size": size_text(summary.size_bytes),
        "log": str(summary.log_length) if readable else "",
        "changes": size_text(summary.log_size_bytes) if readable else "",
        "snapshots": str(summary.snapshot_count) if readable else "",
        "properties": Text(_properties(summary) if readable else ""),
    }


def _properties(summary: CheckpointSummary) -> str:
    """Return the numbers of a micro-batch, or else all plain properties."""
    stored, figures = summary.properties, summary.properties.get(FIGURES_PROPERTY)
    stored = {**stored, **figures} if isinstance(figures, Mapping) else stored
    plain = {k: v for k, v in stored.items() if isinstance(v, bool | int | float | str)}
    batch = {name: plain[name] for name in _BATCH_NUMBERS if name in plain}
    return " ".join(f"{name}={value}" for name, value in (batch or plain).items())


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
