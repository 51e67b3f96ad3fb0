"""`statelog broadcasts`: list the versions of broadcast tables, or print their rows."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final

import typer

from statelog.cli import options
from statelog.cli.output import progress
from statelog.cli.rows import open_state, show_or_write, show_rows
from statelog.errors import UsageError
from statelog.extensions.broadcasts.stored import broadcast_table, broadcast_versions
from statelog.state.reader.location import stored_with_attachments

_LISTED: Final = ("checkpoint_id", "name", "version", "since", "rows", "size_bytes")


def broadcasts(
    location: options.Location,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the broadcast table. Omit it to list all tables.",
        ),
    ] = None,
    *,
    checkpoint: options.Checkpoint = None,
    operator: options.Operator = None,
    to: options.To = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> None:
    """
    List the versions of broadcast tables that micro-batches read, or print a version's rows.

    Without a name, the command lists the versions used by all retained checkpoints, or by the one
    given with --checkpoint. A query defines its broadcast tables in its `broadcast` setting.

    Examples:
        statelog broadcasts s3://bucket/jobs/alerts
        statelog broadcasts s3://bucket/jobs/alerts limits --checkpoint 40
        statelog broadcasts s3://bucket/jobs/alerts limits --to limits.parquet
    """
    with open_state(location, operator) as state, progress("reading"):
        if name is not None:
            stored, _ = stored_with_attachments(state, checkpoint)
            table = broadcast_table(state.store, stored, name)
        elif to is not None:
            raise UsageError("--to requires the name of a broadcast table")
        else:
            ids = [stored.checkpoint_id for stored in state.checkpoints() if stored.is_retained]
            chosen = ids if checkpoint is None else [checkpoint]
            listed = [
                version
                for checkpoint_id in chosen
                for version in broadcast_versions(stored_with_attachments(state, checkpoint_id)[0])
            ]
    if name is not None:
        show_or_write(table, to, limit=limit, as_json=as_json)
        return
    show_rows(map(dataclasses.asdict, listed), _LISTED, limit=0, as_json=as_json)
