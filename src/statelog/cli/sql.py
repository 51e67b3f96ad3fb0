"""`statelog sql`: one SQL statement over the state as of a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from statelog.cli.options import CheckpointOption
from statelog.cli.output import progress
from statelog.cli.state_rows import open_state, row_limit, rows_of, show_rows


def sql(
    location: Annotated[str, typer.Argument(help="State location: a path or URL.")],
    statement: Annotated[
        str,
        typer.Argument(
            help="One statement in the dialect of DuckDB, such as 'from total limit 5'."
        ),
    ],
    *,
    checkpoint: CheckpointOption = None,
    operator: Annotated[
        str | None, typer.Option(help="operatorId, where the query has several operators.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Rows to show at most; 0 shows all. 20 by default, and all with --json.", min=0
        ),
    ] = None,
    allow_files: Annotated[
        bool,
        typer.Option(
            "--allow-files",
            help="Let the statement read and write files, attach databases and load extensions.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """
    Run one SQL statement over the state as of a checkpoint, through DuckDB.

    Each state variable is a table of its name, timers are the table timers.  Names with a dot need quotes: select "key.customer", "value.total" from total.  Only the variables that the statement names are read, into memory.  The statement reads and writes nothing else without --allow-files.  Needs the extra sql.
    """
    with open_state(location, operator) as state, progress("reading"):
        table = state.sql(statement, checkpoint, allow_files=allow_files)
    show_rows(
        rows_of(table.to_batches()),
        table.column_names,
        limit=row_limit(limit, as_json),
        as_json=as_json,
    )
