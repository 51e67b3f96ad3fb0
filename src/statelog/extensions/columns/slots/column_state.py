"""State variables and timers for columnar processors, which handle whole columns of keys."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import UsageError
from statelog.extensions.columns.slots.keys import Keys, zoned_table
from statelog.extensions.columns.slots.slot_table import SlotTable
from statelog.format.arrow_limits import one_array
from statelog.spark.rows.types import table_of
from statelog.state.kinds import StateKind
from statelog.state.schema import stored_field


class ColumnState:
    """
    A state variable with one value per key, read and written as columns.

    Thread: the processor's.
    """

    kind: ClassVar = StateKind.VALUE

    def __init__(self, table: SlotTable, state_id: int) -> None:
        self._table = table
        self._column = table.columns[state_id]
        self._codec = self._column.state
        self._fields = list(self._codec.value.stored)

    def get(self, keys: Keys) -> pa.Table:
        """
        Return the values of *keys*, with one row per key.

        A key without a value, or whose time to live is over, has a row of nulls; see `exists`.
        """
        positions = self._column.live(self._table.find(keys), self._table.now_ms)
        columns = self._column.heap.take(positions)[: len(self._fields)]
        return zoned_table(
            pa.Table.from_arrays(columns, schema=pa.schema(self._fields)), self._table.zone
        )

    def exists(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return, for each key, whether it has a value."""
        return self._column.live(self._table.find(keys), self._table.now_ms) >= 0

    def put(self, keys: Keys, values: object) -> None:
        """
        Set the value of each key and restart its time to live.

        Args:
            keys: The keys; use `Keys.take` to set some only.
            values: One row for each key, with the fields of the variable by name: a `pyarrow.Table`
                or record batch, a frame of pandas or Polars, or a dict of columns.

        Raises:
            UsageError: There are fewer or more rows than keys, a field is missing or unknown, or a
                value does not fit its type.
        """
        what = f"state {self._codec.descriptor.name!r}"
        columns = columns_of(values, self._codec.descriptor.value_schema, len(keys), what)
        if self._codec.expires:
            expires_ms = self._table.now_ms + (self._codec.descriptor.ttl_ms or 0)
            columns.append(pa.array(np.full(len(keys), expires_ms, np.int64)))
        self._column.put(self._table.add(keys), columns)

    def clear(self, keys: Keys) -> None:
        """Remove the values of *keys*."""
        slots = self._table.find(keys)
        self._column.clear(slots[self._column.positions(slots) >= 0])


class ColumnTimers:
    """
    Timers for whole columns of keys.

    Thread: the processor's.
    """

    def __init__(self, table: SlotTable, state_id: int) -> None:
        self._table = table
        self._column = table.columns[state_id]

    def register(self, keys: Keys, times_ms: object) -> None:
        """
        Add a timer for each key, unless the key already has one for the same time.

        Args:
            keys: The keys.
            times_ms: When each timer is due, in milliseconds since 1970: an array, or one number
                for all keys.

        Raises:
            UsageError: There are fewer or more times than keys, or a time is null.
        """
        times = _times(times_ms, len(keys))
        self._change(self._table.add(keys), times, is_added=True)

    def delete(self, keys: Keys, times_ms: object) -> None:
        """Remove a timer of each key, if it is set; arguments and errors as for `register`."""
        slots = self._table.find(keys)
        times = _times(times_ms, len(keys))
        is_known = slots >= 0
        self._change(slots[is_known], times[is_known], is_added=False)

    def get(self, keys: Keys) -> pa.Array:
        """Return the timers of each key as a list in ascending order; null without timers."""
        (times,) = self._column.heap.take(self._column.positions(self._table.find(keys)))
        return times

    def _change(
        self, slots: npt.NDArray[np.int64], times: npt.NDArray[np.int64], *, is_added: bool
    ) -> None:
        """Add or remove (slot, time) pairs; a slot may occur more than once."""
        if not len(slots):
            return
        # 1. The timers that these slots have, as pairs of slot and time.
        touched, owner = np.unique(slots, return_inverse=True)
        (cells,) = self._column.heap.take(self._column.positions(touched))
        before = cells.flatten().to_numpy()
        counts = np.diff(cells.offsets.to_numpy())
        # 2. With the pairs that were given, sorted: equal ones are neighbours.
        owners = np.concatenate([np.repeat(np.arange(len(touched)), counts), owner])
        every = np.concatenate([before, times])
        order = np.lexsort((every, owners))
        owners = owners[order]
        every = every[order]
        # 3. Of equal pairs one remains; a deletion removes all of them.
        same = np.zeros(len(order), np.bool_)
        same[1:] = (owners[1:] == owners[:-1]) & (every[1:] == every[:-1])
        keep = ~same
        if not is_added:
            # A pair that was given is removed, with the equal one next to it.
            is_deleted = np.bincount(np.cumsum(~same) - 1, order >= len(before)) > 0
            keep &= ~is_deleted[np.cumsum(~same) - 1]
        owners = owners[keep]
        every = every[keep]
        # 4. The remaining times as a list for each slot; a slot without any is cleared.
        lengths = np.bincount(owners, minlength=len(touched))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        kind = self._column.heap.fields[0].type
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(every), type=kind)
        has_timer = lengths > 0
        if has_timer.any():
            self._column.put(touched[has_timer], [lists.filter(pa.array(has_timer))])
        if not has_timer.all():
            self._column.clear(touched[~has_timer])


def columns_of(values: object, schema: pa.Schema, length: int, what: str) -> list[pa.Array]:
    """Convert the columns of a table to the stored types of a schema."""
    table = table_of(values, what)
    if length >= 0 and table.num_rows != length:
        raise UsageError(f"{what}: {table.num_rows} rows for {length} keys")
    if set(table.column_names) != set(schema.names) or len(table.column_names) != len(schema):
        raise UsageError(
            f"{what} has the columns {', '.join(schema.names)}, but the table has "
            f"{', '.join(table.column_names) or 'none'}"
        )
    columns = []
    for field in schema:
        column = table.column(field.name)
        kind = stored_field(field).type
        try:
            # Not to the type itself: Arrow sees nulls in the NOT NULL fields of a struct that is null.
            cast = column if column.type == kind else column.cast(kind)
        except pa.ArrowException as error:
            raise UsageError(
                f"{what}: field {field.name!r} takes {field.type}, not {column.type} ({error})"
            ) from error
        whole = one_array(cast, f"{what}, field {field.name!r}")
        if null := _forbidden_null(field, whole):
            raise UsageError(f"{what}: field {null!r} is NOT NULL but contains a null")
        columns.append(whole)
    return columns


def _forbidden_null(field: pa.Field, column: pa.Array) -> str:
    """Return the path of the first NOT NULL field that contains a null, or ""."""
    if field == stored_field(field):
        return ""  # nothing in it is NOT NULL
    if not field.nullable and column.null_count:
        return str(field.name)
    inner: list[tuple[pa.Field, pa.Array]] = []
    if pa.types.is_struct(field.type):
        inner = list(zip(field.type, column.drop_null().flatten(), strict=True))
    elif pa.types.is_map(field.type):
        maps = column.drop_null()
        bounds = maps.offsets.to_numpy()
        items = maps.items.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        inner = [(field.type.item_field, items)]
    elif pa.types.is_list(field.type):
        inner = [(field.type.value_field, column.flatten())]
    nulls = (_forbidden_null(inner_field, values) for inner_field, values in inner)
    return next((f"{field.name}.{null}" for null in nulls if null), "")


def _times(times_ms: object, length: int) -> npt.NDArray[np.int64]:
    if isinstance(times_ms, int | np.integer):
        return np.full(length, times_ms, np.int64)
    try:
        column = (
            times_ms if isinstance(times_ms, pa.Array | pa.ChunkedArray) else pa.array(times_ms)
        )
        times = column.cast(pa.int64())
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"timer times must be whole numbers of milliseconds: {error}") from error
    if len(times) != length or times.null_count:
        raise UsageError(
            f"got {len(times)} times, {times.null_count} of them null, for {length} keys"
        )
    numbers: npt.NDArray[np.int64] = times.to_numpy()
    return numbers
