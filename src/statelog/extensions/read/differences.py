"""
The difference of state between two checkpoints, one row for each key that differs.

Both states are read in the order of key groups and compared in columns, some key groups at a time,
so that only the key groups restored together and the rows that differ are in memory.  The columns
are::

    change  key_group  key.<name>...  before.<variable>...  after.<variable>...

`change` is insert, update or delete.  What a variable holds is nested as in a snapshot, see
`statelog.state.encoding.snapshot_file`; null where the key has no state in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import CapacityError
from statelog.extensions.read.joining import Mask, any_valid, equal_rows, matching_rows
from statelog.format.arrow_limits import joined_batches
from statelog.model import KeyGroupRange
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.kinds.kind import RowNumbers
from statelog.state.reader.state_reader import StateReader, portions, stored_bytes

_WORDS: Final = ("insert", "update", "delete")
_BEFORE: Final = 0
_AFTER: Final = 1
_PORTION_BYTES: Final = 16 * 1024 * 1024
"""Key groups are compared together up to about this many stored bytes, one of them at least."""
_WHAT: Final = "the state of one key group,"
"""What is compared, in the error that it is too large."""


class Differences:
    """
    Compares the state of one operator as of two checkpoints.

    Args:
        before, after: The readers of both.
        variables: Which variables to compare; each is in one of the checkpoints at least.
        key_groups: Which key groups to compare; None for all.
    """

    def __init__(
        self,
        before: StateReader,
        after: StateReader,
        variables: Sequence[str],
        key_groups: KeyGroupRange | None = None,
    ) -> None:
        self._readers = (before, after)
        self._only = key_groups
        schemas = [reader.keys_schema() for reader in self._readers]
        self._types = [
            # A checkpoint without the variable has nulls of the type in the other one.
            [(schema if name in schema.names else other).field(name).type for name in variables]
            for schema, other in (schemas, reversed(schemas))
        ]
        self._variables = tuple(variables)
        self._key_columns = [KEY_GROUP_COLUMN]
        self._key_schema = after.schema.key_schema
        self._key_columns += [f"key.{name}" for name in self._key_schema.names]
        fields = [pa.field("change", pa.string())]
        fields += [schemas[_AFTER].field(name) for name in self._key_columns]
        for side, word in ((_BEFORE, "before"), (_AFTER, "after")):
            fields += [
                pa.field(f"{word}.{name}", kind)
                for name, kind in zip(variables, self._types[side], strict=True)
            ]
        self.schema: pa.Schema = pa.schema(fields)

    def table(self, before_ms: int, after_ms: int) -> pa.Table:
        """
        Return all rows that differ, in the order of key groups.

        Args:
            before_ms: What expired at or before this time is left out of the state before.
            after_ms: Likewise for the state after.

        Blocks: On the store.
        """
        return pa.Table.from_batches(self.batches(before_ms, after_ms), schema=self.schema)

    def batches(self, before_ms: int, after_ms: int) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows that differ, some key groups at a time; arguments as for `table`.

        Blocks: On the store, between batches.
        """
        readers = self._readers
        stored = (stored_bytes(reader.checkpoint) for reader in readers)
        weights = [sum(both) for both in zip(*stored, strict=True)]
        whole = readers[_AFTER].key_groups if self._only is None else self._only
        for portion in portions(weights, whole, _PORTION_BYTES):
            yield from self._compared(portion, (before_ms, after_ms))

    def _selected(self, batch: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Return the key and the variables to compare; by position, for keys may be renamed."""
        columns = batch.columns[: len(self._key_columns)]
        for name, kind in zip(self._variables, self._types[side], strict=True):
            present = name in batch.schema.names
            columns.append(batch.column(name) if present else pa.nulls(len(batch), kind))
        return pa.RecordBatch.from_arrays(columns, names=[*self._key_columns, *self._variables])

    def _compared(
        self, portion: KeyGroupRange, times_ms: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some key groups that differ."""
        try:
            old, new = (self._state(side, portion, now_ms) for side, now_ms in enumerate(times_ms))
        except CapacityError:
            if len(portion) < 2:
                raise
            for half in portion.split(2):
                yield from self._compared(half, times_ms)
            return
        width = len(self._key_columns)
        matches = matching_rows(old.columns[1:width], new.columns[1:width], self._key_schema)
        kept = np.flatnonzero(matches >= 0)
        differ = self._differing(old, new, kept, matches[kept])
        changed = kept[differ]
        old_rows = np.sort(np.concatenate([np.flatnonzero(matches < 0), changed]))
        inserted = np.ones(new.num_rows, np.bool_)
        inserted[matches[kept]] = False
        new_rows = np.flatnonzero(inserted)
        if not len(old_rows) and not len(new_rows):
            return
        rows = self._rows(
            old,
            new,
            np.concatenate([old_rows, np.full(len(new_rows), -1)]),
            np.concatenate([matches[old_rows], new_rows]),
        )
        # Of each key group first what there was before, then what is new.
        order = np.argsort(rows.column(1).to_numpy(), kind="stable")
        yield rows.take(pa.array(order))

    def _differing(
        self, old: pa.RecordBatch, new: pa.RecordBatch, at: RowNumbers, other: RowNumbers
    ) -> Mask:
        """Return which of the rows *at* of *old* differ from the rows *other* of *new*."""
        width = len(self._key_columns)
        same = np.ones(len(at), np.bool_)
        takes = pa.array(at), pa.array(other)
        for column, two in zip(old.columns[width:], new.columns[width:], strict=True):
            same &= equal_rows(column.take(takes[0]), two.take(takes[1]))
        return ~same

    def _rows(
        self, old: pa.RecordBatch, new: pa.RecordBatch, before: RowNumbers, after: RowNumbers
    ) -> pa.RecordBatch:
        """Return the rows of the result; -1 is a key that has no state on a side."""
        numbers = np.where(before < 0, 0, np.where(after < 0, 2, 1)).astype(np.int8)
        words = change_words(numbers)
        takes = [pa.array(rows, mask=rows < 0) for rows in (before, after)]
        sides = [
            [column.take(at) for column in batch.columns]
            for batch, at in zip((old, new), takes, strict=True)
        ]
        width = len(self._key_columns)
        missing = pa.array(after < 0)
        keys = [
            pc.if_else(missing, left_column, two)
            for left_column, two in zip(sides[0][:width], sides[1][:width], strict=True)
        ]
        return pa.RecordBatch.from_arrays(
            [words, *keys, *sides[0][width:], *sides[1][width:]], schema=self.schema
        )

    def _state(self, side: int, portion: KeyGroupRange, now_ms: int) -> pa.RecordBatch:
        """Return the keys that have state in some variable."""
        kinds = [self.schema.field(name).type for name in self._key_columns]
        columns = [pa.nulls(0, kind) for kind in (*kinds, *self._types[side])]
        names = [*self._key_columns, *self._variables]
        batches = [pa.RecordBatch.from_arrays(columns, names=names)]
        for batch in self._readers[side].keys(key_groups=portion, now_ms=now_ms):
            batches.append(self._selected(batch, side))
        whole = joined_batches(batches, _WHAT)
        some = any_valid(whole.columns[len(self._key_columns) :], whole.num_rows)
        return whole if some.all() else whole.filter(pa.array(some))


def change_words(numbers: npt.NDArray[np.int8]) -> pa.Array:
    """Return insert, update and delete for the numbers 0, 1 and 2."""
    return pa.array(_WORDS).take(pa.array(numbers))
