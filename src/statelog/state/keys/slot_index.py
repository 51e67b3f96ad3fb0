"""
A hash table from keys to slots that processes whole batches of keys.

The table is an array of cells, each empty or with a slot.  The search for a key starts at the cell
that the upper bits of its hash name, and takes the next cell until it finds the hash of the key or
an empty cell (open addressing with linear probing).  All keys of a batch take a step at
once: a batch is a few passes of numpy over shrinking arrays, and no key is a Python object.
A byte of the hash next to each cell, its mark, tells most other keys apart without their hash.
Lower bits of the hash would not do: they choose the key group, and a task has only some of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.model import KeyGroupRange
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.entry_heap import EntryHeap, taken
from statelog.state.keys.key_groups import SEED
from statelog.state.keys.key_hash import Hashes, is_one_to_one
from statelog.state.kinds.kind import RowNumbers

Slots: TypeAlias = npt.NDArray[np.int64]
_Cells: TypeAlias = npt.NDArray[np.int64]
_Marks: TypeAlias = npt.NDArray[np.uint8]
_Number = TypeVar("_Number", bound=np.generic)

NO_SLOT: Final = -1
_EMPTY: Final = np.uint8(0)
_MIN_BITS: Final = 8
_CELLS_PER_KEY: Final = 2
"""Minimum cells per key; with fewer, runs of taken cells get long."""
_BLOCK: Final = 1 << 18
"""Keys or cells per step of a full scan; bounds temporary memory."""


class SlotIndex:
    """
    Maps keys to slots, which are row numbers in state columns.

    Slots are given in ascending order from 0, without gaps.
    """

    def __init__(self, key_schema: pa.Schema, capacity: int = 0) -> None:
        self._schema = key_schema
        self._one_to_one = is_one_to_one(key_schema)
        self._keys = KeyColumns(key_schema)
        self._hashes: Hashes = np.empty(max(capacity, 1), np.uint64)
        self._key_groups = np.empty(len(self._hashes), np.uint16)
        self._new_table(capacity)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Memory use of the index in bytes, including the keys."""
        own_bytes = (
            self._table.nbytes + self._marks.nbytes + self._hashes.nbytes + self._key_groups.nbytes
        )
        return own_bytes + self._keys.nbytes

    def find(self, keys: Sequence[pa.Array], hashes: Hashes) -> Slots:
        """Return the slot of each key, or -1 for a key without a slot."""
        return self._search(keys, hashes)[0]

    def add(
        self,
        keys: Sequence[pa.Array],
        hashes: Hashes,
        key_groups: npt.NDArray[np.int32],
    ) -> Slots:
        """Return the slot of each key; assign the next free slots to keys without a slot."""
        # 1. The slots of known keys, and the empty cell where each search for a new one ended.
        slots, cells = self._search(keys, hashes)
        new = np.flatnonzero(slots == NO_SLOT)
        if len(new):
            added = hashes[new]
            # 2. Append the new keys to the columns.
            first = self._append(keys, new, added, key_groups[new])
            numbers = np.arange(first, first + len(new))
            slots[new] = numbers
            # 3. Enter them in the table; in a new table the cells of before mean nothing.
            grown = self._fit_table(first + len(new))
            self._insert(numbers, added, self._home(added) if grown else cells[new])
        return slots

    def keys(self, slots: Slots) -> list[pa.Array]:
        """Return the key columns of *slots*, in order."""
        return self._keys.take(slots)

    def hashes(self, slots: Slots) -> Hashes:
        """Return the hash of the key in each slot."""
        return self._hashes[slots]

    def key_groups(self, slots: Slots) -> npt.NDArray[np.int32]:
        """Return the key group of the key in each slot."""
        return self._key_groups[slots].astype(np.int32)

    @property
    def all_key_groups(self) -> npt.NDArray[np.int32]:
        """The key group of the key in each slot, starting with slot 0."""
        return self._key_groups[: len(self)].astype(np.int32)

    def slots_in(self, key_group_range: KeyGroupRange) -> Slots:
        """Return the slots whose keys are in some key groups."""
        return np.flatnonzero(are_in(self._key_groups[: len(self)], key_group_range))

    def keep(self, slots: Slots) -> SlotIndex:
        """
        Return an index of only the keys in *slots*, renumbered 0, 1, ... in that order.

        This index stays as it is.
        """
        smaller = SlotIndex(self._schema, len(slots))
        for start in range(0, len(slots), _BLOCK):
            block = slots[start : start + _BLOCK]
            hashes = self._hashes[block]
            rows = np.arange(len(block))
            first = smaller._append(self._keys.take(block), rows, hashes, self._key_groups[block])
            smaller._insert(first + rows, hashes, smaller._home(hashes))
        return smaller

    def _home(self, hashes: Hashes) -> _Cells:
        """Return the cell at which the search for each hash starts."""
        return (hashes >> self._shift).view(np.int64)

    def _search(self, keys: Sequence[pa.Array], hashes: Hashes) -> tuple[Slots, _Cells]:
        """Return the slot of each key, and the cell at which its search ended."""
        cells = self._home(hashes)
        slots = self._walk(hashes, cells)
        if self._one_to_one:  # only a null shares another key's hash
            hits = np.flatnonzero((hashes == SEED) & (slots != NO_SLOT))
        else:
            hits = np.flatnonzero(slots != NO_SLOT)
        # A slot was found by its hash alone: compare the keys, and go on where they differ.
        while len(hits):
            columns = keys if len(hits) == len(hashes) else taken(keys, hits)
            other = hits[~self._keys.equal(slots[hits], columns)]
            # Another key with the same hash: the search continues after it.
            ends = (cells[other] + 1) & self._mask
            slots[other] = self._walk(hashes[other], ends)
            cells[other] = ends
            hits = other[slots[other] != NO_SLOT]
        return slots, cells

    def _walk(self, hashes: Hashes, cells: _Cells) -> Slots:
        """
        Advance each search to a cell that is empty or whose key has the same hash.

        Returns:
            The slots of these cells, -1 for empty ones.
        """
        slots: Slots = np.full(len(hashes), NO_SLOT)
        sought = _marks_of(hashes)
        # Rows that still search; those at an empty cell have ended.
        rows = np.flatnonzero(self._skip(sought, cells))
        ends = cells.take(rows)
        while len(rows):
            stored = self._table.take(ends)
            slots[rows] = stored
            # The mark was right and the hash is not: about one in 128 of the other keys.
            other = np.flatnonzero(self._hashes.take(stored) != hashes.take(rows))
            rows = rows.take(other)
            ends = (ends.take(other) + 1) & self._mask
            slots[rows] = NO_SLOT
            marks = self._skip(sought.take(rows), ends)
            cells[rows] = ends
            marked = np.flatnonzero(marks)
            rows = rows.take(marked)
            ends = ends.take(marked)
        return slots

    def _skip(self, wanted: _Marks, cells: _Cells) -> _Marks:
        """Advance each search to an empty cell or one with the same mark; return the marks."""
        marks: _Marks = self._marks.take(cells)
        # Most searches end at their first cell, so the arrays shrink fast.
        rows = np.flatnonzero((marks != wanted) & (marks != _EMPTY))
        ends = cells.take(rows)
        sought = wanted.take(rows)
        while len(rows):
            ends = (ends + 1) & self._mask
            next_marks = self._marks.take(ends)
            cells[rows] = ends
            marks[rows] = next_marks
            going = np.flatnonzero((next_marks != sought) & (next_marks != _EMPTY))
            rows = rows.take(going)
            ends = ends.take(going)
            sought = sought.take(going)
        return marks

    def _append(
        self,
        keys: Sequence[pa.Array],
        rows: Slots,
        hashes: Hashes,
        key_groups: npt.NDArray[np.int32] | npt.NDArray[np.uint16],
    ) -> int:
        """Append keys to the columns, but not to the table; return the slot of the first key."""
        first = len(self._keys)
        end = first + len(rows)
        self._keys.append(keys, rows)  # first, for it may raise
        if end > len(self._hashes):
            size = max(end, 2 * len(self._hashes))
            self._hashes = _grown(self._hashes, first, size)
            self._key_groups = _grown(self._key_groups, first, size)
        self._hashes[first:end] = hashes
        self._key_groups[first:end] = key_groups
        return first

    def _insert(self, slots: Slots, hashes: Hashes, cells: _Cells) -> None:
        """Insert slots at the first empty cells, starting at *cells*."""
        marks = _marks_of(hashes)
        while len(slots):
            free = np.flatnonzero(self._marks.take(cells) == _EMPTY)
            taken = cells.take(free)
            self._table[taken] = slots.take(free)
            self._marks[taken] = marks.take(free)
            # Of several slots for one cell, numpy keeps the last one; the others move on.  So does
            # the mark: it is written in the same order.
            moving = np.flatnonzero(self._table.take(cells) != slots)
            slots = slots.take(moving)
            marks = marks.take(moving)
            cells = (cells.take(moving) + 1) & self._mask

    def _fit_table(self, keys: int) -> bool:
        """Enlarge the table so that *keys* fit, if necessary; return whether it was rebuilt."""
        if keys * _CELLS_PER_KEY <= len(self._table):
            return False
        old = self._table
        self._new_table(keys)
        # The keys of neighbouring cells have neighbouring homes: the new table is filled in order.
        for start in range(0, len(old), _BLOCK):
            cells = old[start : start + _BLOCK]
            slots = cells[cells != NO_SLOT].astype(np.int64)
            hashes = self._hashes[slots]
            self._insert(slots, hashes, self._home(hashes))
        return True

    def _new_table(self, keys: int) -> None:
        # A power of two: the home of a hash is its upper bits, and the next cell a mask.
        bits = max((keys * _CELLS_PER_KEY - 1).bit_length(), _MIN_BITS)
        self._table = np.full(1 << bits, NO_SLOT, np.int32)
        self._marks: _Marks = np.full(1 << bits, _EMPTY)
        self._mask = (1 << bits) - 1
        self._shift = np.uint64(64 - bits)


def _marks_of(hashes: Hashes) -> _Marks:
    # Of bits that choose neither the key group nor, in tables of up to 2^40 cells, the cell.
    marks: _Marks = (hashes >> np.uint64(16)).astype(np.uint8)
    marks |= np.uint8(1)
    return marks


def are_in(
    key_groups: npt.NDArray[np.int32] | npt.NDArray[np.uint16], key_group_range: KeyGroupRange
) -> npt.NDArray[np.bool_]:
    """Return a mask of the key groups that are in a range."""
    return (key_groups >= key_group_range.start) & (key_groups <= key_group_range.end)


def _grown(array: npt.NDArray[_Number], used: int, size: int) -> npt.NDArray[_Number]:
    larger = np.empty(size, array.dtype)
    larger[:used] = array[:used]
    return larger


class KeyColumns:
    """
    The keys of an index, in append-only Arrow columns with one row per key.

    Keys are equal as the dict tables see them: a null is a key, all NaNs are one key, and 0.0 and
    -0.0 are one key.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._keys = EntryHeap(list(schema), "key column")

    def __len__(self) -> int:
        return self._keys.count

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""
        return self._keys.nbytes

    def append(self, columns: Sequence[pa.Array], rows: RowNumbers) -> None:
        """Append the given rows of *columns*."""
        self._keys.append(taken(columns, rows))

    def take(self, rows: RowNumbers) -> list[pa.Array]:
        """Return the key columns of these rows, in order."""
        return self._keys.take(rows)

    def equal(self, rows: RowNumbers, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return whether each of *rows* has the same key as its position in *columns*."""
        result = np.ones(len(rows), np.bool_)
        for index, (stored, asked) in enumerate(zip(self.take(rows), columns, strict=True)):
            same = _equal(stored, asked)
            # Arrow cannot compare these types, so the keys are compared as Python values.
            if same is None:
                codec = KeyCodec(pa.schema([self.schema.field(index)]))
                pairs = zip(codec.decode([stored]), codec.decode([asked]), strict=True)
                same = np.fromiter((a == b for a, b in pairs), np.bool_, len(stored))
            result &= same
        return result


def _equal(stored: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return where two columns are equal, or None if Arrow cannot compare their type."""
    if pa.types.is_struct(stored.type):
        result: npt.NDArray[np.bool_] = pc.equal(stored.is_null(), right.is_null()).to_numpy(
            zero_copy_only=False
        )
        # The fields of a null are null.
        for field, other in zip(stored.flatten(), right.flatten(), strict=True):
            same_field = _equal(field, other)
            if same_field is None:
                return None
            result = result & same_field
        return result
    if pa.types.is_nested(stored.type):
        return None
    try:
        same = pc.equal(stored, right)
    except pa.ArrowNotImplementedError:
        return None
    if pa.types.is_floating(stored.type):
        same = pc.or_(same, pc.and_(pc.is_nan(stored), pc.is_nan(right)))
    if same.null_count:
        both = pc.and_(stored.is_null(), right.is_null())
        same = pc.if_else(same.is_null(), both, same)
    equal: npt.NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
    return equal
