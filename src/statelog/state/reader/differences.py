"""
The difference of state between two checkpoints, one row for each key that differs.

Both states are read in the order of key groups and compared one key group at a time, so that only
the key groups restored together and the rows that differ are in memory.  The columns are::

    change  key_group  key.<name>...  before.<variable>...  after.<variable>...

`change` is insert, update or delete.  What a variable holds is nested as in a snapshot, see
`statelog.state.encoding.snapshot_file`; null where the key has no state in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.reader.state_reader import StateReader

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"
_BEFORE: Final = 0
_AFTER: Final = 1


class Differences:
    """
    Compares the state of one operator as of two checkpoints.

    Args:
        before, after: The readers of both.
        variables: Which variables to compare; each is in one of the checkpoints at least.
    """

    def __init__(self, before: StateReader, after: StateReader, variables: Sequence[str]) -> None:
        self._readers = (before, after)
        schemas = [reader.keys_schema() for reader in self._readers]
        self._types = [
            # A checkpoint without the variable has nulls of the type in the other one.
            [(one if name in one.names else other).field(name).type for name in variables]
            for one, other in (schemas, reversed(schemas))
        ]
        self._variables = tuple(variables)
        self._key_columns = [KEY_GROUP_COLUMN]
        self._key_columns += [f"key.{name}" for name in after.schema.key_schema.names]
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
        parts = [self._key_groups(_BEFORE, before_ms), self._key_groups(_AFTER, after_ms)]
        merged = heapq.merge(*parts, key=lambda part: part[0])
        found = []
        for _, same in groupby(merged, key=lambda part: part[0]):
            sides = {side: table for _, side, table in same}
            batch = self._compared(sides.get(_BEFORE), sides.get(_AFTER))
            if batch.num_rows:
                found.append(batch)
        return pa.Table.from_batches(found, schema=self.schema)

    def _key_groups(self, side: int, now_ms: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield each key group with state, its side and its keys, ascending."""
        held: list[pa.RecordBatch] = []
        held_group = -1
        for batch in self._readers[side].keys(now_ms=now_ms):
            numbers = batch.column(0).to_numpy()
            starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
            for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
                key_group = int(numbers[start])
                if held and key_group != held_group:
                    yield held_group, side, pa.concat_batches(held)
                    held = []
                held_group = key_group
                held.append(self._selected(batch.slice(start, stop - start), side))
        if held:
            yield held_group, side, pa.concat_batches(held)

    def _selected(self, batch: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Return the key and the variables to compare."""
        columns = [batch.column(name) for name in self._key_columns]
        for name, kind in zip(self._variables, self._types[side], strict=True):
            present = name in batch.schema.names
            columns.append(batch.column(name) if present else pa.nulls(len(batch), kind))
        return pa.RecordBatch.from_arrays(columns, names=[*self._key_columns, *self._variables])

    def _compared(
        self, before: pa.RecordBatch | None, after: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        """Return the rows of one key group that differ."""
        olds, news = self._cells(before), self._cells(after)
        changes: list[str] = []
        takes: tuple[list[int | None], list[int | None]] = ([], [])
        for key in {**olds, **news}:
            old, new = olds.get(key), news.get(key)
            if old is not None and new is not None and old[1] == new[1]:
                continue
            changes.append(INSERT if old is None else DELETE if new is None else UPDATE)
            takes[_BEFORE].append(None if old is None else old[0])
            takes[_AFTER].append(None if new is None else new[0])
        columns: list[pa.Array] = [pa.array(changes, pa.string())]
        sides = [
            self._taken(batch, rows, side)
            for batch, rows, side in ((before, takes[0], _BEFORE), (after, takes[1], _AFTER))
        ]
        width = len(self._key_columns)
        missing = pa.array([one is None for one in takes[_AFTER]], pa.bool_())
        for old_column, new_column in zip(sides[0][:width], sides[1][:width], strict=True):
            columns.append(pa.compute.if_else(missing, old_column, new_column))
        return pa.RecordBatch.from_arrays(
            [*columns, *sides[0][width:], *sides[1][width:]], schema=self.schema
        )

    def _taken(
        self, batch: pa.RecordBatch | None, rows: list[int | None], side: int
    ) -> list[pa.Array]:
        """Return the columns of one side for the rows that differ; null for a missing row."""
        if batch is None:
            keys = [self.schema.field(name).type for name in self._key_columns]
            return [pa.nulls(len(rows), kind) for kind in (*keys, *self._types[side])]
        at = pa.array(rows, pa.int64())
        return [column.take(at) for column in batch.columns]

    def _cells(self, batch: pa.RecordBatch | None) -> dict[Any, tuple[int, Any]]:
        """Return row number and comparable state of each key that has any."""
        if batch is None:
            return {}
        width = len(self._key_columns)
        columns = [list(map(_comparable, column.to_pylist())) for column in batch.columns]
        keys, cells = zip(*columns[:width], strict=True), zip(*columns[width:], strict=True)
        return {
            key: (row, cell)
            for row, (key, cell) in enumerate(zip(keys, cells, strict=True))
            if any(one is not None for one in cell)
        }


def _comparable(value: Any) -> Any:
    """
    Return a hashable form that is equal for equal state.

    NaN equals itself, and a field that is null equals one that the schema did not have.
    """
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return frozenset((name, _comparable(one)) for name, one in value.items() if one is not None)
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return value
