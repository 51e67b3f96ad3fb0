"""
Change the state of single keys.

`statelog edit` sets and deletes the state of keys from Parquet files, `statelog forget` removes a
person's key from a location.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from statelog.cli.options import JsonOption, LocationArgument, OperatorOption
from statelog.cli.output import console, plural, print_json, progress
from statelog.cli.state_rows import open_state
from statelog.errors import UsageError
from statelog.extensions.operations.edit_files import keys_in_file, other_keys, states_in_file
from statelog.extensions.operations.edit_keys import EditReport
from statelog.extensions.operations.edit_keys import edit as edit_keys
from statelog.extensions.operations.forget_key import ForgetReport
from statelog.extensions.operations.forget_key import forget as forget_key
from statelog.redaction import redacted
from statelog.state.keys.state_key import key_from_text
from statelog.state.reader import StateReader


def edit(
    location: LocationArgument,
    *,
    set_files: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="VARIABLE=PATH: a Parquet file, or a folder of them, with the columns of statelog export. May be given several times.",
        ),
    ] = None,
    delete_file: Annotated[
        str | None,
        typer.Option("--delete", help="A Parquet file with keys whose whole state is deleted."),
    ] = None,
    delete_others: Annotated[
        bool,
        typer.Option(
            "--delete-others", help="Delete a variable of the keys that its file does not have."
        ),
    ] = False,
    operator: OperatorOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--apply", help="Only count the changes, or make them.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """
    Set and delete the state of keys from Parquet files, as a new checkpoint; --apply does it.

    For each key in a file its rows are the whole new state of the variable; keys that are not in it keep theirs.  Only keys whose state differs are written, so an interrupted call may be repeated.  With a time to live, entries expire at expires_at_ms of the file, else one time to live from now.

    The query must be stopped; one that runs is fenced, and its next start goes on from the edited state at the same source position.  The files are read into memory: edit millions of keys in parts, one file after the other.
    """
    if not set_files and delete_file is None:
        raise UsageError("nothing to edit: give --set VARIABLE=PATH or --delete PATH")
    if delete_others and not set_files:
        raise UsageError("--delete-others needs --set VARIABLE=PATH, whose keys are kept")
    with open_state(location, operator) as state, progress("reading"):
        reader = state.reader()
        states = _states(reader, set_files or (), delete_others=delete_others)
        deleted = [] if delete_file is None else keys_in_file(reader, delete_file)
        report = edit_keys(
            location, set=states, delete=deleted, operator=operator, apply=not dry_run
        )
    if as_json:
        print_json({**dataclasses.asdict(report), "dry_run": dry_run})
    else:
        _print_edits(report, location, dry_run=dry_run)


def _states(
    reader: StateReader, files: Sequence[str], *, delete_others: bool
) -> dict[str, dict[Any, object]]:
    """Return the new state of each variable by key; None deletes it."""
    states: dict[str, dict[Any, object]] = {}
    for given in files:
        variable, separator, path = given.partition("=")
        if not separator or not variable or not path:
            raise UsageError(f"--set takes VARIABLE=PATH, not {given!r:.200}")
        if variable in states:
            raise UsageError(
                f"--set names {variable!r} twice; put its rows into one file or folder"
            )
        states[variable] = states_in_file(reader, variable, path)
        if delete_others:
            others = list(other_keys(reader, variable, states[variable]))
            states[variable].update(dict.fromkeys(others))
    return states


def _print_edits(report: EditReport, location: str, *, dry_run: bool) -> None:
    counts = report.counts
    changes = (
        f"{counts.inserted:,} inserted, {counts.updated:,} updated, {counts.deleted:,} deleted, "
        f"{counts.unchanged:,} unchanged"
    )
    out = console()
    base = f"checkpoint {report.base_id} of {redacted(location)}"
    if report.checkpoint_id is None:
        out.print(f"Keys of {base}: {changes}", markup=False, soft_wrap=True)
    else:
        out.print(
            f"Keys changed in checkpoint {report.checkpoint_id}, after {base}: {changes}",
            markup=False,
            soft_wrap=True,
        )
    if dry_run and counts.changed:
        out.print("This was a dry run; --apply makes the changes. Stop the query before.")


def forget(
    location: LocationArgument,
    key: Annotated[
        list[str],
        typer.Argument(
            help="Values of the key columns, in their order; -- before a negative number."
        ),
    ],
    *,
    operator: OperatorOption = None,
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
    as_json: JsonOption = False,
) -> None:
    """
    Remove a key from all state of an operator, and name what still holds its bytes.

    Without --apply nothing is changed.  With it the key is deleted in a new checkpoint, and its bytes leave
    with the snapshots and checkpoints that the report lists.  With --now too, the affected key groups are
    written again without the key, older checkpoints are given up, and their objects are deleted.
    The query must be stopped; one that runs is fenced, and its next start goes on.
    Parents of a fork are not changed: the last line is the command for each that holds the key too.
    """
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
        _print_forgotten(report, location, now)
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


def _print_forgotten(report: ForgetReport, location: str, now: bool) -> None:
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
