"""
The columns of a snapshot as rows of a frame of state: one row for each key.

A snapshot has the expiry of an entry inside it.  Here values and expiry are columns of their own,
so that the values have the types that the processor declared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import UsageError
from statelog.spark.migration.columns import (
    CHECKPOINT_COLUMN,
    EXPIRY_COLUMN,
    STATE_COLUMN,
    TIMERS_COLUMN,
)
from statelog.state.encoding.values import stored_schema
from statelog.state.schema.descriptors import OperatorStateSchema, StateDescriptor

_TIMES = pa.list_(pa.int64())
_OWN = (STATE_COLUMN, TIMERS_COLUMN, EXPIRY_COLUMN, CHECKPOINT_COLUMN)


class KeyRows:
    """
    Makes the rows of a frame of state.

    Args:
        schema: The operator's.
        checkpoint_id: The checkpoint that is read.
        variables: The variables to take; None for all that the processor has.  Timers always.

    Raises:
        UsageError: A variable does not exist, or a column of the key has a name that is used twice
            or reserved.
    """

    def __init__(
        self,
        schema: OperatorStateSchema,
        checkpoint_id: int,
        variables: Sequence[str] | None = None,
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._key = schema.key_schema
        names = self._key.names
        if len({name.lower() for name in names}) < len(names) or set(names) & set(_OWN):
            raise UsageError(
                f"the key's columns ({', '.join(names)}) cannot be columns of a frame of state: each "
                f"needs a name of its own, other than {', '.join(_OWN)}"
            )
        live = [state for state in schema.states if not state.dropped]
        kept = [state for state in live if not state.kind.rules.fires]
        self._states = kept if variables is None else _chosen(kept, variables)
        self._has_timers = len(kept) < len(live)
        self._timers = next((state.name for state in live if state.kind.rules.fires), "")
        self._expiring = [state for state in self._states if state.ttl_ms is not None]

    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        values = [pa.field(state.name, _type_of(state)) for state in self._states]
        # Parquet has no struct without fields; with timers only all cells are null.
        state = pa.struct(values) if values else pa.bool_()
        fields = [*stored_schema(self._key), pa.field(STATE_COLUMN, state)]
        fields.append(pa.field(TIMERS_COLUMN, _TIMES))
        if self._expiring:
            times = [
                pa.field(state.name, pa.int64() if state.kind.rules.is_single else _TIMES)
                for state in self._expiring
            ]
            fields.append(pa.field(EXPIRY_COLUMN, pa.struct(times)))
        return pa.schema([*fields, pa.field(CHECKPOINT_COLUMN, pa.int64())])

    def of(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of *keys*, a part of a snapshot; a key without state has none."""
        schema = self.schema()
        cells = {state.name: keys.column(state.name) for state in self._states}
        timers = keys.column(self._timers) if self._has_timers else pa.nulls(keys.num_rows, _TIMES)
        columns = [keys.column(f"key.{name}") for name in self._key.names]
        columns.append(
            pa.StructArray.from_arrays(
                [cells[state.name].cast(_type_of(state)) for state in self._states],
                fields=list(schema.field(STATE_COLUMN).type),
            )
            if self._states
            else pa.nulls(keys.num_rows, schema.field(STATE_COLUMN).type)
        )
        columns.append(timers)
        if self._expiring:
            expiry = [_expiry(state, cells[state.name]) for state in self._expiring]
            fields = list(schema.field(EXPIRY_COLUMN).type)
            columns.append(pa.StructArray.from_arrays(expiry, fields=fields))
        columns.append(pa.array(np.full(keys.num_rows, self._checkpoint_id)))
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        present = [column.is_valid() for column in (*cells.values(), timers)]
        is_present = present[0]
        for other in present[1:]:
            is_present = pc.or_(is_present, other)
        return rows.filter(is_present)


def _chosen(states: Sequence[StateDescriptor], names: Sequence[str]) -> list[StateDescriptor]:
    by_name = {state.name: state for state in states}
    missing = [name for name in names if name not in by_name]
    if missing or not names:
        raise UsageError(
            f"there is no state {', '.join(missing) or 'without a name'}; the checkpoint has "
            f"{', '.join(sorted(by_name)) or 'none'}"
        )
    return [state for state in states if state.name in names]


def _type_of(state: StateDescriptor) -> pa.DataType:
    """Return the type of a variable's cells in a frame of state."""
    user_key = _struct(state.user_key_schema or pa.schema([]))
    return state.kind.rules.cell_type(_struct(state.value_schema), user_key)


def _struct(schema: pa.Schema) -> pa.DataType:
    return pa.struct(
        [field.with_type(_without_zone(field.type)) for field in stored_schema(schema)]
    )


def _without_zone(kind: pa.DataType) -> pa.DataType:
    """Return a type whose timestamps have no zone; see `CHECKPOINT_COLUMN`."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_zone(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_zone(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_without_zone(kind.key_type)),
            kind.item_field.with_type(_without_zone(kind.item_type)),
        )
    return kind


def _expiry(state: StateDescriptor, cells: pa.Array) -> pa.Array:
    """Return when the entries of a variable expire."""
    kind = state.kind.rules
    if kind.is_single:
        return cells.flatten()[-1]
    return _lists(cells, kind.element_expiry(cells.flatten()))


def _lists(like: pa.Array, elements: pa.Array) -> pa.Array:
    """Return lists of *elements* with the lengths of *like*, which may be part of a column."""
    lengths = pc.list_value_length(like).fill_null(0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements, mask=like.is_null())
