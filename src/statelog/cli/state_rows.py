"""Shared by the verbs that show state: rows as JSON lines, and as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich import box
from rich.text import Text

from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    PlainTable,
    console,
    json_of,
    open_location,
    plural,
    print_error,
    print_json,
    progress,
)
from statelog.errors import CorruptionError, UsageError
from statelog.extensions.read.location_state import LocationState
from statelog.format.arrow_data import python_rows
from statelog.state.recordings.location import UnreadableRecording

ROWS_SHOWN: Final = 20
"""Rows that people get without `--limit`; JSON has all."""

Row = Mapping[str, object]
LimitOption = Annotated[
    int | None,
    typer.Option(
        help="Rows to show at most; 0 shows all. 20 by default, and all with --json.", min=0
    ),
]
ToOption = Annotated[
    Path | None,
    typer.Option(help="Write the rows to this Parquet file, which must not exist.", metavar="FILE"),
]


def open_state(location: str, operator: str | None) -> LocationState:
    """Open the state of a location that must be one."""
    return LocationState(open_location(location), operator=operator)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield rows as mappings."""
    for batch in batches:
        yield from _shown(batch)


def row_limit(limit: int | None, as_json: bool) -> int | None:
    """Return how many rows to show; None for all."""
    if limit is None:
        return None if as_json else ROWS_SHOWN
    return limit or None


def show_rows(
    rows: Iterable[Row],
    columns: Iterable[str],
    *,
    limit: int | None,
    as_json: bool,
    title: str = "",
    extra: Row | None = None,
) -> None:
    """Print rows."""
    remaining = iter(rows)
    if as_json:
        for row in islice(remaining, limit):
            print_json({**(extra or {}), **row})
        return
    with progress("reading"):
        first = list(islice(remaining, limit))
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in columns:
        table.add_column(Text(name), overflow="fold")
    for row in first:
        table.add_row(*(Text(_cell(row[name])) for name in columns))
    out = console()
    if title:
        out.print(Text(title, style="bold"), soft_wrap=True)
    out.print(table)
    more = next(remaining, None) is not None
    last = f"the first {plural(len(first), 'row')}; --limit 0 shows all" if more else None
    out.print(last or plural(len(first), "row"), markup=False, soft_wrap=True)


def show_or_write(table: pa.Table, to: Path | None, *, limit: int | None, as_json: bool) -> None:
    """Print the rows of a table, or write them to a Parquet file."""
    if to is None:
        show_rows(
            _shown(table), table.column_names, limit=row_limit(limit, as_json), as_json=as_json
        )
        return
    write_parquet(to, table)
    written = f"wrote {to}: {plural(table.num_rows, 'row')}"
    console().print(written, markup=False, soft_wrap=True)


def write_parquet(file: Path, table: pa.Table) -> None:
    """Write a table to a file that must not exist; raises `UsageError` if it cannot be written."""
    try:
        with file.open("xb") as sink:
            pq.write_table(table, sink)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error}") from error


def report_unreadable(unreadable: Sequence[UnreadableRecording]) -> int:
    """Print the recordings that are left out, and return the exit status for that."""
    for recording in unreadable:
        print_error(f"the recording {recording.path} is left out: {recording.problem}")
    return EXIT_FINDING if unreadable else EXIT_OK


def _shown(rows: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """Return rows as Python values; raises `CorruptionError` for a time or zone that Python lacks."""
    try:
        return python_rows(rows)
    except pa.ArrowInvalid as error:
        raise CorruptionError(
            f"a stored value cannot be shown: {error}; --to writes the rows to a file"
        ) from error


def _cell(value: object) -> str:
    """Return a value as people read it; what is nested as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict | list | tuple):
        try:
            return json_of(value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"a value cannot be shown: {error}") from error
    return str(value)
