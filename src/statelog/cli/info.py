"""`statelog info`: what a location is, how large, how healthy, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from statelog.cli.options import LocationArgument
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    FINDING_STYLES,
    console,
    open_location,
    plural,
    print_json,
    progress,
    size_text,
    utc,
)
from statelog.extensions.report import texts
from statelog.extensions.report.summary import Summary, summarize
from statelog.runtime.clock import wall_clock_seconds

_LABEL_WIDTH = 13


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
        _print(summary, location)
    raise typer.Exit(EXIT_FINDING if summary.figures.is_damaged else EXIT_OK)


def _print(summary: Summary, location: str) -> None:
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
    figures, newest = summary.figures, summary.figures.newest
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
