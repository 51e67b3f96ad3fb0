"""
The calls of a processor that failed and were left out.

`statelog dead-letters` lists them, `statelog unfreeze` lets a query handle their keys again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich import box
from rich.text import Text

from statelog.cli.options import (
    CHECKPOINT_FORMS,
    CheckpointOption,
    JsonLinesOption,
    JsonOption,
    LocationArgument,
    OperatorOption,
)
from statelog.cli.output import PlainTable, console, plural, print_json, progress
from statelog.cli.state_rows import open_state, report_unreadable, write_parquet
from statelog.extensions.operations.unfreeze import unfreeze as unfreeze_keys
from statelog.state.keys.state_key import key_from_text
from statelog.state.recordings.location import UnreadableRecording

_ERROR_SHOWN: Final = 120
_JSON_COLUMNS: Final = ("key", "rows", "initial_rows")


def dead_letters(
    location: LocationArgument,
    *,
    checkpoint: CheckpointOption = None,
    since: Annotated[
        str | None,
        typer.Option(help=f"Only what failed after this checkpoint: {CHECKPOINT_FORMS}."),
    ] = None,
    operator: OperatorOption = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="Write the input rows of the dead letters to this Parquet file, which must not exist.",
            metavar="FILE",
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    List the dead letters of a query: keys whose processing failed, with their rows and errors.

    A query keeps them with the setting `onError="dead-letter"` or `"freeze"`.  `statelog replay LOCATION KEY` runs one
    through the processor of today.  Their rows are written by --rows, to be sent to the source again.
    """
    unreadable: list[UnreadableRecording] = []
    with open_state(location, operator) as state, progress("reading"):
        letters = state.dead_letters(
            checkpoint, since_checkpoint=since, unreadable=unreadable
        ).to_pylist()
        table = None
        if rows is not None:
            table = state.dead_letter_rows(checkpoint, since_checkpoint=since, unreadable=[])
    if rows is not None and table is not None:
        write_parquet(rows, table)
    if as_json:
        for letter in letters:
            parsed = {name: msgspec.json.decode(letter[name]) for name in _JSON_COLUMNS}
            failed_at = letter["failed_at"]
            parsed["failed_at"] = None if failed_at is None else failed_at.isoformat()
            print_json({**letter, **parsed})
    else:
        _show(letters)
        if rows is not None and table is not None:
            written = f"wrote {rows}: {plural(table.num_rows, 'row')}"
            console().print(written, markup=False, soft_wrap=True)
    raise typer.Exit(report_unreadable(unreadable))


def unfreeze(
    location: LocationArgument,
    key: Annotated[
        list[str] | None,
        typer.Argument(
            help="Values of the key columns of one key, in their order; all frozen keys by default."
        ),
    ] = None,
    *,
    operator: OperatorOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--apply", help="Only count the keys, or unfreeze them.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """
    Let a query handle frozen keys again, as a new checkpoint; --apply does it.

    A query with the setting `onError="freeze"` freezes a key whose processing fails: what comes for it later
    is a dead letter too.  `statelog read LOCATION '$frozen'` lists the keys.
    The query must be stopped; one that runs is fenced, and its next start goes on.
    Write the rows of the dead letters before, by `statelog dead-letters --rows`, and send them to the source again.
    """
    keys = None
    if key:
        with open_state(location, operator) as state:
            keys = [key_from_text(key, state.reader().schema.key_schema)]
    with progress("reading"):
        report = unfreeze_keys(location, keys, operator=operator, apply=not dry_run)
    if as_json:
        print_json({**dataclasses.asdict(report), "dry_run": dry_run})
        return
    counts = report.counts
    others = f", {counts.unchanged:,} not frozen" if counts.unchanged else ""
    done = "would be unfrozen" if dry_run else "unfrozen"
    if report.checkpoint_id is not None:
        done += f" in checkpoint {report.checkpoint_id}"
    out = console()
    out.print(f"{plural(counts.changed, 'key')} {done}{others}", markup=False, soft_wrap=True)
    if dry_run and counts.changed:
        out.print("This was a dry run; --apply does it. Stop the query before.")


def _show(letters: Sequence[Mapping[str, Any]]) -> None:
    out = console()
    if letters:
        table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for name in ("checkpoint", "failed at (UTC)", "operator", "key", "method", "rows", "error"):
            table.add_column(name, overflow="fold")
        for letter in letters:
            text = f"{letter['error']}: {letter['message']}"
            failed_at = letter["failed_at"]
            cells = (
                str(letter["checkpoint_id"]),
                "" if failed_at is None else f"{failed_at:%Y-%m-%d %H:%M:%S}",
                letter["operator"],
                " ".join(map(str, msgspec.json.decode(letter["key"]))),
                letter["method"],
                str(letter["row_count"]),
                text if len(text) <= _ERROR_SHOWN else f"{text[:_ERROR_SHOWN]} ...",
            )
            table.add_row(*map(Text, cells))
        out.print(table)
    out.print(plural(len(letters), "dead letter"), markup=False)
