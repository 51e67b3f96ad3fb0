"""`statelog checkpoints`: the checkpoints of a location, and which of them can be restored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rich.text import Text

from statelog.checkpoint.listing import (
    FIGURES_PROPERTY,
    CheckpointState,
    CheckpointSummary,
    list_checkpoints,
)
from statelog.cli import options
from statelog.cli.output import (
    console,
    open_location,
    plural,
    print_json,
    print_table,
    progress,
    say,
    size_text,
    utc,
)
from statelog.redaction import redacted

_PROPERTIES = "properties"
_HIDDEN_BELOW = {
    "parent": 96,
    "epoch": 96,
    "changes": 96,
    "snapshots": 96,
    "created (UTC)": 76,
    _PROPERTIES: 56,
}
_LEFT = ("state", "created (UTC)", _PROPERTIES)
_FIELDS = tuple(field.name for field in dataclasses.fields(CheckpointSummary))
_BATCH_NUMBERS = ("batch_id", "rows", "keys", "output_rows", "delta_bytes", "tasks")
_STYLES = {
    CheckpointState.RETAINED: "green",
    CheckpointState.SUBSUMED: "dim",
    CheckpointState.DAMAGED: "bold red",
    CheckpointState.INCOMPATIBLE: "yellow",
}


def checkpoints(location: options.Location, as_json: options.Json = False) -> bool:
    """
    List the checkpoints of a state location.

    A "retained" checkpoint can be restored.  A "subsumed" one cannot; its file remains until the
    next clean-up, or as long as a retained checkpoint needs changes in it.  Exit status 1 if a
    checkpoint is damaged.

    Examples:
        statelog checkpoints s3://bucket/jobs/totals
        statelog checkpoints s3://bucket/jobs/totals --json
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
        say(f"{redacted(location)} is claimed, but contains no checkpoint yet.")
    return any(summary.state is CheckpointState.DAMAGED for summary in summaries)


def _json(summary: CheckpointSummary) -> dict[str, object]:
    return {**{name: getattr(summary, name) for name in _FIELDS}, "state": summary.state.value}


def _print(summaries: list[CheckpointSummary], location: str) -> None:
    # A narrow terminal shows the most important columns; --json shows all.
    width = console().width
    rows = [
        {head: cell for head, cell in _row(summary).items() if width >= _HIDDEN_BELOW.get(head, 0)}
        for summary in summaries
    ]
    heads = list(rows[0])
    print_table(
        heads,
        [list(row.values()) for row in rows],
        numbers=[head for head in heads if head not in _LEFT],
        whole=heads,
        cut=_PROPERTIES,
    )
    for summary in summaries:
        if summary.problem:
            say((summary.problem, _STYLES[summary.state]))
    retained = sum(summary.state is CheckpointState.RETAINED for summary in summaries)
    say(f"{plural(len(summaries), 'checkpoint')} in {redacted(location)}, {retained} retained")


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
        _PROPERTIES: Text(_properties(summary) if readable else ""),
    }


def _properties(summary: CheckpointSummary) -> str:
    """Return the numbers of a micro-batch, or else all plain properties."""
    stored = summary.properties
    figures = summary.properties.get(FIGURES_PROPERTY)
    stored = {**stored, **figures} if isinstance(figures, Mapping) else stored
    plain = {k: v for k, v in stored.items() if isinstance(v, bool | int | float | str)}
    batch = {name: plain[name] for name in _BATCH_NUMBERS if name in plain}
    return " ".join(f"{name}={value}" for name, value in (batch or plain).items())


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
