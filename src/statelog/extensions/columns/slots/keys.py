"""
The distinct keys in a table of rows, and the column types that processors see.

Spark sends rows in the session's time zone, and fields inside of them may be NOT NULL.  State is
stored in UTC, and any field of it may be null.  Arrow combines columns of equal types only, so a
processor gets all of them in one type: the stored one, in the session's time zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import UsageError
from statelog.state.keys.key_hash import Hashes, hash_columns
from statelog.state.kinds.kind import RowNumbers
from statelog.state.schema import stored_field, with_fields

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)


class Keys:
    """
    Distinct keys, and the positions of the rows of each key.

    A columnar processor gets it with the rows, and names by it the keys whose state it reads and
    writes.  `len(keys)` is the number of keys; `keys["customer"]` one column of `table`.

    Args:
        schema: Names and types of the key's columns.
        columns: The columns, one row for each key.
        key_groups: The key group of each key.
        starts: For each key the number of its first row.
        ends: For each key the number after its last row.
        hashes: The hash of each key, where it is known already.
    """

    def __init__(
        self,
        schema: pa.Schema,
        columns: Sequence[pa.Array],
        key_groups: npt.NDArray[np.int32],
        starts: RowNumbers,
        ends: RowNumbers,
        hashes: Hashes | None = None,
    ) -> None:
        self.schema = schema
        self.columns = list(columns)
        self.key_groups = key_groups
        self.starts = starts
        self.ends = ends
        self._hashes = hashes
        self.zone = "UTC"
        """The time zone of points in time in `table`."""
        self.slots: RowNumbers | None = None
        """The slots of the keys, after a look-up; -1 for a key without state."""
        self.origin: tuple[Keys, RowNumbers] | None = None
        """For keys that may repeat: the distinct keys, and each key's index in them."""

    def __len__(self) -> int:
        return len(self.key_groups)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)

    def __repr__(self) -> str:
        return f"Keys({len(self)} of {', '.join(self.schema.names)})"

    @cached_property
    def table(self) -> pa.Table:
        """The keys as a table, with one row per key."""
        return zoned_table(pa.Table.from_arrays(self.columns, schema=self.schema), self.zone)

    @property
    def counts(self) -> RowNumbers:
        """The number of rows of each key."""
        return self.ends - self.starts

    @property
    def hashes(self) -> Hashes:
        """The 64-bit hash of each key, from which its key group is computed."""
        if self._hashes is None:
            self._hashes = hash_columns(self.columns, self.schema)
        return self._hashes

    def row_keys(self) -> RowNumbers:
        """Return, for each row, the number of its key."""
        return np.repeat(np.arange(len(self)), self.counts)

    def take(self, chosen: object) -> Keys:
        """
        Return some of the keys.

        Args:
            chosen: A mask, or numbers of keys, as a NumPy or Arrow array.  A number may repeat: for
                `row_keys()` the result has a key for each row.

        Raises:
            UsageError: A mask is not as long as the keys.
        """
        numbers_of_keys = np.asarray(chosen)
        may_repeat = numbers_of_keys.dtype != np.bool_
        if numbers_of_keys.dtype == np.bool_:
            if len(numbers_of_keys) != len(self):
                raise UsageError(
                    f"the mask has {len(numbers_of_keys)} values, but there are {len(self)} keys"
                )
            numbers_of_keys = np.flatnonzero(numbers_of_keys)
        numbers_of_keys = numbers_of_keys.astype(np.int64, copy=False)
        numbers = pa.array(numbers_of_keys)
        taken = Keys(
            self.schema,
            [column.take(numbers) for column in self.columns],
            self.key_groups[numbers_of_keys],
            self.starts[numbers_of_keys],
            self.ends[numbers_of_keys],
            None if self._hashes is None else self._hashes[numbers_of_keys],
        )
        taken.zone = self.zone
        if self.slots is not None:
            taken.slots = self.slots[numbers_of_keys]
        if self.origin is not None:
            taken.origin = self.origin[0], self.origin[1][numbers_of_keys]
        elif may_repeat:
            taken.origin = self, numbers_of_keys
        return taken


def zoned_field(field: pa.Field, zone: str) -> pa.Field:
    """Return *field* with the type that a processor receives."""
    stored = stored_field(field)
    return stored.with_type(_in_zone(stored.type, zone))


def zoned(column: _Column, zone: str) -> _Column:
    """Convert a column to the type that a processor receives, without copying values."""
    kind = zoned_field(pa.field("", column.type), zone).type
    return column if column.type == kind else column.cast(kind)


def zoned_table(table: pa.Table, zone: str) -> pa.Table:
    """Convert a table to the types that a processor receives."""
    fields = [zoned_field(field, zone) for field in table.schema]
    return pa.Table.from_arrays(
        [zoned(column, zone) for column in table.columns], schema=pa.schema(fields)
    )


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """Return a type in which all points in time have the given time zone."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, zone)
    return with_fields(kind, lambda field: field.with_type(_in_zone(field.type, zone)))
