"""
Split a task's input into parts that fit in memory.

A task reads its rows up to a bound and processes them at once, which is enough for nearly every
micro-batch.  Above the bound it writes all rows to a file on the local disk, separated by key
group, and reads them back a few key groups at a time, in ascending order.  The rows of a key are
processed in order of arrival, as without the bound.  Only the keys of a key group that exceeds
the bound by itself have another order: its rows are separated by the hash of their key.  The rows
of one key that exceed the bound are read on demand of the processor.

Spark does not sort: the size of the input is unknown before it is read, an unconditional sort would
cost every micro-batch, and the processor needs the rows of a key together, not in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import InvariantError
from statelog.format.arrow_limits import joined_batches
from statelog.model import KeyGroupRange
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.interface import KeyedInput, RowLike
from statelog.spark.rows.key_order import key_order
from statelog.spark.rows.layout import INPUT_ROWS, InputLayout
from statelog.spark.worker.spill_file import Piece, SpillFile
from statelog.spark.worker.task_input import Part, Side
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds import Key

_SLICE_ROWS = 16_384
_CHUNKS = 12
"""Rows are separated in chunks of the bound divided by this."""
_SLOTS = 256
_SPLIT = 64
_HEAVY = 0.2
"""A key with this share of a key group's rows is separated from the others."""
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))


# Read the rows of one key that do not fit in memory.


class HugeKeyInput:
    """The rows of one key, or of a few keys, on the local disk."""

    def __init__(
        self,
        layout: InputLayout,
        key_codec: KeyCodec,
        row_format: RowFormat,
        batches: Callable[[], Iterable[pa.RecordBatch]],
    ) -> None:
        self._layout = layout
        self._codec = key_codec
        self._row_format = row_format
        self._batches = batches
        self.row_count = 0
        self._keys: dict[int, dict[Key, Key]] = {}
        for batch in batches():
            self._find_keys(batch)

    def _find_keys(self, batch: pa.RecordBatch) -> None:
        self.row_count += batch.num_rows
        groups = batch.column(0).to_numpy()
        columns = [batch.column(position) for position in self._layout.key_positions]
        order = key_order(groups, columns, self._codec)
        # Read one row of each key: the row format decides how the processor gets the key.
        keys_shown = self._row_format.input(self._layout, self._codec)
        keys_shown.read([batch.take(pa.array(order.firsts))])
        for key_group in keys_shown.key_groups():
            keys = self._keys.setdefault(key_group, {})
            for key, as_shown, _ in keys_shown.keys(key_group):
                keys.setdefault(key, as_shown)

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Raise an error, because the rows are already on disk."""
        raise InvariantError("the rows of a huge key must be read from the task's file")

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, in ascending order."""
        return sorted(self._keys)

    def table_keys(self, key_group: int) -> list[Key]:
        """Return the keys in the form in which tables store them."""
        return list(self._keys.get(key_group, {}))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """Yield each key in both of its forms, with its rows."""
        for key, key_object in self._keys.get(key_group, {}).items():
            yield key, key_object, self.rows_of(key_group, key)

    def rows_of(self, key_group: int, key: Key) -> Iterator[RowLike]:
        """Yield the rows of a key; each call creates new objects."""
        for batch in _rebatched(self.batches_of(key), self._row_format.rows_at_once or _SLICE_ROWS):
            slice_input = self._row_format.input(self._layout, self._codec)
            slice_input.read([batch])
            for _, _, rows in slice_input.keys(key_group):
                yield from rows

    def batches_of(self, key: Key) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a key in the order in which they arrived."""
        # Usually these rows have one key, and no row has to be looked at.
        is_only_key = sum(map(len, self._keys.values())) == 1
        for batch in self._batches():
            if is_only_key:
                yield batch
                continue
            columns = [batch.column(position) for position in self._layout.key_positions]
            order = key_order(batch.column(0).to_numpy(), columns, self._codec)
            firsts = pa.array(order.firsts)
            keys = self._codec.decode([column.take(firsts) for column in columns])
            for number, batch_key in enumerate(keys):
                if batch_key == key:
                    yield batch.take(
                        pa.array(order.rows[order.bounds[number] : order.bounds[number + 1]])
                    )


def _rebatched(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of *rows* rows; only the last batch may be smaller."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            rows_before = batch.slice(0, rows - count)
            batch = batch.slice(rows_before.num_rows)
            waiting.append(rows_before)
            count += rows_before.num_rows
            if count == rows:
                yield joined_batches(waiting, INPUT_ROWS)
                waiting = []
                count = 0
    if waiting:
        yield joined_batches(waiting, INPUT_ROWS)


@dataclass(slots=True)
class _Slot:
    """The pieces of the file that hold the rows of some key groups."""

    pieces: list[list[Piece]] = field(default_factory=lambda: [[], []])

    @property
    def cost(self) -> int:
        return sum(piece.cost for side in self.pieces for piece in side)


class LargeInput:
    """The rows of a task on the local disk, split into parts."""

    def __init__(
        self,
        sides: Sequence[Side],
        row_format: RowFormat,
        key_codec: KeyCodec,
        key_group_range: KeyGroupRange,
        part_bytes: int,
        file: SpillFile,
    ) -> None:
        self._sides = sides
        self._row_format = row_format
        self._codec = key_codec
        self._range = key_group_range
        self._part_bytes = part_bytes
        self._chunk_bytes = part_bytes // _CHUNKS
        self._file = file
        self._schemas: list[pa.Schema | None] = [None, None]
        self._slots = [_Slot() for _ in range(min(len(key_group_range), _SLOTS))]
        self.row_count = 0

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write all rows to the file."""
        waiting: list[list[pa.RecordBatch]] = [[] for _ in self._sides]
        size = 0
        for batch in batches:
            for side, batches_of_side in zip(self._sides, waiting, strict=True):
                picked = side.pick(batch)
                if picked.num_rows:
                    batches_of_side.append(picked)
            size += batch.nbytes
            if size >= self._chunk_bytes:
                self._write(waiting)
                waiting = [[] for _ in self._sides]
                size = 0
        self._write(waiting)

    def _write(self, waiting: Sequence[Sequence[pa.RecordBatch]]) -> None:
        for number, batches_of_side in enumerate(waiting):
            if not batches_of_side:
                continue
            self._schemas[number] = batches_of_side[0].schema
            batch = joined_batches(batches_of_side, INPUT_ROWS)
            groups = batch.column(0).to_numpy()
            if number == 0:
                self.row_count += len(groups)
            # Neighbouring key groups share a slot where there are more of them than slots.
            slots = (groups.astype(np.int64) - self._range.start) * len(self._slots)
            self._write_apart(number, batch, slots // len(self._range), self._slots)

    def _write_apart(
        self,
        number: int,
        batch: pa.RecordBatch,
        places: npt.NDArray[np.int64],
        slots: Sequence[_Slot],
    ) -> None:
        """
        Write each row of a batch to the slot for its key group.

        A slot keeps their order.
        """
        # Sorted by slot, then cut: each slot gets one contiguous piece.
        row_cost = self._row_format.cost(batch) / batch.num_rows
        order = np.argsort(places.astype(np.uint16), kind="stable")
        in_order = places[order]
        bounds = np.searchsorted(in_order, np.arange(len(slots) + 1)).tolist()
        batch = batch.take(pa.array(order))
        for slot, start, end in zip(slots, bounds[:-1], bounds[1:], strict=True):
            if end > start:
                slot_rows = batch.slice(start, end - start)
                piece = self._file.write_batch(slot_rows, int(row_cost * (end - start)) + 1)
                slot.pieces[number].append(piece)

    def parts(self) -> Iterator[Part]:
        """
        Yield parts whose size does not exceed the limit.

        A larger part has the rows of one key.
        """
        slots = self._slots
        self._slots = []
        yield from self._parts(slots, 0)

    def _parts(self, slots: Sequence[_Slot], level: int) -> Iterator[Part]:
        waiting: list[_Slot] = []
        size = 0
        for slot in slots:
            cost = slot.cost
            # Slots are joined while they fit; one that does not fit by itself is split.
            if waiting and size + cost > self._part_bytes:
                yield self._part(waiting)
                waiting = []
                size = 0
            if cost > self._part_bytes:
                yield from self._split(slot, level)
            elif cost:
                waiting.append(slot)
                size += cost
        if waiting:
            yield self._part(waiting)

    def _part(self, slots: Sequence[_Slot]) -> Part:
        inputs = [
            self._input(number, [piece for slot in slots for piece in slot.pieces[number]])
            for number in range(len(self._sides))
        ]
        return Part(inputs[0], inputs[1] if len(inputs) > 1 else None, is_whole=False)

    def _input(self, number: int, pieces: Sequence[Piece]) -> KeyedInput:
        keyed_input = self._row_format.input(self._sides[number].layout, self._codec)
        keyed_input.read(self._batches(number, pieces))
        return keyed_input

    def _batches(self, number: int, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        schema = self._schemas[number]
        if schema is not None:
            for piece in pieces:
                yield self._file.read_batch(piece, schema)

    def _split(self, slot: _Slot, level: int) -> Iterator[Part]:
        """Split the rows in a slot by the hash of their keys."""
        # Twice as many places as are needed: hashes do not divide rows evenly.
        count = min(_SPLIT, 2 * -(-slot.cost // self._part_bytes))
        heavy = self._heavy_hashes(slot)
        slots = [_Slot() for _ in range(count + len(heavy))]
        for number, pieces in enumerate(slot.pieces):
            for batch in _chunks(self._batches(number, pieces), self._chunk_bytes):
                hashes = self._hashes(number, batch)
                # A different mix at each level, or all rows of a place would meet again at the next
                # one.
                mixed = (hashes * _MIX[level % len(_MIX)]) >> np.uint64(32)
                places = ((mixed * np.uint64(count)) >> np.uint64(32)).astype(np.int64)
                place = np.searchsorted(heavy, hashes)
                if len(heavy):
                    place = np.minimum(place, len(heavy) - 1)
                    places = np.where(heavy[place] == hashes, count + place, places)
                self._write_apart(number, batch, places, slots)
        filled = [part_slot for part_slot in slots[:count] if part_slot.cost]
        apart = [key_slot for key_slot in slots[count:] if key_slot.cost]
        # Rows that no hash separates have one key.
        if len(filled) == 1 and not apart and level + 1 >= len(_MIX):
            yield self._of_one_key(filled[0])
        else:
            yield from self._parts(filled, level + 1)
        for slot_apart in apart:
            yield (
                self._of_one_key(slot_apart)
                if slot_apart.cost > self._part_bytes
                else self._part([slot_apart])
            )

    def _heavy_hashes(self, slot: _Slot) -> npt.NDArray[np.uint64]:
        """Return the hashes that have many rows in a slot, in ascending order."""
        # A sample of the pieces is enough to find the keys with a large share.
        total = 0
        counts: dict[int, int] = {}
        for number, pieces in enumerate(slot.pieces):
            for batch in self._batches(number, pieces[: 1 + len(pieces) // 4]):
                total += batch.num_rows
                hashes, counts_of_hashes = np.unique(
                    self._hashes(number, batch), return_counts=True
                )
                for index in np.flatnonzero(counts_of_hashes >= _HEAVY * batch.num_rows).tolist():
                    counts[int(hashes[index])] = counts.get(int(hashes[index]), 0) + int(
                        counts_of_hashes[index]
                    )
        large = [heavy_hash for heavy_hash, count in counts.items() if count >= _HEAVY / 2 * total]
        return np.array(sorted(large), np.uint64)

    def _hashes(self, number: int, batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
        columns = [batch.column(position) for position in self._sides[number].layout.key_positions]
        return hash_columns(columns, self._codec.schema)

    def _of_one_key(self, slot: _Slot) -> Part:
        if not self._row_format.splits_keys:
            return self._part([slot])
        inputs = [
            HugeKeyInput(
                side.layout,
                self._codec,
                self._row_format,
                lambda number=number: self._batches(number, slot.pieces[number]),  # type: ignore[misc]
            )
            for number, side in enumerate(self._sides)
        ]
        return Part(inputs[0], inputs[1] if len(inputs) > 1 else None, is_whole=False)


def _chunks(batches: Iterable[pa.RecordBatch], chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """Merge many small batches into fewer large ones."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= chunk_bytes:
            yield joined_batches(waiting, INPUT_ROWS)
            waiting = []
            size = 0
    if waiting:
        yield joined_batches(waiting, INPUT_ROWS)
