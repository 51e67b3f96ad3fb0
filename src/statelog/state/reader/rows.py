"""
Convert snapshot columns to the rows of one state variable.

A snapshot has one row per key and a nested column per variable.  Here every value, list element,
map entry and timer is a row of flat columns, whose form the kind defines::

    key_group  key.<name>...  value.<name>...                              value
    key_group  key.<name>...  position  value.<name>...                    list
    key_group  key.<name>...  user_key.<name>...  value.<name>...          map
    key_group  key.<name>...  fires_at_ms                                  timers

A variable with a time to live has `expires_at_ms` after them.  `CollectionRows` makes one row of
a key instead::

    key_group  key.<name>...  value                 list of structs, map of structs
    key_group  key.<name>...  fires_at_ms           list of times

Where no log follows the snapshots, their rows are read from them directly: a restore would sort and
hash them first, to apply changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from statelog.checkpoint.state_stream import read_materialized
from statelog.errors import CapacityError
from statelog.format.arrow_limits import take_rows
from statelog.model import KeyGroupRange, MaterializedHandle
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import (
    KEY_GROUP_COLUMN,
    is_of_schema,
    snapshot_table,
    snapshot_tables,
)
from statelog.state.heap import BLOCK
from statelog.state.schema import StateDescriptor
from statelog.store import ObjectStore

_Parts = list[tuple[MaterializedHandle, memoryview]]


class VariableRows:
    """Builds the rows of one variable."""

    def __init__(self, codec: OperatorCodec, state_id: int) -> None:
        self._state = codec.states[state_id]
        self._key = codec.key
        self._key_width = 1 + len(codec.key.schema)
        self._column = self._key_width + codec.live.index(state_id)
        fields = [pa.field(KEY_GROUP_COLUMN, pa.int32())]
        fields += [pa.field(f"key.{field.name}", field.type) for field in codec.key.schema]
        fields += self._state.kind.row_fields(self._state)
        self.schema: pa.Schema = pa.schema(fields)

    @property
    def expires(self) -> bool:
        """Whether the variable has a time to live, which makes its rows depend on the time."""
        return self._state.expires

    def of(self, keys: pa.RecordBatch, expired_ms: int | None) -> pa.RecordBatch:
        """
        Return the rows of the keys in *keys*, which are rows of a snapshot.

        Args:
            keys: One row per key, in the columns of a snapshot.
            expired_ms: Entries that expire at or before this time are left out; None keeps them.
        """
        cells, columns = self._state.kind.rows(self._live(keys, expired_ms))
        rows_of_keys = pa.array(cells)
        group, *parts = (
            take_rows(column, rows_of_keys, "the keys of rows")
            for column in keys.columns[: self._key_width]
        )
        repeated = [group, *self._key.uniform(parts)]
        return pa.RecordBatch.from_arrays([*repeated, *columns], schema=self.schema)

    def batches(self, keys: pa.RecordBatch, expired_ms: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows as one batch, or as several if repeated keys do not fit into one array."""
        try:
            batch = self.of(keys, expired_ms)
        except CapacityError:
            half = keys.num_rows // 2
            if not half:
                raise
            yield from self.batches(keys.slice(0, half), expired_ms)
            yield from self.batches(keys.slice(half), expired_ms)
            return
        if batch.num_rows:
            yield batch

    def _live(self, keys: pa.RecordBatch, expired_ms: int | None) -> pa.Array:
        column = keys.column(self._column)
        if self._state.expires and expired_ms is not None:
            column = self._state.kind.live_column(column, expired_ms)
        return column

    def states(self, keys: pa.RecordBatch, expired_ms: int) -> list[object]:
        """Return the state of each key in *keys* as `python_states` does; arguments as for `of`."""
        cells, columns = self._state.kind.rows(self._live(keys, expired_ms))
        schema = pa.schema(list(self.schema)[self._key_width :])
        counts = np.bincount(cells, minlength=keys.num_rows)
        table = pa.Table.from_arrays(columns, schema=schema)
        return python_states(table, self._state.descriptor, counts.tolist())

    @property
    def empty(self) -> object:
        """The value that stands for a key without rows."""
        return self._state.kind.from_items([])


def python_states(rows: pa.Table, variable: StateDescriptor, counts: Sequence[int]) -> list[object]:
    """
    Return the states of keys as Python values.

    A value is a dict of its fields, or None.  A list is a list of dicts.  A map is a dict from map
    keys to dicts; a map key of several columns is a tuple.  Timers are an ascending list of times
    in milliseconds.

    Args:
        rows: The rows of the keys, in the columns of `StateReader`.
        variable: What they are rows of.
        counts: How many of the rows each key has, in their order.
    """
    # All rows of the column are converted at once, then cut into keys by their counts.
    kind = variable.kind.rules
    columns = {
        name: rows.column(name).to_pylist()
        for name in kind.row_columns
        if name in rows.column_names
    }
    fields = variable.value_schema.names
    columns["value"] = [
        dict(zip(fields, row, strict=True)) for row in _structs(rows, "value", fields)
    ]
    names = [] if variable.user_key_schema is None else variable.user_key_schema.names
    user_keys = [tuple(map(_hashable, row)) for row in _structs(rows, "user_key", names)]
    columns["user_key"] = [row[0] for row in user_keys] if len(names) == 1 else user_keys
    items = iter(kind.row_items(columns))
    return [kind.from_items(list(islice(items, count))) for count in counts]


def _structs(rows: pa.Table, prefix: str, names: Sequence[str]) -> Iterator[tuple[object, ...]]:
    """Convert the fields of structs to tuples."""
    return zip(*(rows.column(f"{prefix}.{name}").to_pylist() for name in names), strict=True)


def _hashable(value: object) -> object:
    """Make a part of a map key hashable: structs become tuples."""
    if isinstance(value, Mapping):
        return tuple(map(_hashable, value.values()))
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


class CollectionRows(VariableRows):
    """
    Builds one row per key, which contains its whole list, its whole map or all its timers.

    A value as `VariableRows` does.
    """

    def __init__(self, codec: OperatorCodec, state_id: int) -> None:
        super().__init__(codec, state_id)
        kind = self._state.encode_cells([]).type
        self._cell: pa.Field | None = None
        if not pa.types.is_list(kind):
            return
        if self._state.user_key is not None:
            user_key, entry = kind.value_type
            kind = pa.map_(user_key.type, entry.type)
        self._cell = pa.field(self._state.kind.row_columns[-1], kind)
        fields = list(self.schema)[: self._key_width]
        self.schema = pa.schema([*fields, self._cell])

    def of(self, keys: pa.RecordBatch, expired_ms: int | None) -> pa.RecordBatch:
        """Return one row for each key that has state; takes the arguments of `VariableRows.of`."""
        if self._cell is None:
            return super().of(keys, expired_ms)
        column = self._live(keys, expired_ms)
        has_state = column.is_valid()
        column = column.filter(has_state)
        if pa.types.is_map(self._cell.type):
            pairs = column.flatten()
            column = pa.MapArray.from_arrays(
                column.offsets, pairs.field(0), pairs.field(1), type=self._cell.type
            )
        group, *parts = (
            column_of_key.filter(has_state) for column_of_key in keys.columns[: self._key_width]
        )
        columns = [group, *self._key.uniform(parts)]
        return pa.RecordBatch.from_arrays([*columns, column], schema=self.schema)


def whole_snapshots(
    store: ObjectStore, handle: ChangelogStateBackendHandle, codec: OperatorCodec
) -> _Parts | None:
    """
    Return the snapshots of some key groups if they contain all of the state, otherwise None.

    That is: there is no log after them, and they were written with the present schema.

    Raises:
        CorruptionError: A snapshot is damaged.
        ObjectNotFoundError: One does not exist.
        StoreError: The store failed.

    Blocks: On the store.
    """
    if handle.log:
        return None
    parts = [(snapshot, read_materialized(store, snapshot)) for snapshot in handle.materialized]
    if not all(is_of_schema(codec, data) for _, data in parts):
        return None
    return sorted(parts, key=lambda part: part[0].key_group_range.start)


def snapshot_rows(parts: _Parts, codec: OperatorCodec) -> Iterator[pa.Table]:
    """
    Yield the rows of snapshots in order of key group, a few key groups at a time.

    Raises:
        CorruptionError: A snapshot cannot be read.
    """
    schema = snapshot_table(codec, {}, {}, KeyGroupRange(0, 0), now_ms=-1).schema
    for snapshot, data in parts:
        for _, table in snapshot_tables(data, snapshot.key_group_range, schema, BLOCK):
            yield table
