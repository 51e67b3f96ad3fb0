"""
Change the state of single keys.

`statelog edit` sets and deletes the state of keys from Parquet files, `statelog forget` removes the
key of a person, `statelog unfreeze` lets a query process frozen keys again.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from statelog.cli import options
from statelog.cli.output import plural, print_json, progress, say, say_dry_run
from statelog.cli.rows import open_state
from statelog.errors import UsageError
from statelog.extensions.operations.edit_keys import (
    EditReport,
    keys_in_file,
    other_keys,
    states_in_file,
)
from statelog.extensions.operations.edit_keys import edit as edit_keys
from statelog.extensions.operations.edit_keys import unfreeze as unfreeze_keys
from statelog.extensions.operations.forget_key import ForgetReport
from statelog.extensions.operations.forget_key import forget as forget_key
from statelog.redaction import redacted
from statelog.state.keys.state_key import key_from_text
from statelog.state.reader import StateReader


def edit(
    location: options.Location,
    *,
    set_files: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="VARIABLE=PATH",
            help="Set a variable from a Parquet file, or from a folder of files, with the columns that `statelog read --to` writes. Can be repeated.",
        ),
    ] = None,
    delete_file: Annotated[
        str | None,
        typer.Option(
            "--delete",
            metavar="PATH",
            help="Delete the whole state of every key in a Parquet file.",
        ),
    ] = None,
    delete_others: Annotated[
        bool,
        typer.Option(
            "--delete-others",
            help="For each variable in --set, delete the keys that are not in its file.",
        ),
    ] = False,
    operator: options.Operator = None,
    apply: options.Apply = False,
    as_json: options.Json = False,
) -> None:
    """
    Set or delete the state of the keys in Parquet files, and commit a new checkpoint.

    The rows of a key in a file replace all state of the key in that variable; keys that are not in
    the file stay unchanged.  The command writes only keys whose state differs, so it is safe to
    repeat an interrupted run. If a variable has a time to live, each entry expires at the time in
    its expires_at_ms column; without a value there, its time to live starts now.

    Stop the query first.  A query that is still running is fenced; after a restart, it continues
    with the edited state from the same source position.  The command reads whole files into memory,
    so split an edit of millions of keys into several files and runs.

    Examples:
        statelog edit s3://bucket/jobs/totals --set total=/tmp/totals/total.parquet
        statelog edit s3://bucket/jobs/totals --delete closed-accounts.parquet --apply
    """
    if not set_files and delete_file is None:
        raise UsageError("nothing to edit: pass --set VARIABLE=PATH or --delete PATH")
    if delete_others and not set_files:
        raise UsageError(
            "--delete-others requires --set VARIABLE=PATH; it keeps only the keys in PATH"
        )
    with open_state(location, operator) as state, progress("reading"):
        reader = state.reader()
        states = _states(reader, set_files or (), delete_others=delete_others)
        deleted = [] if delete_file is None else keys_in_file(reader, delete_file)
        report = edit_keys(location, set=states, delete=deleted, operator=operator, apply=apply)
    if as_json:
        _print_json(report, apply=apply)
        return
    counts = report.counts
    base = f"checkpoint {report.base_id} of {redacted(location)}"
    where = f"Keys of {base}"
    if report.checkpoint_id is not None:
        where = f"Keys changed in checkpoint {report.checkpoint_id}, after {base}"
    say(
        f"{where}: {counts.inserted:,} inserted, {counts.updated:,} updated, {counts.deleted:,} deleted, "
        f"{counts.unchanged:,} unchanged"
    )
    if not apply and counts.changed:
        say_dry_run(stop_query=True)


def _print_json(report: EditReport, *, apply: bool) -> None:
    print_json({**dataclasses.asdict(report), "dry_run": not apply})


def _states(
    reader: StateReader, files: Sequence[str], *, delete_others: bool
) -> dict[str, dict[Any, object]]:
    """Return the new state of each variable by key, where None deletes the state."""
    states: dict[str, dict[Any, object]] = {}
    for word in files:
        variable, separator, path = word.partition("=")
        if not separator or not variable or not path:
            raise UsageError(f"--set takes VARIABLE=PATH, not {word!r:.200}")
        if variable in states:
            raise UsageError(
                f"--set names {variable!r} twice; put all its rows into one file or folder"
            )
        states[variable] = states_in_file(reader, variable, path)
        if delete_others:
            others = list(other_keys(reader, variable, states[variable]))
            states[variable].update(dict.fromkeys(others))
    return states


def unfreeze(
    location: options.Location,
    key: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help=f"{options.KEY_FORMS} Default: all frozen keys."),
    ] = None,
    *,
    operator: options.Operator = None,
    apply: options.Apply = False,
    as_json: options.Json = False,
) -> None:
    """
    Unfreeze keys in a new checkpoint, so that the query processes them again.

    A query with the setting `onError="freeze"` freezes a key whose processing fails: its later rows
    become dead letters as well.  `statelog read LOCATION '$frozen'` lists the keys.  Stop the query
    first.  A query that is still running is fenced; after a restart, it continues.  Before you
    unfreeze keys, export their rows with `statelog dead-letters --to` so that you can resend them
    to the source.

    Examples:
        statelog unfreeze s3://bucket/jobs/totals
        statelog unfreeze s3://bucket/jobs/totals c42 --apply
    """
    keys = None
    if key:
        with open_state(location, operator) as state:
            keys = [key_from_text(key, state.reader().schema.key_schema)]
    with progress("reading"):
        report = unfreeze_keys(location, keys, operator=operator, apply=apply)
    if as_json:
        _print_json(report, apply=apply)
        return
    counts = report.counts
    others = f", {counts.unchanged:,} not frozen" if counts.unchanged else ""
    outcome = "unfrozen" if apply else "would be unfrozen"
    if report.checkpoint_id is not None:
        outcome += f" in checkpoint {report.checkpoint_id}"
    say(f"{plural(counts.changed, 'key')} {outcome}{others}")
    if not apply and counts.changed:
        say_dry_run(stop_query=True)


def forget(
    location: options.Location,
    key: options.Key,
    *,
    operator: options.Operator = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Delete all data stored for the key immediately, and discard older checkpoints.",
        ),
    ] = False,
    apply: options.Apply = False,
    as_json: options.Json = False,
) -> None:
    """
    Remove a key from all state of an operator, and list the objects that still contain it.

    --apply deletes the key in a new checkpoint.  Older data of the key is deleted together with the
    snapshots and checkpoints that the command lists. With --now, the command also rewrites the
    affected key groups without the key, discards older checkpoints, and deletes their objects. Stop
    the query first.  A query that is still running is fenced; after a restart, it continues.  The
    command does not change the parents of a fork; it prints the command to run for each parent that
    contains the key.

    Examples:
        statelog forget s3://bucket/jobs/totals c42
        statelog forget s3://bucket/jobs/totals c42 --now --apply
    """
    with open_state(location, operator) as state:
        values = key_from_text(key, state.reader().schema.key_schema)
    with progress("reading") as update:
        report = forget_key(
            location,
            values,
            operator=operator,
            now=now,
            apply=apply,
            on_progress=lambda path: update(f"reading {path}"),
        )
    if as_json:
        print_json({**dataclasses.asdict(report), "key": [str(part) for part in report.key]})
        return
    _print_forgotten(report, location, now)
    for parent in report.parents:
        say(
            "The parent of this fork contains the key too: "
            + _command(parent, key, operator, now=now)
        )


def _command(location: str, key: Sequence[str], operator: str | None, *, now: bool) -> str:
    """Return the command that removes the key from a different location."""
    options = [*(["--operator", operator] if operator else []), *(["--now"] if now else [])]
    return shlex.join(["statelog", "forget", *options, "--apply", "--", location, *key])


def _print_forgotten(report: ForgetReport, location: str, now: bool) -> None:
    would = "would be " if report.dry_run else ""
    entries = ", ".join(f"{count:,} in {name}" for name, count in report.removed.items())
    say(
        f"{report.operator} of {redacted(location)}: the key has {entries or 'no state'} in checkpoint "
        f"{report.base_id}"
    )
    if report.checkpoint_id is not None:
        say(f"removed in checkpoint {report.checkpoint_id}")
    if report.given_up:
        ids = ", ".join(map(str, report.given_up))
        say(f"{plural(len(report.given_up), 'checkpoint')} {would}given up: {ids}")
    if report.deleted:
        say(f"{plural(len(report.deleted), 'object')} {would}deleted")
    for release in report.outside:
        for path in release.tags:
            outcome = "may be" if report.dry_run else "was"
            say(f"{path} in {release.parent}, the parent of this fork, {outcome} deleted")
        if release.problem:
            say(f"kept: {release.problem}")
    if not report.traces:
        say("no object of this location contains the key")
    elif not (now and report.dry_run):
        for trace in report.traces:
            say(f"in {trace.kind} {trace.path}, which is deleted {trace.leaves}")
    if report.dry_run and (report.removed or report.traces):
        say_dry_run(stop_query=True)
