"""`statelog edit`: set and delete the state of keys from Parquet files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from statelog.cli.output import console, print_json, progress
from statelog.cli.state_rows import open_state
from statelog.errors import UsageError
from statelog.operations.edit_files import keys_in_file, other_keys, states_in_file
from statelog.operations.edit_keys import edit as edit_keys
from statelog.operations.recommit import EditReport
from statelog.redaction import redacted
from statelog.state.reader import StateReader


def edit(
    location: Annotated[str, typer.Argument(help="State location: a path or URL.")],
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
    operator: Annotated[
        str | None, typer.Option(help="operatorId, where the query has several operators.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--apply", help="Only count the changes, or make them.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """
    Set and delete the state of keys from Parquet files, as a new checkpoint; --apply does it.

    For each key in a file its rows are the whole new state of the variable; keys that are not in it keep theirs.  Only keys whose state differs are written, so an interrupted call may be repeated.  With a time to live, entries expire at expires_at_ms of the file, else one time to live from now.

    The query must be stopped; one that runs is fenced, and its next start goes on from the edited state at the same source position.  The files are read into memory: for millions of keys use edit_state on Spark.
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
        _print(report, location, dry_run=dry_run)


def _states(
    reader: StateReader, files: Sequence[str], *, delete_others: bool
) -> dict[str, dict[Any, Any]]:
    """Return the new state of each variable by key; None deletes it."""
    states: dict[str, dict[Any, Any]] = {}
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


def _print(report: EditReport, location: str, *, dry_run: bool) -> None:
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
