"""
Edits from Parquet files, as `statelog read --to` and batch computations write them.

A file has the rows of one variable, in the columns of `StateReader` (`key.customer`, `value.total`) or
nested, as Spark has them (`key`, `value`).  A folder of files is read as one, without what Spark hides.

The caller names the files.  A file in the location is still input: its symbolic links are those of who
writes there, and would bring other files of the caller into the state.  They are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.errors import UsageError
from statelog.state.kinds.kind import EXPIRES_FIELD
from statelog.state.kinds.list import POSITION_COLUMN
from statelog.state.reader import StateReader
from statelog.store.local_disk import check_named_file

_STRUCTS: Final = ("key", "value", "user_key")
_OPTIONAL: Final = ("key_group", EXPIRES_FIELD)

Key = tuple[object, ...]


def states_in_file(
    reader: StateReader, variable: str, path: str | os.PathLike[str]
) -> dict[Key, object]:
    """Return the state of each key in a file, as `statelog.edit` takes it."""
    schema = reader.arrow_schema(variable)
    descriptor = reader.schema.states[reader.schema.state_id(variable)]
    check_named_file(reader.store.url, path)
    table = _rows(path, schema, f"the file of state {variable!r}, {os.fspath(path)},")
    if POSITION_COLUMN in table.column_names:
        table = table.sort_by(POSITION_COLUMN)
    keys = _keys(table, path)
    kind = descriptor.kind.rules
    columns: dict[str, Sequence[object]] = {
        name: table.column(name).to_pylist()
        for name in kind.row_columns
        if name in table.column_names
    }
    columns["value"] = list(_structs(table, "value"))
    columns["user_key"] = [
        tuple(place.values()) for place in _structs(table, "user_key", with_expiry=False)
    ]
    items: dict[Key, list[object]] = {}
    for key, item in zip(keys, kind.row_items(columns), strict=True):
        items.setdefault(key, []).append(item)
    if kind.is_single and len(items) != len(keys):
        raise UsageError(
            f"{os.fspath(path)} has {len(keys)} rows of {len(items)} keys; {variable!r} has one "
            "value for each key"
        )
    return {key: kind.from_items(some) for key, some in items.items()}


def keys_in_file(reader: StateReader, path: str | os.PathLike[str]) -> list[Key]:
    """Return the keys in a file; its other columns are ignored."""
    schema = pa.schema(
        [pa.field(f"key.{part.name}", part.type) for part in reader.schema.key_schema]
    )
    check_named_file(reader.store.url, path)
    return _keys(_rows(path, schema, f"the file of keys, {os.fspath(path)},", only=True), path)


def other_keys(reader: StateReader, variable: str, states: Mapping[Key, object]) -> Iterator[Key]:
    """Yield the keys that have state of a variable and are not in *states*."""
    seen = set()
    for batch in reader.batches(variable, include_expired=True):
        for key in _keys(pa.Table.from_batches([batch]), variable):
            if key not in states and key not in seen:
                seen.add(key)
                yield key


def _rows(
    path: str | os.PathLike[str], schema: pa.Schema, what: str, *, only: bool = False
) -> pa.Table:
    """Return the rows of a file in the columns of *schema*; *only* ignores other columns."""
    try:
        if not os.path.exists(path):
            raise UsageError(f"{os.fspath(path)}: no such file or folder")
        table = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{what} cannot be read as Parquet: {error}") from error
    for name in _STRUCTS:
        if name in table.column_names and pa.types.is_struct(table.schema.field(name).type):
            nested = table.select([name]).flatten()
            table = table.drop_columns([name])
            for at, column in enumerate(nested.column_names):
                table = table.append_column(column, nested.column(at))
    needed = [name for name in schema.names if name not in _OPTIONAL]
    missing = [name for name in needed if name not in table.column_names]
    unknown = (
        [] if only else [n for n in table.column_names if n not in (*schema.names, *_OPTIONAL)]
    )
    if missing or unknown:
        problem = f"no column {missing[0]!r}" if missing else f"a column {unknown[0]!r}"
        raise UsageError(f"{what} has {problem}; it takes {', '.join(needed)}")
    names = [name for name in schema.names if name in table.column_names and name != "key_group"]
    types = pa.schema([schema.field(name) for name in names])
    try:
        return table.select(names).cast(types)
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(f"{what} has values of another type: {error}") from error


def _keys(table: pa.Table, path: str | os.PathLike[str]) -> list[Key]:
    names = [name for name in table.column_names if name.startswith("key.")]
    keys = list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
    try:
        hash(tuple(keys))
    except TypeError as error:
        raise UsageError(
            f"{os.fspath(path)}: keys with nested columns cannot be edited from a file; use "
            "statelog.edit in Python"
        ) from error
    return keys


def _structs(
    table: pa.Table, prefix: str, *, with_expiry: bool = True
) -> Iterator[dict[str, object]]:
    """Yield the columns of a prefix as dicts, and with them when a value expires, if the file has it."""
    start = len(prefix) + 1
    names = [name for name in table.column_names if name.startswith(f"{prefix}.")]
    columns = {name[start:]: table.column(name).to_pylist() for name in names}
    if with_expiry and EXPIRES_FIELD in table.column_names and EXPIRES_FIELD not in columns:
        columns[EXPIRES_FIELD] = table.column(EXPIRES_FIELD).to_pylist()
    for row in zip(*columns.values(), strict=True) if columns else ({},) * table.num_rows:
        yield dict(zip(columns, row, strict=True))
