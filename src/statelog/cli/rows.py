"""Print the rows of state and tables as text or JSON, or write them to a Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from rich.text import Text

from statelog.checkpoint.attachments import UnreadableAttachment
from statelog.cli.output import (
    json_of,
    open_location,
    plural,
    print_error,
    print_json,
    print_table,
    progress,
    say,
)
from statelog.errors import CorruptionError, UsageError
from statelog.format.arrow_data import python_rows
from statelog.state.reader.location import LocationReader

_ROWS_SHOWN: Final = 20

Row = Mapping[str, object]


def open_state(location: str, operator: str | None) -> LocationReader:
    """Open an existing location in order to read its state."""
    return LocationReader(open_location(location), operator=operator)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield rows as mappings from column names to values."""
    for batch in batches:
        yield from _python_rows(batch)


def show_rows(
    rows: Iterable[Row],
    columns: Iterable[str],
    *,
    limit: int | None = None,
    as_json: bool,
    title: str = "",
    extra: Row | None = None,
) -> None:
    """
    Print rows as a table, or as JSON including the *extra* columns.

    A *limit* of 0 prints all rows; None prints all as JSON, and the first 20 in a table.
    """
    if limit is None and not as_json:
        limit = _ROWS_SHOWN
    remaining = iter(rows)
    chosen = islice(remaining, limit or None)
    if as_json:
        for row in chosen:
            print_json({**(extra or {}), **row})
        return
    with progress("reading"):
        first = list(chosen)
    heads = list(columns)
    if title:
        say((title, "bold"))
    print_table(heads, ([Text(_cell(row[head])) for head in heads] for row in first))
    more = next(remaining, None) is not None
    last = f"the first {plural(len(first), 'row')}; --limit 0 shows all" if more else None
    say(last or plural(len(first), "row"))


def show_or_write(table: pa.Table, to: Path | None, *, limit: int | None, as_json: bool) -> None:
    """Print the rows of a table, or write them to a Parquet file."""
    if to is not None:
        write_parquet(to, table)
        if as_json:
            print_json({"path": str(to), "rows": table.num_rows})
        else:
            say(f"wrote {to}: {plural(table.num_rows, 'row')}")
        return
    show_rows(_python_rows(table), table.column_names, limit=limit, as_json=as_json)


def write_parquet(file: Path, table: pa.Table) -> None:
    """Write a table to a new file; raises `UsageError` if the file exists or cannot be written."""
    try:
        with file.open("xb") as sink:
            pq.write_table(table, sink)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error}") from error


def report_unreadable(unreadable: Sequence[UnreadableAttachment]) -> bool:
    """Print which recordings were skipped, and return whether there were any."""
    for recording in unreadable:
        print_error(f"the recording {recording.path} was skipped: {recording.problem}")
    return bool(unreadable)


def _python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """Convert rows to Python values; raises `CorruptionError` for a time that Python lacks."""
    try:
        return python_rows(rows)
    except pa.ArrowInvalid as error:
        raise CorruptionError(
            f"a stored value cannot be shown: {error}; --to writes the rows to a file"
        ) from error


def _cell(value: object) -> str:
    """Format a value so that people can read it; nested values become JSON."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict | list | tuple):
        try:
            return json_of(value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"a value cannot be shown: {error}") from error
    return str(value)
