"""
Find the differences between two checkpoints, and what each checkpoint changed.

*Differences* are one row for each key that differs.  Both states are read in the order of key
groups and compared in columns, some key groups at a time, so that only the key groups restored
together and the rows that differ are in memory.  The columns are::

    change  key_group  key.<name>...  before.<variable>...  after.<variable>...

`change` is insert, update or delete.  What a variable holds is nested as in a snapshot, see
`statelog.state.encoding.snapshot_file`; null where the key has no state in it.

The *feed* has the changes of each checkpoint, from its log, so that it costs the state at its
beginning, once, and then the changes.  A checkpoint whose changes are in a snapshot only is
compared with the state before it instead.  A value, element or entry whose time to live is over is
not there, neither before nor after, at the time of the checkpoint.  That it expires is not a
change, because the log does not have it.  A timer that fires is removed by the job, which is a
change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.checkpoint.listing import CheckpointName, checkpoint_id_of
from statelog.checkpoint.restore import find_checkpoint
from statelog.errors import CapacityError
from statelog.extensions.read.joining import (
    Mask,
    any_valid,
    change_words,
    equal_rows,
    matching_rows,
)
from statelog.extensions.read.window import LoggedOperations, Window
from statelog.format.arrow_limits import joined_batches, one_batch
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.kinds.kind import RowNumbers
from statelog.state.reader.checkpoint_chain import as_of_ms, chain_before, is_logged, own_log
from statelog.state.reader.location import LocationReader
from statelog.state.reader.state_reader import StateReader, portions, stored_bytes

_BEFORE: Final = 0
_AFTER: Final = 1
_PORTION_BYTES: Final = 16 * 1024 * 1024
"""Key groups are compared in groups of up to about this many stored bytes, at least one."""
_WHAT: Final = "the state of one key group,"
"""The name of the compared data in size errors."""


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
        Return all rows that differ, in order of key group.

        Args:
            before_ms: What expired at or before this time is left out of the state before.
            after_ms: Likewise for the state after.

        Blocks: On the store.
        """
        return pa.Table.from_batches(self.batches(before_ms, after_ms), schema=self.schema)

    def batches(self, before_ms: int, after_ms: int) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows that differ, a few key groups at a time; arguments as for `table`.

        Blocks: On the store, between batches.
        """
        readers = self._readers
        stored = (stored_bytes(reader.checkpoint) for reader in readers)
        weights = [sum(both) for both in zip(*stored, strict=True)]
        whole = readers[_AFTER].key_groups if self._only is None else self._only
        for portion in portions(weights, whole, _PORTION_BYTES):
            yield from self._compared(portion, (before_ms, after_ms))

    def _selected(self, batch: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Return the key and variables to compare, matching renamed keys by position."""
        columns = batch.columns[: len(self._key_columns)]
        for name, kind in zip(self._variables, self._types[side], strict=True):
            present = name in batch.schema.names
            columns.append(batch.column(name) if present else pa.nulls(len(batch), kind))
        return pa.RecordBatch.from_arrays(columns, names=[*self._key_columns, *self._variables])

    def _compared(
        self, portion: KeyGroupRange, times_ms: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the differing rows of some key groups."""
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
        in_both = np.flatnonzero(matches >= 0)
        differ = self._differing(old, new, in_both, matches[in_both])
        changed = in_both[differ]
        old_rows = np.sort(np.concatenate([np.flatnonzero(matches < 0), changed]))
        inserted = np.ones(new.num_rows, np.bool_)
        inserted[matches[in_both]] = False
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
        self, old: pa.RecordBatch, new: pa.RecordBatch, rows: RowNumbers, other: RowNumbers
    ) -> Mask:
        """Return which *rows* of *old* differ from the *other* rows of *new*."""
        width = len(self._key_columns)
        same = np.ones(len(rows), np.bool_)
        takes = pa.array(rows), pa.array(other)
        for column, two in zip(old.columns[width:], new.columns[width:], strict=True):
            same &= equal_rows(column.take(takes[0]), two.take(takes[1]))
        return ~same

    def _rows(
        self, old: pa.RecordBatch, new: pa.RecordBatch, before: RowNumbers, after: RowNumbers
    ) -> pa.RecordBatch:
        """Return the rows of the result, where -1 stands for a key without state on that side."""
        numbers = np.where(before < 0, 0, np.where(after < 0, 2, 1)).astype(np.int8)
        words = change_words(numbers)
        takes = [pa.array(rows, mask=rows < 0) for rows in (before, after)]
        sides = [
            [column.take(rows) for column in batch.columns]
            for batch, rows in zip((old, new), takes, strict=True)
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
        """Return the keys that have state in at least one variable."""
        kinds = [self.schema.field(name).type for name in self._key_columns]
        columns = [pa.nulls(0, kind) for kind in (*kinds, *self._types[side])]
        names = [*self._key_columns, *self._variables]
        batches = [pa.RecordBatch.from_arrays(columns, names=names)]
        for batch in self._readers[side].keys(key_groups=portion, now_ms=now_ms):
            batches.append(self._selected(batch, side))
        whole = joined_batches(batches, _WHAT)
        has_state = any_valid(whole.columns[len(self._key_columns) :], whole.num_rows)
        return whole if has_state.all() else whole.filter(pa.array(has_state))


_WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Checkpoints are grouped up to about this many bytes of changes, with at least one."""
CHECKPOINT_COLUMN: Final = "checkpoint_id"


class ChangeFeed:
    """
    The changes to one operator's state in a sequence of checkpoints.

    All state is shown in the schema of the last checkpoint: a field or variable that an earlier one
    did not have is null, and what was removed since is left out.

    Args:
        last: The reader of the last checkpoint.
        chain: The checkpoints before it, ascending, each the parent of the next; the changes of the
            first are not shown.  Empty for the whole state of *last*, as inserts.
        variables: Names of the variables to show; None for all.

    Thread: one at a time.
    """

    def __init__(
        self,
        last: StateReader,
        chain: Sequence[CompletedCheckpoint],
        variables: Sequence[str] | None = None,
    ) -> None:
        self._last = last
        self._chain = [*chain, last.checkpoint]
        self._codec = OperatorCodec(last.schema)
        self._layout = RowLayout(self._codec)
        names = {state_id: last.schema.states[state_id].name for state_id in self._codec.live}
        self._states = {
            state_id: name
            for state_id, name in names.items()
            if variables is None or name in variables
        }
        fields = [pa.field("change", pa.string()), pa.field(CHECKPOINT_COLUMN, pa.int64())]
        whole = last.keys_schema()
        fields += list(whole)[: self._layout.first_state]
        for word in ("before", "after"):
            fields += [
                pa.field(f"{word}.{name}", whole.field(name).type) for name in self._states.values()
            ]
        self.schema: pa.Schema = pa.schema(fields)

    def batches(self, key_groups: KeyGroupRange | None = None) -> Iterator[pa.RecordBatch]:
        """
        Yield the changes, a few key groups at a time.

        The changes of a key are in the order of checkpoints.

        Args:
            key_groups: Which key groups; None for all.

        Raises:
            CheckpointError: While batches are read: a checkpoint was deleted meanwhile.
            CorruptionError: While batches are read: an object is damaged.

        Blocks: On the store, between batches.
        """
        whole = self._last.key_groups if key_groups is None else key_groups
        for portion in self._last.portions(whole):
            if len(self._chain) == 1:
                yield from self._inserts(portion)
            else:
                yield from self._changes(portion)

    def _inserts(self, portion: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        """Yield the state of the last checkpoint as inserts."""
        now_ms = as_of_ms(self._last.checkpoint)
        for batch in self._last.keys(key_groups=portion, now_ms=now_ms):
            rows = batch.num_rows
            cells = [batch.column(self._layout.columns[state_id]) for state_id in self._states]
            columns = [
                change_words(np.zeros(rows, np.int8)),
                pa.array(np.full(rows, self._last.checkpoint_id, np.int64)),
                *batch.columns[: self._layout.first_state],
                *(pa.nulls(rows, cell.type) for cell in cells),
                *cells,
            ]
            inserts = pa.RecordBatch.from_arrays(columns, schema=self.schema).filter(
                pa.array(any_valid(cells, rows))
            )
            if inserts.num_rows:
                yield inserts

    def _changes(self, portion: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        chain = self._chain
        base: pa.RecordBatch | None = None
        start = 1
        while start < len(chain):
            if not is_logged(chain[start], portion):
                yield from self._compared(chain[start - 1], chain[start], portion)
                base = None
                start += 1
                continue
            stop = self._window_end(start, portion)
            window = self._window(start, stop, portion, base)
            if window is not None:
                ids = [checkpoint.checkpoint_id for checkpoint in chain[start:stop]]
                yield from window.batches(list(self._states), self.schema, ids)
                base = window.state_after() if stop < len(chain) else None
            start = stop

    def _window(
        self, start: int, stop: int, portion: KeyGroupRange, base: pa.RecordBatch | None
    ) -> Window | None:
        """Return the changes in a group of checkpoints, or None if there are none."""
        logged = LoggedOperations(self._codec)
        for index, checkpoint in enumerate(self._chain[start:stop]):
            for batch in self._last.of(checkpoint).own_changes(portion):
                logged.add(index, batch)
        operations = logged.operations()
        if not operations:
            return None
        if base is None:
            reader = self._last.of(self._chain[start - 1])
            rows = reader.keys(key_groups=portion, include_expired=True)
            before = pa.Table.from_batches(rows, schema=self._layout.table_schema)
            base = one_batch(before, "the state before the changes,")
        times = [as_of_ms(checkpoint) for checkpoint in self._chain[start:stop]]
        return Window(self._layout, base, operations, times)

    def _window_end(self, start: int, portion: KeyGroupRange) -> int:
        """Return the end of the group of checkpoints that starts at *at*."""
        size = 0.0
        for end in range(start, len(self._chain)):
            if end > start and not is_logged(self._chain[end], portion):
                return end
            for handle in own_log(self._chain[end], portion):
                share = len(handle.key_group_range.intersection(portion))
                size += handle.size_bytes * share / len(handle.key_group_range)
            if end > start and size > _WINDOW_BYTES:
                return end
        return len(self._chain)

    def _compared(
        self, before: CompletedCheckpoint, after: CompletedCheckpoint, portion: KeyGroupRange
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a checkpoint without a log, compared with the previous one."""
        readers = self._last.of(before), self._last.of(after)
        # At one time, for what expired in between is no change.
        now_ms = as_of_ms(after)
        differences = Differences(*readers, list(self._states.values()), portion)
        for batch in differences.batches(now_ms, now_ms):
            ids = pa.array(np.full(batch.num_rows, after.checkpoint_id, np.int64))
            columns = [batch.column(0), ids, *batch.columns[1:]]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def feed_of(
    state: LocationReader,
    since: CheckpointName | None,
    checkpoint: CheckpointName | None,
    variable: str | None,
    key_groups: KeyGroupRange | None,
) -> Iterator[pa.RecordBatch]:
    """Return what each checkpoint in a range changed; see `LocationState.feed`."""
    last = state.reader(checkpoint)
    if variable is not None:
        last.arrow_schema(variable)  # raises: it names the variables
    names = None if variable is None else [variable]
    if since is None:
        return ChangeFeed(last, [], names).batches(key_groups)
    after = checkpoint_id_of(state.store, since, "since")
    if after == last.checkpoint_id:
        return iter(())
    first = find_checkpoint(state.store, after)
    chain = chain_before(state.store, last.checkpoint, first.checkpoint_id)
    return ChangeFeed(last, chain, names).batches(key_groups)
