"""`statelog broadcasts`: the versions of broadcast tables that micro-batches saw, and their rows."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final

import typer

from statelog.cli.options import CheckpointOption, JsonLinesOption, LocationArgument, OperatorOption
from statelog.cli.output import progress
from statelog.cli.state_rows import LimitOption, ToOption, open_state, show_or_write, show_rows
from statelog.errors import UsageError
from statelog.extensions.broadcasts.stored import BroadcastVersion
from statelog.extensions.read.location_state import LocationState

_LISTED: Final = ("checkpoint", "name", "version", "since", "rows", "size_bytes")


def broadcasts(
    location: LocationArgument,
    name: Annotated[
        str | None,
        typer.Argument(help="The broadcast table; without it the versions of all are listed."),
    ] = None,
    *,
    checkpoint: CheckpointOption = None,
    operator: OperatorOption = None,
    to: ToOption = None,
    limit: LimitOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    List which version of each broadcast table the micro-batches saw, or show the rows of one.

    Without a name all retained checkpoints are listed, or the one of --checkpoint.  The setting `broadcast`
    gives tables to a query.
    """
    with open_state(location, operator) as state, progress("reading"):
        if name is None:
            listed = _versions(state, checkpoint)
        else:
            table = state.broadcast(name, checkpoint)
    if name is not None:
        show_or_write(table, to, limit=limit, as_json=as_json)
        return
    if to is not None:
        raise UsageError("--to needs the name of a broadcast table")
    show_rows(map(dataclasses.asdict, listed), _LISTED, limit=None, as_json=as_json)


def _versions(state: LocationState, checkpoint: str | None) -> list[BroadcastVersion]:
    """Return the versions of a checkpoint, or of all retained ones, ascending."""
    if checkpoint is not None:
        return list(state.broadcasts(checkpoint))
    retained = [each.checkpoint_id for each in state.checkpoints() if each.is_retained]
    return [version for each in retained for version in state.broadcasts(each)]
