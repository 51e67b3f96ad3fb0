"""
The change feed: what each checkpoint changed, with the state before and after.

The changes are taken from the log of each checkpoint, so that a feed costs the state at its
beginning, once, and then the changes.  A checkpoint whose changes are in a snapshot only (written by
an earlier statelog) is compared with the state before it instead.

A value, element or entry whose time to live is over is not there: neither before nor after, at the
time of the checkpoint.  That it expires is no change, because the log has none for it.  A timer that
fires is removed by the job, which is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from statelog.checkpoint.listing import CheckpointName, checkpoint_id_of
from statelog.checkpoint.restore import find_checkpoint
from statelog.extensions.read.differences import Differences, change_words
from statelog.extensions.read.joining import any_valid
from statelog.extensions.read.window import LoggedOperations, Window
from statelog.format.arrow_limits import one_batch
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.reader.checkpoint_chain import as_of_ms, chain_before, is_logged, own_log
from statelog.state.reader.location import LocationReader
from statelog.state.reader.state_reader import StateReader

_WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Checkpoints are taken together up to about this many bytes of changes, one of them at least."""
CHECKPOINT_COLUMN: Final = "checkpoint_id"


class ChangeFeed:
    """
    What the checkpoints of a chain changed, for one operator.

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
        Yield the changes, some key groups at a time; the changes of a key are in the order of checkpoints.

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
        at = 1
        while at < len(chain):
            if not is_logged(chain[at], portion):
                yield from self._compared(chain[at - 1], chain[at], portion)
                base = None
                at += 1
                continue
            stop = self._window_end(at, portion)
            window = self._window(at, stop, portion, base)
            if window is not None:
                ids = [each.checkpoint_id for each in chain[at:stop]]
                yield from window.batches(list(self._states), self.schema, ids)
                base = window.state_after() if stop < len(chain) else None
            at = stop

    def _window(
        self, at: int, stop: int, portion: KeyGroupRange, base: pa.RecordBatch | None
    ) -> Window | None:
        """Return the changes of some checkpoints; None if there are none."""
        logged = LoggedOperations(self._codec)
        for index, each in enumerate(self._chain[at:stop]):
            for batch in self._last.of(each).own_changes(portion):
                logged.add(index, batch)
        operations = logged.operations()
        if not operations:
            return None
        if base is None:
            reader = self._last.of(self._chain[at - 1])
            rows = reader.keys(key_groups=portion, include_expired=True)
            before = pa.Table.from_batches(rows, schema=self._layout.table_schema)
            base = one_batch(before, "the state before the changes,")
        times = [as_of_ms(each) for each in self._chain[at:stop]]
        return Window(self._layout, base, operations, times)

    def _window_end(self, at: int, portion: KeyGroupRange) -> int:
        """Return where the checkpoints end that are taken together from *at* on."""
        size = 0.0
        for end in range(at, len(self._chain)):
            if end > at and not is_logged(self._chain[end], portion):
                return end
            for handle in own_log(self._chain[end], portion):
                share = len(handle.key_group_range.intersection(portion))
                size += handle.size_bytes * share / len(handle.key_group_range)
            if end > at and size > _WINDOW_BYTES:
                return end
        return len(self._chain)

    def _compared(
        self, before: CompletedCheckpoint, after: CompletedCheckpoint, portion: KeyGroupRange
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a checkpoint whose log is gone: what differs from the one before."""
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
    """Return what each checkpoint changed, from one to another; see `LocationState.feed`."""
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
