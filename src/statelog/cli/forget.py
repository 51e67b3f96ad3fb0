"""`statelog forget`: remove a person's key from a location."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from statelog.cli.options import is_dry_run
from statelog.cli.output import console, plural, print_json, progress
from statelog.cli.state_rows import open_state
from statelog.operations.forget_key import forget as forget_key
from statelog.operations.forget_report import ForgetReport
from statelog.redaction import redacted
from statelog.state.keys.state_key import key_from_text


def forget(
    location: Annotated[str, typer.Argument(help="State location: a path or URL.")],
    key: Annotated[
        list[str],
        typer.Argument(
            help="Values of the key columns, in their order; -- before a negative number."
        ),
    ],
    *,
    operator: Annotated[
        str | None, typer.Option(help="operatorId, where the query has several operators.")
    ] = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="Delete all bytes of the key now, and give up older checkpoints."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run/--apply", help="Only report what holds the key, or remove it."),
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", hidden=True)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """
    Remove a key from all state of an operator, and name what still holds its bytes.

    Without --apply nothing is changed.  With it the key is deleted in a new checkpoint, and its bytes leave
    with the snapshots and checkpoints that the report lists.  With --now too, the affected key groups are
    written again without the key, older checkpoints are given up, and their objects are deleted.
    The query must be stopped; one that runs is fenced, and its next start goes on.
    Parents of a fork are not changed: the last line is the command for each that holds the key too.
    """
    dry_run = is_dry_run(dry_run, old=yes, name="--yes")
    with open_state(location, operator) as state:
        values = key_from_text(key, state.reader().schema.key_schema)
    with progress("reading") as update:
        report = forget_key(
            location,
            values,
            operator=operator,
            now=now,
            apply=not dry_run,
            on_progress=lambda path: update(f"reading {path}"),
        )
    if as_json:
        print_json({**dataclasses.asdict(report), "key": [str(part) for part in report.key]})
    else:
        _print(report, location, now)
        for parent in report.parents:
            command = _command(parent, key, operator, now=now)
            console().print(
                f"The parent of this fork still holds the key: {command}",
                soft_wrap=True,
                markup=False,
            )


def _command(location: str, key: Sequence[str], operator: str | None, *, now: bool) -> str:
    """Return the command that removes the key from another location."""
    options = [*(["--operator", operator] if operator else []), *(["--now"] if now else [])]
    return shlex.join(["statelog", "forget", *options, "--apply", "--", location, *key])


def _print(report: ForgetReport, location: str, now: bool) -> None:
    out = console()

    def line(text: str) -> None:
        out.print(text, soft_wrap=True, markup=False)

    would = "would be " if report.dry_run else ""
    entries = ", ".join(f"{count:,} in {name}" for name, count in report.removed.items())
    line(
        f"{report.operator} of {redacted(location)}: the key has {entries or 'no state'} in checkpoint "
        f"{report.base_id}"
    )
    if report.checkpoint_id is not None:
        line(f"removed in checkpoint {report.checkpoint_id}")
    if report.given_up:
        ids = ", ".join(map(str, report.given_up))
        line(f"{plural(len(report.given_up), 'checkpoint')} {would}given up: {ids}")
    if report.deleted:
        line(f"{plural(len(report.deleted), 'object')} {would}deleted")
    for release in report.outside:
        for path in release.tags:
            line(
                f"{path} in {release.parent}, the parent of this fork, {'may be' if report.dry_run else 'was'} deleted"
            )
        if release.problem:
            line(f"kept: {release.problem}")
    if not report.traces:
        line("no object of this location holds the key")
    elif not (now and report.dry_run):
        for trace in report.traces:
            line(f"held by {trace.kind} {trace.path}: leaves {trace.leaves}")
    if report.dry_run and (report.removed or report.traces):
        line("This was a dry run; --apply does it.")
