"""`statelog side-outputs`: the rows that a processor emitted to its side outputs."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final

import typer

from statelog.cli.options import (
    CHECKPOINT_FORMS,
    CheckpointOption,
    JsonLinesOption,
    LocationArgument,
    OperatorOption,
)
from statelog.cli.output import progress
from statelog.cli.state_rows import LimitOption, ToOption, open_state, show_or_write, show_rows
from statelog.errors import UsageError

_LISTED: Final = ("name", "operator", "rows", "objects", "checkpoint")


def side_outputs(
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
    to: ToOption = None,
    limit: LimitOption = None,
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
    show_or_write(table, to, limit=limit, as_json=as_json)
