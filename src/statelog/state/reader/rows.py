"""
The columns of a snapshot as rows of one state variable.

A snapshot has one row per key and a nested column per variable.  Here every value, list element,
map entry and timer is a row of flat columns::

    key_group  key.<name>...  value.<name>...                              value
    key_group  key.<name>...  position  value.<name>...                    list
    key_group  key.<name>...  user_key.<name>...  value.<name>...          map
    key_group  key.<name>...  fires_at_ms                                  timers

A variable with a time to live has `expires_at_ms` behind them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import EXPIRES_FIELD, KEY_GROUP_COLUMN
from statelog.state.schema.descriptors import StateKind

POSITION_COLUMN: Final = "position"
FIRES_COLUMN: Final = "fires_at_ms"
_Rows: TypeAlias = npt.NDArray[np.int64]


class VariableRows:
    """
    Makes the rows of one variable.

    Args:
        codec: The operator's codec.
        state_id: The variable; not dropped.
    """

    def __init__(self, codec: OperatorCodec, state_id: int) -> None:
        self._state = codec.states[state_id]
        self._kind = codec.kinds[state_id]
        self._key_width = 1 + len(codec.key.schema)
        self._column = self._key_width + codec.live.index(state_id)
        fields = [pa.field(KEY_GROUP_COLUMN, pa.int32())]
        fields += [pa.field(f"key.{field.name}", field.type) for field in codec.key.schema]
        if self._kind is StateKind.TIMER:
            fields.append(pa.field(FIRES_COLUMN, pa.int64()))
        else:
            fields += self._entry_fields()
        self.schema: pa.Schema = pa.schema(fields)

    def _entry_fields(self) -> list[pa.Field]:
        state = self._state
        fields = []
        if self._kind is StateKind.LIST:
            fields.append(pa.field(POSITION_COLUMN, pa.int64()))
        if state.user_key is not None:
            fields += [pa.field(f"user_key.{one.name}", one.type) for one in state.user_key.stored]
        fields += [pa.field(f"value.{one.name}", one.type) for one in state.value.stored]
        if state.expires:
            fields.append(pa.field(EXPIRES_FIELD, pa.int64()))
        return fields

    def of(self, keys: pa.RecordBatch, expired_ms: int | None) -> pa.RecordBatch:
        """
        Return the rows of the keys in *keys*, a part of a snapshot.

        Args:
            keys: One row per key, in the columns of a snapshot.
            expired_ms: What expires at or before this time is left out; None keeps it.
        """
        column = keys.column(self._column)
        if self._kind is StateKind.VALUE:
            owners, entries = np.flatnonzero(_is_valid(column)), column.drop_null()
        else:
            owners = pc.list_parent_indices(column).to_numpy().astype(np.int64)
            entries = column.flatten()
        if self._kind is StateKind.TIMER:
            return self._batch(keys, owners, [entries])
        columns = self._entry_columns(entries)
        if self._state.expires and expired_ms is not None:
            is_live = pc.greater(columns[-1], expired_ms)
            owners = owners[is_live.to_numpy(zero_copy_only=False)]
            columns = [one.filter(is_live) for one in columns]
        if self._kind is StateKind.LIST:
            columns.insert(0, pa.array(_positions(owners)))
        return self._batch(keys, owners, columns)

    def _entry_columns(self, entries: pa.Array) -> list[pa.Array]:
        """Return map key and value of each entry, and its expiry if it has one."""
        if self._state.user_key is None:
            columns: list[pa.Array] = entries.flatten()
            return columns
        user_keys, values = entries.flatten()
        return [*user_keys.flatten(), *values.flatten()]

    def _batch(
        self, keys: pa.RecordBatch, owners: _Rows, columns: list[pa.Array]
    ) -> pa.RecordBatch:
        rows = pa.array(owners)
        repeated = [column.take(rows) for column in keys.columns[: self._key_width]]
        return pa.RecordBatch.from_arrays([*repeated, *columns], schema=self.schema)


def _is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _positions(owners: _Rows) -> _Rows:
    """Return the position of each element in its list; elements of one list are together."""
    if not len(owners):
        return owners
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    lengths = np.diff(starts, append=len(owners))
    positions: _Rows = np.arange(len(owners)) - np.repeat(starts, lengths)
    return positions
