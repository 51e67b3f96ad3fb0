"""
`statelog info`: what a location is, how large, how healthy, and what to type next.

`statelog checkpoints`: its checkpoints, and which can be restored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated

import typer
from rich import box
from rich.console import JustifyMethod
from rich.text import Text

from statelog.checkpoint.listing import CheckpointState, CheckpointSummary, list_checkpoints
from statelog.cli.options import JsonLinesOption, LocationArgument
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    FINDING_STYLES,
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
from statelog.report import texts
from statelog.report.summary import Summary, summarize
from statelog.runtime.clock import wall_clock_seconds

_LABEL_WIDTH = 13

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


def info(
    location: LocationArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """
    Say what a state location is, how large and healthy it is, and what to type next.

    The state itself is not read.  Exit status 1 if a checkpoint is damaged.
    """
    store = open_location(location)
    with progress("reading"):
        summary = summarize(store, location)
    if as_json:
        print_json(summary.to_json())
    else:
        _print_summary(summary, location)
    raise typer.Exit(EXIT_FINDING if summary.figures.is_damaged else EXIT_OK)


def _print_summary(summary: Summary, location: str) -> None:
    out = console()
    out.print(Text(f"{summary.figures.location}: {summary.kind}", style="bold"), soft_wrap=True)
    for label, text in _facts(summary):
        out.print(Text.assemble((f"  {label:{_LABEL_WIDTH}}", "cyan"), text), soft_wrap=True)
    for finding in summary.findings:
        line = Text.assemble(
            (f"  {finding.level:{_LABEL_WIDTH}}", FINDING_STYLES[finding.level]), finding.text
        )
        out.print(line, soft_wrap=True)
    if not summary.findings:
        out.print(Text.assemble((f"  {'stands out':{_LABEL_WIDTH}}", "cyan"), "nothing"))
    out.print(Text("next:", style="bold"))
    for step in summary.next_steps(location):
        out.print(f"  {step}", soft_wrap=True)


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    figures, newest = summary.figures, summary.newest
    if figures.query_id:
        yield "query", f"{figures.query_id}, {figures.delivery} delivery"
    for operator in summary.operators:
        yield "operator", f"{operator.name}, by {operator.key}"
        for variable in operator.variables:
            ttl = (
                ""
                if variable.ttl_ms is None
                else f", expires after {texts.duration(variable.ttl_ms)}"
            )
            yield "", f"{variable.name}: {variable.kind} ({variable.columns}){ttl}"
    if newest is not None:
        batch = "" if newest.batch_id is None else f", micro-batch {newest.batch_id}"
        age = ""
        if newest.created_at_ms is not None:
            since_ms = max(0.0, wall_clock_seconds() * 1000 - newest.created_at_ms)
            age = f", {utc(newest.created_at_ms)} UTC ({texts.duration(since_ms)} ago)"
        yield "newest", f"checkpoint {newest.checkpoint_id}{batch}{age}"
    retained = sum(each.state == "retained" for each in figures.checkpoints)
    yield "checkpoints", f"{retained} of {len(figures.checkpoints):,} can be restored"
    if newest is not None:
        log = f"{size_text(newest.log_bytes or 0)} of log in {plural(newest.log_handles or 0, 'part')}"
        snapshots = f"{size_text(newest.full_snapshot_bytes or 0)} of snapshots"
        yield (
            "state",
            (
                f"{texts.count(newest.state_entries)} entries in {texts.count(figures.key_groups)} key "
                f"groups; {snapshots}, {log}"
            ),
        )
    objects = sum(each.objects for each in figures.stored)
    yield (
        "stored",
        (
            f"{plural(objects, 'object')}, {size_text(sum(each.size_bytes for each in figures.stored))}"
        ),
    )
    if figures.restart is not None:
        size = size_text(sum(part.size_bytes for part in figures.restart.parts))
        yield "restart", f"reads {plural(figures.restart.objects, 'object')}, {size}"
    if summary.claimed:
        yield "claimed", f"{summary.claimed}; it has not committed yet"
    for pin in summary.pins:
        yield "pinned", pin


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
        _print_checkpoints(summaries, location)
    else:
        console().print(
            f"{redacted(location)} is claimed, but contains no checkpoint yet.", markup=False
        )
    damaged = any(summary.state is CheckpointState.DAMAGED for summary in summaries)
    raise typer.Exit(EXIT_FINDING if damaged else EXIT_OK)


def _json(summary: CheckpointSummary) -> dict[str, object]:
    return {**{name: getattr(summary, name) for name in _FIELDS}, "state": summary.state.value}


def _print_checkpoints(summaries: list[CheckpointSummary], location: str) -> None:
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
    plain = {k: v for k, v in summary.properties.items() if isinstance(v, bool | int | float | str)}
    batch = {name: plain[name] for name in _BATCH_NUMBERS if name in plain}
    return " ".join(f"{name}={value}" for name, value in (batch or plain).items())


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
