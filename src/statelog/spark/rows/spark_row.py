"""
Rows as PySpark's `Row`s.

An iterator of Rows for each key, and the Rows that a processor yields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import Row

from statelog.format.arrow_limits import joined_batches, one_array
from statelog.spark.rows.interface import MOST_NAMES, UnnamedColumns
from statelog.spark.rows.key_order import KeyedRows
from statelog.spark.rows.layout import INPUT_ROWS, InputLayout
from statelog.spark.rows.types import row_factory
from statelog.spark.rows.unfit_output import (
    UnfitOutputError,
    described_item,
    row_call,
    unfit_output,
)
from statelog.state.encoding.converters import to_python
from statelog.state.encoding.values import UNENCODABLE, KeyCodec, columns_of
from statelog.state.kinds import Key

_AT_ONCE = 20_000
"""Rows of a task up to this number become Python objects together, and more of them one key group
at a time: objects that are used soon after they were made are still in the processor's caches."""


class RowInput(KeyedRows):
    """The input rows of one task as Rows, grouped by key."""

    def __init__(self, layout: InputLayout, key_codec: KeyCodec) -> None:
        super().__init__(key_codec)
        self._layout = layout
        self._columns: list[pa.Array] = []
        self._rows: list[Row] | None = None
        self._make: Callable[..., Row] = Row

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all rows; the columns are key group, computed keys, and input columns."""
        read = [batch for batch in batches if batch.num_rows]
        if not read:
            return
        if self.kept_rows is not None:
            self.kept_rows.batches += read
        layout = self._layout
        whole = joined_batches(read, INPUT_ROWS)
        del read
        keys = [whole.column(position) for position in layout.key_positions]
        self._sort(whole.column(0).to_numpy(), keys)
        order = pa.array(self._order.rows)
        self._columns = [column.take(order) for column in whole.columns[layout.first_input :]]
        self._make = row_factory(whole.schema.names[layout.first_input :])
        if self.row_count <= _AT_ONCE:
            self._rows = self._rows_of(0, self.row_count)

    def again(self) -> RowInput:
        """Create the same rows again, because a call may have modified a list in a row."""
        self._rows = None
        return self

    def _rows_of(self, start: int, end: int) -> list[Row]:
        """Return the rows between two positions, in key order."""
        columns = (to_python(column.slice(start, end - start)) for column in self._columns)
        return list(map(self._make, zip(*columns, strict=True)))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[Row]]]:
        """Yield each key in both of its forms, with its rows."""
        first, end = self._order.ranges.get(key_group, (0, 0))
        bounds = self._order.bounds[first : end + 1]
        start = 0
        rows = self._rows
        if rows is None:
            start = bounds[0]
            rows = self._rows_of(start, bounds[-1])
        keys = self._keys[first:end]
        user_keys = self._shown[first:end]
        for key, user_key, (begin, stop) in zip(keys, user_keys, pairwise(bounds), strict=True):
            yield key, user_key, iter(rows[begin - start : stop - start])


class RowOutput:
    """Collects the `Row`s of one task and converts them to record batches."""

    def __init__(self, schema: pa.Schema, batch_id: int) -> None:
        self._schema = schema
        self._batch_id = batch_id
        self._names = list(schema.names)
        self._nested = [
            number for number, field in enumerate(schema) if _may_hold_struct(field.type)
        ]
        self._unnamed = set(self._names)
        self._other_names: set[str] = set()
        self.items = self._rows = list[Row]()
        self.extend = self._rows.extend  # called for each key, so without a method in between

    @property
    def pending(self) -> int:
        """The number of rows in the next batch."""
        return len(self._rows)

    @property
    def unnamed(self) -> UnnamedColumns | None:
        """The columns that no row in any batch has set so far; None if all were set."""
        if not self._unnamed:
            return None
        columns = tuple(name for name in self._names if name in self._unnamed)
        return UnnamedColumns(columns, tuple(sorted(self._other_names)))

    def clear(self) -> None:
        """Discard all rows."""
        self._rows.clear()

    def batch(self) -> pa.RecordBatch:
        """
        Return all rows as one batch; raise `UnfitOutputError` if a value does not fit its column.

        More rows than one batch can hold raise `CapacityError`.  Fields are found by name; a field
        that a row lacks becomes null, as in Spark.
        """
        rows = self._rows
        columns = self._columns(rows)
        arrays = []
        for field, column in zip(self._schema, columns, strict=True):
            try:
                array = pa.array(column, type=field.type)
                arrays.append(one_array(array, f"output column {field.name!r}"))
            except UNENCODABLE as error:
                raise self._unfit(field, rows, column, error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _columns(self, rows: Sequence[Row]) -> Sequence[Sequence[object]]:
        if not rows:
            return [()] * len(self._names)
        try:
            fields = [row.__fields__ for row in rows]
        except AttributeError:
            number = next(
                number for number, row in enumerate(rows) if not hasattr(row, "__fields__")
            )
            raise unfit_output(self._no_row(rows[number]), self._batch_id, number) from None
        if fields.count(self._names) == len(rows):
            self._unnamed.clear()
            columns = columns_of(rows, len(self._names))
            for number in self._nested:
                columns[number] = [_by_name(value) for value in columns[number]]
            return columns
        values = [row.asDict(recursive=True) for row in rows]
        if self._unnamed:
            self._note_names({name for name in set().union(*values) if isinstance(name, str)})
        return [[value.get(name) for value in values] for name in self._names]

    def _note_names(self, names: set[str]) -> None:
        """Collect the field names used in rows, because some rows omit columns."""
        self._unnamed -= names
        others = sorted(names.difference(self._names, self._other_names))
        self._other_names.update(others[: MOST_NAMES - len(self._other_names)])

    def _no_row(self, item: object) -> str:
        """Describe why an item is not a row with field names, and how to fix it."""
        advice = f"write {row_call(self._names)} for an output row"
        if isinstance(item, dict):
            advice = "write `yield Row(**values)` for an output row from a dict"
        elif hasattr(item, "iloc"):
            advice = "run a processor of DataFrames with transform_with_state_in_pandas"
        return f"it yields {described_item(item)}: {advice}"

    def _unfit(
        self, field: pa.Field, rows: Sequence[Row], column: Sequence[object], error: Exception
    ) -> UnfitOutputError:
        """Return an error about the first row that does not fit the output."""
        for number, (row, value) in enumerate(zip(rows, column, strict=True)):
            try:
                pa.array([value], type=field.type)
            except UNENCODABLE as unfit:
                return unfit_output(
                    f"output column {field.name!r} ({field.type}) cannot store {value!r:.100} of "
                    f"{row!r:.200}: {unfit}",
                    self._batch_id,
                    number,
                )
        return unfit_output(
            f"output column {field.name!r} ({field.type}) failed: {error}", self._batch_id, 0
        )


def _may_hold_struct(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return True
    return any(_may_hold_struct(kind.field(number).type) for number in range(kind.num_fields))


def _by_name(value: object) -> object:
    """Convert the Rows in a value to dicts."""
    if isinstance(value, Row):
        return value.asDict(recursive=True) if hasattr(value, "__fields__") else value
    if isinstance(value, list):
        return [_by_name(element) for element in value]
    if isinstance(value, dict):
        return {key: _by_name(element) for key, element in value.items()}
    return value
