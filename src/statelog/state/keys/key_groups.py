"""
Compute the key group of a key, without Spark.

A stream's rows get their key group in the JVM: `pmod(xxhash64(key columns), groups)`.  This is the
same function in Python, for looking up single keys.  It never changes; its test vectors are in
docs/reference/formats/key-groups.md.
Source: XXH64 by Yann Collet; Spark's XxHash64Function for how values become bytes and how columns
chain (the hash of one column is the seed of the next; a null leaves the seed as it is).
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from statelog.errors import UsageError

SEED: Final = 42
"""Spark's seed of the first column."""

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_EPOCH: Final = dt.datetime(1970, 1, 1)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_LONG_DIGITS: Final = 18  # Spark keeps a decimal of up to so many digits as one long

Hasher = Callable[[Any, int], int]
"""(value, seed) -> hash."""


def key_group_of(key: Sequence[object], schema: pa.Schema, max_parallelism: int) -> int:
    """Return the key group of *key*."""
    # Python's remainder takes the sign of the divisor: that is pmod.
    return hash_of(key, schema) % max_parallelism


def hash_of(key: Sequence[object], schema: pa.Schema) -> int:
    """Return Spark's `xxhash64` of *key* as a signed number; see `key_group_of`."""
    if len(key) != len(schema):
        raise UsageError(f"expected a key of ({', '.join(schema.names)}), not {tuple(key)!r:.100}")
    result = SEED
    for value, field in zip(key, schema, strict=True):
        hasher = value_hasher(field.type)
        if value is not None:
            try:
                result = hasher(value, result)
            except (AttributeError, TypeError, ValueError, struct.error) as error:
                raise UsageError(
                    f"key column {field.name!r} takes {field.type}, not {type(value).__name__} "
                    f"{value!r:.100}"
                ) from error
    return result - (1 << 64) if result >> 63 else result


def xxhash64_bytes(data: bytes, seed: int) -> int:
    """Return the XXH64 hash of *data* as an unsigned number."""
    length = len(data)
    position = 0
    # Four lanes of eight bytes each, mixed and then joined.
    if length >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while position <= length - 32:
            words = struct.unpack_from("<4Q", data, position)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            position += 32
        result = sum(_rotl(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        result = seed + _P5
    # What is left after the blocks of 32: words, a half word, single bytes.
    result = (result + length) & _MASK
    while position <= length - 8:
        (word,) = struct.unpack_from("<Q", data, position)
        result = (_rotl(result ^ _round(0, word), 27) * _P1 + _P4) & _MASK
        position += 8
    if position <= length - 4:
        (half,) = struct.unpack_from("<I", data, position)
        result = (_rotl(result ^ (half * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        position += 4
    for byte in data[position:]:
        result = (_rotl(result ^ (byte * _P5 & _MASK), 11) * _P1) & _MASK
    return _avalanche(result)


def _rotl(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(lane: int, word: int) -> int:
    return (_rotl((lane + word * _P2) & _MASK, 31) * _P1) & _MASK


def _avalanche(value: int) -> int:
    value = ((value ^ (value >> 33)) * _P2) & _MASK
    value = ((value ^ (value >> 29)) * _P3) & _MASK
    return value ^ (value >> 32)


def _int(value: int, seed: int) -> int:
    """Hash a value that Spark stores as a 32-bit integer."""
    return xxhash64_bytes(struct.pack("<i", value), seed)


def _long(value: int, seed: int) -> int:
    return xxhash64_bytes(struct.pack("<q", value), seed)


def _float(value: float, seed: int) -> int:
    return xxhash64_bytes(_canonical_float("<f", value), seed)


def _double(value: float, seed: int) -> int:
    return xxhash64_bytes(_canonical_float("<d", value), seed)


def _canonical_float(form: str, value: float) -> bytes:
    """Return the bytes of a float, normalized so that all NaNs, and both zeros, are equal."""
    if value != value:
        return b"\x00\x00\xc0\x7f" if form == "<f" else b"\x00\x00\x00\x00\x00\x00\xf8\x7f"
    return struct.pack(form, value + 0.0)  # -0.0 + 0.0 is 0.0


def _string(value: str, seed: int) -> int:
    return xxhash64_bytes(value.encode("utf-8"), seed)


def _binary(value: bytes, seed: int) -> int:
    return xxhash64_bytes(bytes(value), seed)


def _date(value: dt.date, seed: int) -> int:
    return _int(value.toordinal() - _EPOCH_DAY, seed)


def _timestamp(value: dt.datetime, seed: int) -> int:
    """Hash a timestamp; without a time zone it is local time, as in PySpark."""
    return _wall_clock(value.astimezone(dt.UTC).replace(tzinfo=None), seed)


def _wall_clock(value: dt.datetime, seed: int) -> int:
    return _long((value - _EPOCH) // _MICROSECOND, seed)


def _decimal(precision: int, scale: int) -> Hasher:
    def hash_decimal(value: decimal.Decimal, seed: int) -> int:
        with decimal.localcontext(decimal.Context(prec=80)):
            shifted = decimal.Decimal(value).scaleb(scale)
            unscaled = int(shifted)
            if unscaled != shifted or abs(unscaled) >= 10**precision:
                raise ValueError("too many digits")
        if precision <= _LONG_DIGITS:
            return _long(unscaled, seed)
        # Java's BigInteger.toByteArray: two's complement, big-endian, as short as possible.
        bits = unscaled.bit_length() if unscaled >= 0 else (unscaled + 1).bit_length()
        return xxhash64_bytes(unscaled.to_bytes(bits // 8 + 1, "big", signed=True), seed)

    return hash_decimal


_HASHERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Hasher], ...]] = (
    (pa.types.is_boolean, _int),
    (pa.types.is_int64, _long),
    (pa.types.is_signed_integer, _int),
    (pa.types.is_float32, _float),
    (pa.types.is_float64, _double),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), _string),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), _binary),
    (pa.types.is_date32, _date),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, _timestamp),
    (pa.types.is_timestamp, _wall_clock),
    (pa.types.is_null, lambda _value, seed: seed),
)


def value_hasher(kind: pa.DataType) -> Hasher:
    """Return the hash function for a type; raise `UsageError` if there is none."""
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    for matches, hasher in _HASHERS:
        if matches(kind):
            return hasher
    raise UsageError(f"only Spark can compute key groups for keys of type {kind}")
