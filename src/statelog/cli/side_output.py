"""`statelog side-output`: the rows that a processor emitted to its side outputs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Final

import typer

from statelog.cli.options import (
    CHECKPOINT_FORMS,
    CheckpointOption,
    JsonLinesOption,
    LocationArgument,
    OperatorOption,
)
from statelog.cli.output import console, plural, progress
from statelog.cli.state_rows import open_state, row_limit, rows_of, show_rows, write_parquet
from statelog.errors import UsageError

_LISTED: Final = ("name", "operator", "rows", "objects", "checkpoint")


def side_output(
    location: LocationArgument,
    name: Annotated[
        str | None, typer.Argument(help="The side output; without it all are listed.")
    ] = None,
    *,
    checkpoint: CheckpointOption = None,
    since: Annotated[
        str | None,
        typer.Option(help=f"Only rows after this checkpoint: {CHECKPOINT_FORMS}."),
    ] = None,
    operator: OperatorOption = None,
    to: Annotated[
        Path | None,
        typer.Option(
            help="Write the rows to this Parquet file, which must not exist.", metavar="FILE"
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Rows to show at most; 0 shows all. 20 by default, and all with --json.", min=0
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    List the side outputs of a query, or show the rows of one.

    A processor declares a side output by `handle.sideOutput(name, schema)`, and emits rows to it.  They
    are kept for the setting `sideOutputAge`.
    """
    with open_state(location, operator) as state:
        if name is None:
            if since is not None or to is not None:
                raise UsageError("--since and --to need the name of a side output")
            kept = [dataclasses.asdict(each) for each in state.side_outputs(checkpoint)]
            show_rows(kept, _LISTED, limit=None, as_json=as_json)
            return
        with progress("reading"):
            table = state.side_output(name, checkpoint, since_checkpoint=since)
    if to is not None:
        write_parquet(to, table)
        written = f"wrote {to}: {plural(table.num_rows, 'row')}"
        console().print(written, markup=False, soft_wrap=True)
        return
    show_rows(
        rows_of(table.to_batches()),
        table.column_names,
        limit=row_limit(limit, as_json),
        as_json=as_json,
    )
