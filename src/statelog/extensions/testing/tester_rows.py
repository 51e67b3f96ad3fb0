"""
The input and output of a task in a test.

The rows, frames or tables that the test gives and gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeGuard

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from statelog.checkpoint.attachments import Addition
from statelog.errors import UsageError
from statelog.extensions.side_outputs.declaration import SIDE_COLUMNS
from statelog.spark.rows.formats import PandasRowFormat, RowFormat, SparkRowFormat
from statelog.spark.rows.interface import KeyedInput, Output, RowLike
from statelog.spark.rows.layout import InitialLayout, InputLayout
from statelog.spark.rows.types import arrow_schema, from_ipc, make_row
from statelog.state.encoding.values import UNENCODABLE, KeyCodec
from statelog.state.kinds import Key
from statelog.store import ObjectStore

if TYPE_CHECKING:
    import pandas as pd

LAYOUT: Final = InputLayout((), 0)
INITIAL: Final = InitialLayout(InputLayout((), 1), (), ())
"""The layouts of an input and of initial rows that the task does not read from its batches."""


class GivenFormat:
    """A row format whose input is created before the task."""

    def __init__(
        self, plain: RowFormat, rows: KeyedInput, initial: KeyedInput | None = None
    ) -> None:
        self.rows_at_once = plain.rows_at_once
        self.splits_keys = plain.splits_keys
        self.cost = plain.cost
        self.of_columns = plain.of_columns
        self.output = plain.output
        self.rows = rows
        self.initial = initial

    def input(self, layout: InputLayout, key_codec: KeyCodec) -> KeyedInput:
        """See `RowFormat`."""
        if layout is INITIAL.layout and self.initial is not None:
            return self.initial
        return self.rows


class GivenRows:
    """The rows or frames of a few keys, as the input of a task."""

    def __init__(self) -> None:
        self._by_group: dict[int, dict[Key, tuple[Key, list[RowLike]]]] = {}
        self.row_count = 0

    def add(self, key_group: int, key: Key, user_key: Key, rows: Iterable[RowLike]) -> None:
        """Add rows or frames of one key."""
        self._by_group.setdefault(key_group, {}).setdefault(key, (user_key, []))[1].extend(rows)

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Do nothing, because `add` has already supplied the rows."""

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, in ascending order."""
        return sorted(self._by_group)

    def table_keys(self, key_group: int) -> list[Key]:
        """Return the keys in the form in which tables store them."""
        return list(self._by_group.get(key_group, {}))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """Yield each key in both of its forms, with its rows."""
        for key, (user_key, rows) in self._by_group.get(key_group, {}).items():
            yield key, user_key, iter(rows)


class CollectedOutput(GivenFormat):
    """
    A `GivenFormat` that collects the processor's results unchanged.

    Attributes: `produced`: what the processor yielded.
    """

    unnamed = None

    def __init__(
        self, plain: RowFormat, rows: KeyedInput, initial: KeyedInput | None = None
    ) -> None:
        super().__init__(plain, rows, initial)
        self._new_output = plain.output
        self.output = self._begun
        self._check: Callable[[], Output] | None = None
        self.items: list[RowLike] = []
        self.produced: list[RowLike] = []

    def _begun(self, schema: pa.Schema, batch_id: int) -> Output:
        if schema.names:
            self._check = partial(self._new_output, schema, batch_id)
        return self

    @property
    def pending(self) -> int:
        """The number of items since the last batch."""
        return len(self.items)

    def extend(self, produced: Iterable[RowLike]) -> None:
        """Collect the results of one call's generator, copying frames as in a task."""
        self.items += (item.copy() if is_frame(item) else item for item in produced)

    def batch(self) -> pa.RecordBatch:
        """Return a batch without rows; raise `UnfitOutputError` for Rows that do not fit."""
        if self._check is not None and not any(map(is_frame, self.items)):
            output = self._check()
            output.extend(self.items)
            output.batch()
        return pa.RecordBatch.from_arrays([], names=[])

    def clear(self) -> None:
        """Discard the collected items, and return them."""
        self.produced += self.items
        self.items.clear()


def is_frame(item: object) -> TypeGuard[pd.DataFrame]:
    """Return whether an item is a pandas frame."""
    return hasattr(item, "iloc")


def typed_rows(produced: object, columns: StructType, batch_id: int, timezone: str) -> list[Row]:
    """Convert a processor's results to rows with the types of the output."""
    items = produced if isinstance(produced, list) else [produced]
    in_pandas = items is not produced or any(map(is_frame, items))
    row_format = format_of(in_pandas=in_pandas, timezone=timezone, columns=columns)
    output = row_format.output(arrow_schema(columns), batch_id)
    output.extend(items)
    return rows_in(output.batch())


def format_of(
    *, in_pandas: bool, timezone: str, columns: StructType | None = None
) -> PandasRowFormat | SparkRowFormat:
    """Return a row format for use in tests, with Spark's default settings."""
    if not in_pandas:
        return SparkRowFormat()
    from statelog.spark.rows.pandas_input import PandasSettings  # the import of pandas takes time

    return PandasRowFormat(PandasSettings.defaults(timezone), columns or StructType())


def rows_as(schema: StructType, rows: object, name: str) -> pa.Table:
    """
    Convert a list of Rows or dicts to a table that has a schema.

    Raises `UsageError` if it does not fit.
    """
    if not isinstance(rows, list | tuple):
        raise UsageError(f"a schema requires a list of Rows or dicts, not {type(rows).__name__}")
    listed = [row.asDict(recursive=True) if isinstance(row, Row) else row for row in rows]
    try:
        return pa.Table.from_pylist(listed, schema=arrow_schema(schema))
    except (*UNENCODABLE, AttributeError) as error:
        raise UsageError(
            f"the broadcast table {name!r} does not match its schema: {error}"
        ) from error


def side_rows(additions: Iterable[Addition], store: ObjectStore) -> Mapping[str, list[Row]]:
    """Return the rows that a task emitted, grouped by side output."""
    rows: dict[str, list[Row]] = {}
    for addition in additions:
        data = (store.get(addition.file.path),) if addition.file else addition.data
        for table in map(from_ipc, data):
            emitted = table.select(range(len(SIDE_COLUMNS), table.num_columns))
            rows.setdefault(addition.name, []).extend(rows_in(emitted))
    return rows


def rows_in(table: pa.RecordBatch | pa.Table) -> list[Row]:
    """Return the rows of a table; times have time zones, and structs are dicts."""
    names = table.schema.names
    columns = [column.to_pylist() for column in table.columns]
    return [make_row(names, values) for values in zip(*columns, strict=True)]
