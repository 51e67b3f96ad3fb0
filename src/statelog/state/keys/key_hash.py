"""
Compute Spark's `xxhash64` for whole columns of keys with NumPy.

It gives the same numbers as `statelog.state.keys.key_groups`, for many keys at once.  Rows are
hashed in blocks that fit the processor's cache.  Strings and binaries are grouped by length: those
of one length are a matrix of bytes, whose lanes of 8, 4 and 1 bytes are columns.
Source: XXH64 by Yann Collet; Spark's XxHash64Function, see `key_groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import UsageError
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.key_groups import SEED, value_hasher

Hashes: TypeAlias = npt.NDArray[np.uint64]
_Words: TypeAlias = npt.NDArray[Any]

_BLOCK: Final = 16_384
_LONG_DIGITS: Final = 18
_U64: Final = np.uint64
_P1: Final = _U64(0x9E3779B185EBCA87)
_P2: Final = _U64(0xC2B2AE3D27D4EB4F)
_P3: Final = _U64(0x165667B19E3779F9)
_P4: Final = _U64(0x85EBCA77C2B2AE63)
_P5: Final = _U64(0x27D4EB2F165667C5)


def hash_columns(columns: Sequence[pa.Array], schema: pa.Schema) -> Hashes:
    """
    Return the hash of each key as an unsigned number.

    Lists and maps in keys, whose hash only Spark can compute, are hashed in our own way: the result
    finds keys, but does not give their key group.
    """
    length = len(columns[0]) if columns else 0
    # The hash of a column is the seed of the next one; a null leaves the seed as it is.
    hashes = np.full(length, SEED, _U64)
    for column, field in zip(columns, schema, strict=True):
        hasher = _hasher(field.type) or _by_value(field)
        for start in range(0, length, _BLOCK):
            block = column.slice(start, _BLOCK)
            seeds = hashes[start : start + _BLOCK]
            new = hasher(block, seeds)
            if block.null_count:
                valid = block.is_valid().to_numpy(zero_copy_only=False)
                np.copyto(seeds, new, where=valid)
            else:
                seeds[:] = new
    return hashes


def is_one_to_one(schema: pa.Schema) -> bool:
    """
    Return whether different keys of these types always have different hashes.

    So it is for one column of at most 64 bits: every step of its hash can be undone.  A null is the
    exception: its hash is the seed, which is also the hash of one of the values.
    """
    if len(schema) != 1:
        return False
    kind = schema.field(0).type
    hasher = None if pa.types.is_struct(kind) else _hasher(kind)
    return hasher is not None and hasher is not _bytes


_ColumnHasher: TypeAlias = "Callable[[pa.Array, Hashes], Hashes]"


def _hasher(kind: pa.DataType) -> _ColumnHasher | None:
    """Return a hash function for whole columns of this type, or None."""
    if pa.types.is_decimal128(kind):
        return _decimals if kind.precision <= _LONG_DIGITS else None
    if pa.types.is_struct(kind):
        return _struct(kind)
    for matches, hasher in _HASHERS:
        if matches(kind):
            return hasher
    return None


def _struct(kind: pa.StructType) -> _ColumnHasher | None:
    """
    Return a hash function for structs, such as time windows.

    The hash of the fields, one after the other.
    """
    hashers = [_hasher(kind.field(index).type) for index in range(kind.num_fields)]
    present = [hasher for hasher in hashers if hasher is not None]
    if len(present) < len(hashers):
        return None

    def hash_fields(column: pa.Array, seeds: Hashes) -> Hashes:
        hashes = seeds.copy()
        for child, hasher in zip(column.flatten(), present, strict=True):
            new = hasher(child, hashes)
            if child.null_count:
                np.copyto(hashes, new, where=child.is_valid().to_numpy(zero_copy_only=False))
            else:
                hashes = new
        return hashes

    return hash_fields


def _by_value(field: pa.Field) -> _ColumnHasher:
    """Return a hash function that hashes values one by one, for large decimals and nested types."""
    try:
        hash_value = value_hasher(field.type)
    except UsageError:
        return _by_text(field)

    def hash_values(column: pa.Array, seeds: Hashes) -> Hashes:
        pairs = zip(column.to_pylist(), seeds.tolist(), strict=True)
        new = [seed if value is None else hash_value(value, seed) for value, seed in pairs]
        return np.array(new, _U64)

    return hash_values


def _by_text(field: pa.Field) -> _ColumnHasher:
    codec = KeyCodec(pa.schema([field]))

    def hash_texts(column: pa.Array, seeds: Hashes) -> Hashes:
        texts = [repr(key) for key in codec.decode([column])]
        return _bytes(pa.array(texts, pa.string()), seeds)

    return hash_texts


def _numbers(column: pa.Array, to: pa.DataType | None = None) -> _Words:
    """Convert a fixed-width column to NumPy; nulls become arbitrary numbers."""
    if to is not None:
        column = column.cast(to)
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(0, column.type))
    numbers: _Words = column.to_numpy(zero_copy_only=False)
    return numbers


def _ints(column: pa.Array, seeds: Hashes) -> Hashes:
    words = _numbers(column, None if pa.types.is_int32(column.type) else pa.int32())
    return _one_half(words.view(np.uint32), seeds)


def _longs(column: pa.Array, seeds: Hashes) -> Hashes:
    words = _numbers(column, None if pa.types.is_int64(column.type) else pa.int64())
    return _one_word(words.view(_U64), seeds)


def _floats(column: pa.Array, seeds: Hashes) -> Hashes:
    values = _numbers(column) + np.float32(0)
    values[np.isnan(values)] = np.nan
    return _one_half(values.view(np.uint32), seeds)


def _doubles(column: pa.Array, seeds: Hashes) -> Hashes:
    values = _numbers(column) + 0.0
    values[np.isnan(values)] = np.nan
    return _one_word(values.view(_U64), seeds)


def _decimals(column: pa.Array, seeds: Hashes) -> Hashes:
    # 16 bytes each, little-endian: the lower half is the number where it fits a long.
    words = np.frombuffer(column.buffers()[1], _U64)
    return _one_word(words[2 * column.offset :: 2][: len(column)].copy(), seeds)


def _bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    """Hash strings or binary values, grouped by length."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        width: type[np.int64] | type[np.int32] = np.int64
    else:
        width = np.int32
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, width)[column.offset : column.offset + len(column) + 1]
    start = int(offsets[0])
    data = np.zeros(int(offsets[-1]) - start + 8, np.uint8)  # a word may reach beyond the last byte
    data[:-8] = np.frombuffer(data_buffer or b"", np.uint8)[start : start + len(data) - 8]
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # one begins at each byte
    offsets = offsets.astype(np.int64) - start
    lengths = np.diff(offsets)
    result = np.empty(len(column), _U64)
    order = np.argsort(lengths, kind="stable")
    # Rows of one length take the same steps, so each step is one operation on a column.
    distinct, first = np.unique(lengths[order], return_index=True)
    for length, rows in zip(distinct.tolist(), np.split(order, first[1:]), strict=True):
        matrix = np.empty((len(rows), -(-length // 8)), "<u8")
        starts = offsets[rows]
        for word in range(matrix.shape[1]):
            matrix[:, word] = words[starts + 8 * word]
        result[rows] = _of_one_length(matrix, length, seeds[rows])
    return result


_HASHERS: Final[tuple[tuple[Callable[[pa.DataType], bool], _ColumnHasher], ...]] = (
    (pa.types.is_int64, _longs),
    (pa.types.is_signed_integer, _ints),
    (pa.types.is_boolean, _ints),
    (pa.types.is_date32, _ints),
    (lambda kind: pa.types.is_timestamp(kind) and kind.unit == "us", _longs),
    (pa.types.is_float32, _floats),
    (pa.types.is_float64, _doubles),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), _bytes),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), _bytes),
    (pa.types.is_null, lambda _column, seeds: seeds),
)


def _of_one_length(words: npt.NDArray[np.uint64], length: int, seeds: Hashes) -> Hashes:
    """Hash rows that consist of whole words; ignore the bytes after *length*."""
    matrix = words.view(np.uint8)
    position = 0
    if length >= 32:
        lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
        while position <= length - 32:
            word = position // 8
            lanes = [_round(lane, words[:, word + i]) for i, lane in enumerate(lanes)]
            position += 32
        result = sum(
            (_rotl(lane, bits) for lane, bits in zip(lanes[1:], (7, 12, 18), strict=True)),
            start=_rotl(lanes[0], 1),
        )
        for lane in lanes:
            result = (result ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
    else:
        result = seeds + _P5
    result = result + _U64(length)
    while position <= length - 8:
        result = _mix_word(result, words[:, position // 8])
        position += 8
    if position <= length - 4:
        half = words[:, position // 8] & _U64(0xFFFFFFFF)
        result = _mix_half(result, half)
        position += 4
    for byte in range(position, length):
        result = _rotl(result ^ (matrix[:, byte].astype(_U64) * _P5), 11) * _P1
    return _avalanche(result)


def _one_word(words: _Words, seeds: Hashes) -> Hashes:
    return _avalanche(_mix_word(seeds + (_P5 + _U64(8)), words))


def _one_half(words: _Words, seeds: Hashes) -> Hashes:
    return _avalanche(_mix_half(seeds + (_P5 + _U64(4)), words.astype(_U64)))


def _mix_word(result: Hashes, words: _Words) -> Hashes:
    mixed = _rotl(words * _P2, 31)
    mixed *= _P1
    mixed ^= result
    mixed = _rotl(mixed, 27)
    mixed *= _P1
    mixed += _P4
    return mixed


def _mix_half(result: Hashes, halves: _Words) -> Hashes:
    mixed = halves * _P1
    mixed ^= result
    mixed = _rotl(mixed, 23)
    mixed *= _P2
    mixed += _P3
    return mixed


def _round(lanes: Hashes, words: _Words) -> Hashes:
    mixed: Hashes = words * _P2
    return _rotl(mixed + lanes, 31) * _P1


def _rotl(values: Hashes, bits: int) -> Hashes:
    rotated = values << _U64(bits)
    rotated |= values >> _U64(64 - bits)
    return rotated


def _avalanche(values: Hashes) -> Hashes:
    values = values ^ (values >> _U64(33))
    values *= _P2
    values ^= values >> _U64(29)
    values *= _P3
    values ^= values >> _U64(32)
    return values
