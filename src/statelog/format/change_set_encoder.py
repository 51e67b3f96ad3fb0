"""
Encode a change set in the layout that `change_set` decodes.

A step for each value costs more than a pass over all of them.  So small groups of values of one
length are scattered into one array, and large groups are joined.
Source: Flink, StateChangeFormat.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import InvariantError
from statelog.format.buffers import Buffer, checksum
from statelog.format.change_set import GROUP, INT, INT_SIZE, LONE_CHANGE
from statelog.format.trailer import GroupIndex
from statelog.model import ChangeBatch, StateChangeSet
from statelog.model.state_change import INT32_MAX, ChangeRows, joined_values

_SMALL_GROUP_BYTES: Final = 4096
"""Below this average, a step for each group costs more than one more pass over the values."""


@dataclass(frozen=True, slots=True)
class EncodedChangeSet:
    """
    A change set that is ready to be written.

    Args:
        buffers: The bytes, in pieces to be written one after another.
        size_bytes: Their summed length.
        crc32c: Checksum over them.
        groups: What the set holds, in file order.
    """

    buffers: tuple[Buffer, ...]
    size_bytes: int
    crc32c: int
    groups: GroupIndex


def encode_change_set(
    change_set: StateChangeSet | Sequence[ChangeBatch],
) -> EncodedChangeSet:
    """
    Encode the changes of one set.

    There are several ways to the same bytes; the sizes of groups and values decide for the fastest.
    """
    batches, value_bytes = _checked_batches(change_set)
    if not batches:
        return _finish([INT.pack(0)], INT_SIZE, GroupIndex())
    if all(isinstance(batch, ChangeRows) for batch in batches):
        whole, groups = _encode_rows(batches)
        return _finish([whole], len(whole), groups)
    columns = [batch.key_groups for batch in batches]
    key_groups = columns[0] if len(columns) == 1 else np.concatenate(columns)
    arrays = [batch.values for batch in batches]
    order: npt.NDArray[np.int64] | None = None
    if (key_groups[1:] < key_groups[:-1]).any():
        # int16 makes numpy's stable sort a radix sort; key groups never exceed 32767.
        order = key_groups.astype(np.int16).argsort(kind="stable")
        key_groups = key_groups[order]
    # The changes of a key group follow each other now: where each group begins, and the last ends.
    edges = (key_groups[1:] != key_groups[:-1]).nonzero()[0] + 1
    starts = np.concatenate(([0], edges, [len(key_groups)]))
    present = key_groups[starts[:-1]]
    length = _common_length(arrays)
    if value_bytes // len(present) < _SMALL_GROUP_BYTES:
        if length and length % INT_SIZE == 0:
            return _encode_small_rows(arrays, order, length, present, starts)
        return _encode_small_groups(_in_order(arrays, order), present, starts)
    if order is None and len(present) == len(key_groups):
        return _encode_lone_changes(arrays, present)
    return _encode_large_groups(arrays, order, length, present, starts)


def _checked_batches(
    change_set: StateChangeSet | Sequence[ChangeBatch],
) -> tuple[list[ChangeBatch], int]:
    """Return the batches that are not empty, and the total size of their values."""
    batches = change_set.batches if isinstance(change_set, StateChangeSet) else change_set
    for batch in batches:
        if len(batch.key_groups) != len(batch.values):
            raise InvariantError(
                f"a change set has {len(batch.key_groups)} key groups but {len(batch.values)} "
                "values; nothing was written"
            )
    value_bytes = sum(batch.size_bytes for batch in batches)
    if isinstance(change_set, StateChangeSet) and value_bytes != change_set.size_bytes:
        raise InvariantError(
            f"set {change_set.sqn.value} of writer {change_set.log_id} declares "
            f"{change_set.size_bytes} value bytes but contains {value_bytes}; nothing was written"
        )
    return [batch for batch in batches if len(batch)], value_bytes


def _encode_large_groups(
    arrays: Sequence[pa.Array],
    order: npt.NDArray[np.int64] | None,
    length: int,
    present: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
) -> EncodedChangeSet:
    """Encode each group as two pieces: its header, and its slice of a body for all groups."""
    if length:
        body = _scattered(arrays, order, length)
        bounds = (starts * (INT_SIZE + length)).tolist()
    else:
        values = _in_order(arrays, order)
        lengths, sums = _lengths(values)
        bounds = (sums[starts] + INT_SIZE * starts).tolist()
        prefixes = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(INT_SIZE), len(values), [None, pa.py_buffer(lengths.astype(">i4"))]
        )
        body = _woven(prefixes, values, bounds[-1])
    counts = starts[1:] - starts[:-1]
    headers = np.stack([counts, present], axis=1).astype(">i4").tobytes()
    pieces: list[Buffer] = [INT.pack(len(present))]
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        pieces.append(headers[index * GROUP.size : (index + 1) * GROUP.size])
        pieces.append(body[start:end])
    size_bytes = INT_SIZE + len(headers) + bounds[-1]
    return _finish(pieces, size_bytes, GroupIndex.of(present, counts, np.diff(bounds) + GROUP.size))


def _encode_rows(batches: Iterable[ChangeBatch]) -> tuple[bytes, GroupIndex]:
    """Encode a change set; return its bytes and its groups."""
    groups: dict[int, list[bytes]] = {}
    for batch in batches:
        for key_group, value in batch:
            groups.setdefault(key_group, []).append(value)
    pieces = [INT.pack(len(groups))]
    index = []
    for key_group in sorted(groups):
        values = groups[key_group]
        pieces.append(GROUP.pack(len(values), key_group))
        size = GROUP.size + INT_SIZE * len(values)
        for value in values:
            pieces += (INT.pack(len(value)), value)
            size += len(value)
        index.append((key_group, len(values), size))
    return b"".join(pieces), GroupIndex.of_rows(index)


def _encode_lone_changes(
    arrays: Sequence[pa.Array], present: npt.NDArray[np.int32]
) -> EncodedChangeSet:
    """
    Encode groups of a single change each, in order, copying every value only once.

    Spark's tasks write such sets: all changes of a variable in a key group are one Arrow batch.
    """
    key_groups = iter(present.tolist())
    pieces: list[Buffer] = [INT.pack(len(present))]
    lengths = []
    for values in arrays:
        data = _data(values).data
        for start, end in itertools.pairwise(_lengths(values)[1].tolist()):
            pieces += (LONE_CHANGE.pack(1, next(key_groups), end - start), data[start:end])
            lengths.append(end - start)
    whole = b"".join(pieces)
    sizes = np.array(lengths, np.int64) + LONE_CHANGE.size
    return _finish([whole], len(whole), GroupIndex.of(present, np.ones_like(sizes), sizes))


def _encode_small_groups(
    values: pa.Array, present: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]
) -> EncodedChangeSet:
    """Encode headers and lengths as a single column, without a loop over groups."""
    lengths, sums = _lengths(values)
    counts = np.diff(starts)
    ordinals = np.arange(len(present))
    at_length = np.arange(len(values)) + 2 * (np.repeat(ordinals, counts) + 1)
    at_header = starts[:-1] + 2 * ordinals
    words = np.empty(len(values) + 2 * len(present), dtype=">i4")
    words[at_length] = lengths
    words[at_header] = counts
    words[at_header + 1] = present
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    offsets[1:] = (at_length + 1) * INT_SIZE
    prefixes = pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(words)]
    )
    sizes = np.diff(sums[starts]) + INT_SIZE * counts
    size_bytes = int(sizes.sum()) + GROUP.size * len(present)
    pieces: list[Buffer] = [INT.pack(len(present)), _woven(prefixes, values, size_bytes)]
    return _finish(
        pieces, INT_SIZE + size_bytes, GroupIndex.of(present, counts, sizes + GROUP.size)
    )


def _encode_small_rows(
    arrays: Sequence[pa.Array],
    order: npt.NDArray[np.int64] | None,
    length: int,
    present: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
) -> EncodedChangeSet:
    """
    Encode values of a fixed length, a multiple of four bytes, with headers between them.

    Every value is copied once, from the caller's array to the buffer that is written.
    """
    value_words = length // INT_SIZE
    counts = starts[1:] - starts[:-1]
    ordinals = np.arange(len(present))
    at_header = starts[:-1] * (1 + value_words) + 2 * ordinals
    at_length = np.arange(starts[-1]) * (1 + value_words) + (2 * ordinals + 2).repeat(counts)
    num_words = int(starts[-1]) * (1 + value_words) + 2 * len(present)
    # Arrow's memory pool keeps its pages; fresh ones from the system cost more than the copy.
    buffer = pa.allocate_buffer(num_words * INT_SIZE)
    words = np.frombuffer(buffer, dtype=">i4")
    words[at_header] = counts
    words[at_header + 1] = present
    words[at_length] = length
    places = at_length
    if order is not None:
        places = np.empty(len(at_length), dtype=np.int64)
        places[order] = at_length
    # Item i of this view is the value whose length is at word i: the items overlap, the values do not.
    value = np.dtype((np.void, length))
    values_at = np.ndarray(num_words - value_words, value, buffer, INT_SIZE, INT_SIZE)
    row = 0
    for values in arrays:
        values_at[places[row : row + len(values)]] = _data(values).view(value)
        row += len(values)
    sizes = counts * ((1 + value_words) * INT_SIZE) + GROUP.size
    pieces: list[Buffer] = [INT.pack(len(present)), memoryview(buffer).cast("B")]
    return _finish(pieces, INT_SIZE + len(buffer), GroupIndex.of(present, counts, sizes))


def _finish(pieces: list[Buffer], size: int, groups: GroupIndex) -> EncodedChangeSet:
    written = sum(map(len, pieces))
    if written != size:
        raise InvariantError(
            f"a change set of {size} bytes was encoded in {written} bytes; nothing was written"
        )
    return EncodedChangeSet(tuple(pieces), size, checksum(pieces), groups)


def _offsets(values: pa.Array) -> npt.NDArray[np.int32 | np.int64]:
    wide = pa.types.is_large_binary(values.type)
    kind = np.int64 if wide else np.int32
    offsets: npt.NDArray[np.int32 | np.int64] = np.frombuffer(values.buffers()[1], dtype=kind)
    return offsets[values.offset : values.offset + len(values) + 1]


def _data(values: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the concatenated bytes of all values."""
    offsets = _offsets(values)
    start = int(offsets[0])
    end = int(offsets[-1])
    return np.frombuffer(values.buffers()[2], dtype=np.uint8)[start:end]


def _lengths(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the length of each value, and the cumulative sums of the lengths."""
    offsets = _offsets(values).astype(np.int64)
    return np.diff(offsets), offsets - offsets[0]


def _common_length(arrays: Sequence[pa.Array]) -> int:
    """Return the length that all values have in common, or 0 if they differ."""
    first = -1
    for values in arrays:
        offsets = _offsets(values)
        if first < 0:
            first = int(offsets[1]) - int(offsets[0])
        if (offsets[1:] - offsets[:-1] != first).any():
            return 0
    return first


def _in_order(arrays: Sequence[pa.Array], order: npt.NDArray[np.int64] | None) -> pa.Array:
    """Return all values as a single array, in the order *order*."""
    values = joined_values(arrays)
    return values if order is None else values.take(pa.array(order))


def _scattered(
    arrays: Sequence[pa.Array], order: npt.NDArray[np.int64] | None, length: int
) -> memoryview:
    """
    Return values of a fixed length in the order *order*, each after its length.

    Every value is copied once, from the caller's array to the buffer that is written.
    """
    total = sum(len(array) for array in arrays)
    # Arrow's memory pool keeps its pages; fresh ones from the system cost more than the copy.
    buffer = pa.allocate_buffer(total * (INT_SIZE + length))
    body = np.frombuffer(buffer, dtype=np.uint8).reshape(total, INT_SIZE + length)
    body[:, :INT_SIZE] = np.frombuffer(INT.pack(length), dtype=np.uint8)
    row = 0
    if order is not None:
        places = np.empty(total, dtype=np.int64)
        places[order] = np.arange(total)
    for values in arrays:
        rows = slice(row, row + len(values))
        data = _data(values).reshape(-1, length)
        body[rows if order is None else places[rows], INT_SIZE:] = data
        row += len(values)
    return memoryview(body.reshape(-1).data)


def _woven(prefixes: pa.Array, values: pa.Array, size_bytes: int) -> memoryview:
    """Concatenate, for every row, its prefix and its value."""
    wide = pa.types.is_large_binary(values.type) or size_bytes > INT32_MAX
    kind = pa.large_binary() if wide else pa.binary()
    woven = pc.binary_join_element_wise(
        prefixes.cast(kind), values.cast(kind), pa.scalar(b"", kind)
    )
    buffer = woven.buffers()[2]
    return memoryview(buffer if buffer is not None else b"").cast("B")[:size_bytes]
