"""One key: its rows, and its state as Python values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statelog.state.keys.state_key import StateKey
from statelog.state.reader.state_reader import StateReader
from statelog.state.schema.descriptors import StateDescriptor


def python_state(table: pa.Table, variable: StateDescriptor) -> Any:
    """
    Return the state of one key as Python values.

    A value is a dict of its fields, or None.  A list is a list of dicts.  A map is a dict from map
    keys to dicts; a map key of several columns is a tuple.  Timers are an ascending list of times
    in milliseconds.

    Args:
        table: The rows of the key, in the columns of `StateReader`.
        variable: What they are rows of.
    """
    kind = variable.kind.rules
    columns = {
        name: table.column(name).to_pylist()
        for name in kind.row_columns
        if name in table.column_names
    }
    fields = variable.value_schema.names
    columns["value"] = [
        dict(zip(fields, row, strict=True)) for row in _rows(table, "value", fields)
    ]
    names = [] if variable.user_key_schema is None else variable.user_key_schema.names
    user_keys = [tuple(map(_hashable, row)) for row in _rows(table, "user_key", names)]
    columns["user_key"] = [row[0] for row in user_keys] if len(names) == 1 else user_keys
    return kind.from_items(kind.row_items(columns))


def _rows(table: pa.Table, prefix: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Return the fields of a struct as tuples."""
    return zip(*(table.column(f"{prefix}.{name}").to_pylist() for name in names), strict=True)


def has_variable(reader: StateReader, variable: str) -> bool:
    """Return whether a checkpoint has a variable that can be read."""
    return any(each.name == variable for each in reader.variables())


def rows_of_key(reader: StateReader, variable: str, key: object, now_ms: int) -> pa.Table:
    """Return the rows of one key; raises `UsageError` for an unknown variable or another key."""
    sought = StateKey(key, reader.schema.key_schema)
    schema = reader.arrow_schema(variable)
    batches = reader.batches(
        variable, key_groups=sought.key_groups(reader.key_groups), now_ms=now_ms
    )
    return pa.Table.from_batches(map(sought.select, batches), schema=schema)


def state_of_key(reader: StateReader, variable: str, key: object, now_ms: int) -> Any:
    """Return the state of one key, see `python_state`; raises as `rows_of_key`."""
    table = rows_of_key(reader, variable, key, now_ms)
    return python_state(table, reader.schema.states[reader.schema.state_id(variable)])


def _hashable(value: Any) -> Any:
    """Return a part of a map key as a value that a dict takes: structs as tuples."""
    if isinstance(value, Mapping):
        return tuple(map(_hashable, value.values()))
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
