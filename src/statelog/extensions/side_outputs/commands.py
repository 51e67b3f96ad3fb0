"""`statelog side-outputs`: print the rows that a processor emitted to side outputs."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final

import typer

from statelog.cli import options
from statelog.cli.output import progress
from statelog.cli.rows import open_state, show_or_write, show_rows
from statelog.errors import UsageError
from statelog.extensions.side_outputs.stored import kept_side_outputs, side_output_rows
from statelog.state.reader.location import stored_with_attachments

_LISTED: Final = ("name", "operator", "rows", "objects", "checkpoint_id")


def side_outputs(
    location: options.Location,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the side output. Omit it to list all side outputs.",
        ),
    ] = None,
    *,
    checkpoint: options.Checkpoint = None,
    since: options.Since = None,
    operator: options.Operator = None,
    to: options.To = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> None:
    """
    List a query's side outputs, or print the rows of one of them.

    A processor declares a side output with `handle.sideOutput(name, schema)` and emits rows to it.
    The query's `retention` setting determines how long the rows are stored.

    Examples:
        statelog side-outputs s3://bucket/jobs/totals
        statelog side-outputs s3://bucket/jobs/totals rejected --since 41
        statelog side-outputs s3://bucket/jobs/totals rejected --to rejected.parquet
    """
    with open_state(location, operator) as state, progress("reading"):
        stored, first = stored_with_attachments(state, checkpoint, since)
        if name is not None:
            table = side_output_rows(state.store, stored, name, operator, first)
    if name is not None:
        show_or_write(table, to, limit=limit, as_json=as_json)
        return
    if since is not None or to is not None:
        raise UsageError("--since and --to require the name of a side output")
    listed = map(dataclasses.asdict, kept_side_outputs(stored, operator))
    show_rows(listed, _LISTED, limit=0, as_json=as_json)
