"""
State changes, either one by one or in columns.

A record has no number of its own; a *change set* has one.  Ranges of numbers are half-open.
Between the append and the file, changes travel as columns: an integer array of key groups and an
Arrow binary array of values.
Source: Flink, SequenceNumber, SequenceNumberRange, StateChange and StateChangeSet (row-wise there);
one class of numbers instead of an interface with one implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.arguments import instance, refused, whole_number
from statelog.errors import UsageError
from statelog.model.key_group import METADATA_KEY_GROUP

MAX_SEQUENCE_NUMBER = 2**63 - 1
"""Largest number, as in Flink (a signed 64-bit integer)."""


@dataclass(frozen=True, slots=True, order=True)
class SequenceNumber:
    """
    The position of a change set in a writer's log.

    Args:
        value: 0 to 2**63-1.

    Raises:
        UsageError: *value* is outside that range.
    """

    value: int

    def __post_init__(self) -> None:
        value = self.value
        if value.__class__ is not int or not 0 <= value <= MAX_SEQUENCE_NUMBER:
            number = whole_number(value, "a sequence number", low=0, high=MAX_SEQUENCE_NUMBER)
            object.__setattr__(self, "value", number)

    @classmethod
    def of(cls, value: int | SequenceNumber) -> SequenceNumber:
        """
        Convert *value* to a sequence number.

        Raises:
            UsageError: *value* is not a whole number, or outside 0..2**63-1.
        """
        return value if isinstance(value, cls) else cls(value)  # type: ignore[arg-type]

    def next(self) -> SequenceNumber:
        """Return the next number; raises `UsageError` after the last one."""
        return SequenceNumber(self.value + 1)

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class SequenceNumberRange:
    """
    The half-open range [from_sqn, to_sqn) of change sets.

    Args:
        from_sqn: First number, or a plain integer.
        to_sqn: Number after the last one, or a plain integer.

    Raises:
        UsageError: *to_sqn* is below *from_sqn*, or one of them is not a sequence number.
    """

    from_sqn: SequenceNumber
    to_sqn: SequenceNumber

    def __post_init__(self) -> None:
        object.__setattr__(self, "from_sqn", SequenceNumber.of(self.from_sqn))
        object.__setattr__(self, "to_sqn", SequenceNumber.of(self.to_sqn))
        if self.to_sqn < self.from_sqn:
            raise UsageError(f"sequence number range [{self.from_sqn}, {self.to_sqn}) is negative")

    @classmethod
    def of(
        cls, from_sqn: int | SequenceNumber, to_sqn: int | SequenceNumber
    ) -> SequenceNumberRange:
        """
        Create a range from sequence numbers or plain integers.

        Raises `UsageError` as the class does.
        """
        return cls(SequenceNumber.of(from_sqn), SequenceNumber.of(to_sqn))

    def __len__(self) -> int:
        return self.to_sqn.value - self.from_sqn.value

    def __contains__(self, sqn: int | SequenceNumber) -> bool:
        return self.from_sqn <= SequenceNumber.of(sqn) < self.to_sqn


Int32Array = npt.NDArray[np.int32]
INT32_MAX: Final = 2**31 - 1
"""Largest key group, longest value, and end of an Arrow `binary` array: 32 bits, signed."""


class StateChange(NamedTuple):
    """One change: its key group (-1 for metadata) and its bytes."""

    key_group: int
    value: bytes

    @classmethod
    def of_data_change(cls, key_group: int, value: bytes) -> StateChange:
        """Create a change in a key group >= 0; raises `UsageError`."""
        key_group = whole_number(key_group, "key_group", low=0, high=INT32_MAX)
        return cls(key_group, instance(value, "value", bytes, "bytes"))

    @classmethod
    def of_metadata_change(cls, value: bytes) -> StateChange:
        """Create a metadata change, which does not belong to a key group; raises `UsageError`."""
        return cls(METADATA_KEY_GROUP, instance(value, "value", bytes, "bytes"))


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBatch:
    """
    Changes in two columns of equal length.

    Args:
        key_groups: int32, shape (n,); -1 marks metadata.
        values: Arrow `binary` (or `large_binary`) array of n values without nulls.
    """

    key_groups: Int32Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.key_groups)

    @property
    def size_bytes(self) -> int:
        """The total length of all values in bytes."""
        return value_bytes(self.values)

    def __iter__(self) -> Iterator[StateChange]:
        for key_group, value in zip(self.key_groups.tolist(), self.values.to_pylist(), strict=True):
            yield StateChange(key_group, value)


class ChangeRows(ChangeBatch):
    """
    A small batch of changes that is stored as rows.

    As columns, one change takes more than a kilobyte.  Each access to a column builds it again.
    """

    __slots__ = ("rows_key_groups", "rows_values")

    rows_key_groups: tuple[int, ...]
    rows_values: tuple[bytes, ...]

    def __init__(self, rows_key_groups: tuple[int, ...], rows_values: tuple[bytes, ...]) -> None:
        object.__setattr__(self, "rows_key_groups", rows_key_groups)
        object.__setattr__(self, "rows_values", rows_values)

    @property
    def key_groups(self) -> Int32Array:
        """The column of key groups; see `ChangeBatch`."""
        return np.array(self.rows_key_groups, np.int32)

    @property
    def values(self) -> pa.Array:
        """The column of values; see `ChangeBatch`."""
        return pa.array(self.rows_values, pa.binary())

    @property
    def size_bytes(self) -> int:
        """The total length of all values in bytes."""
        return sum(map(len, self.rows_values))

    def __len__(self) -> int:
        return len(self.rows_values)

    def __iter__(self) -> Iterator[StateChange]:
        return map(StateChange, self.rows_key_groups, self.rows_values)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class StateChangeSet:
    """
    What a writer appended between two cuts: the unit of numbering, upload and truncation.

    Args:
        log_id: Number of the writer within its storage.
        sqn: Position of the set in that writer's log.
        batches: The changes in append order; small pieces as rows.  Without *size_bytes* single
            changes, as for `of`.
        size_bytes: Sum of the lengths of all values; None to count them.

    Raises:
        UsageError: As for `of`.
    """

    log_id: int
    sqn: SequenceNumber
    batches: tuple[ChangeBatch, ...]
    size_bytes: int

    def __init__(
        self,
        log_id: int,
        sqn: SequenceNumber | int,
        batches: tuple[ChangeBatch, ...] | Iterable[StateChange | tuple[int, bytes]],
        size_bytes: int | None = None,
    ) -> None:
        if size_bytes is None:
            log_id = whole_number(log_id, "log_id (the number of a writer)", low=0)
            sqn = SequenceNumber.of(sqn)
            batches, size_bytes = _batched(batches)
        object.__setattr__(self, "log_id", log_id)
        object.__setattr__(self, "sqn", sqn)
        object.__setattr__(self, "batches", batches)
        object.__setattr__(self, "size_bytes", size_bytes)

    @classmethod
    def of(
        cls,
        log_id: int,
        sqn: SequenceNumber | int,
        changes: Iterable[StateChange | tuple[int, bytes]],
    ) -> StateChangeSet:
        """
        Create a set from *changes*: pairs of a key group (-1: metadata) and bytes.

        Raises:
            UsageError: A number is out of its range, or a change is not such a pair.
        """
        return cls(log_id, sqn, changes)

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def __iter__(self) -> Iterator[StateChange]:
        for batch in self.batches:
            yield from batch


def _batched(changes: object) -> tuple[tuple[ChangeBatch, ...], int]:
    """Check changes and return them as batches, with their size in bytes."""
    if not isinstance(changes, Iterable):
        raise refused("changes", "an iterable of changes", changes)
    pairs = [_checked_pair(change) for change in changes]
    size_bytes = sum(len(value) for _, value in pairs)
    kind = pa.large_binary() if size_bytes > INT32_MAX else pa.binary()
    batch = ChangeBatch(
        np.array([key_group for key_group, _ in pairs], np.int32),
        pa.array([value for _, value in pairs], kind),
    )
    return (batch,) if pairs else (), size_bytes


def _checked_pair(change: object) -> tuple[int, bytes]:
    if not isinstance(change, tuple) or len(change) != 2:
        raise refused("each of changes", "a pair of a key group and bytes", change)
    low = METADATA_KEY_GROUP
    key_group = whole_number(change[0], "a key group", low=low, high=INT32_MAX)
    value: bytes = instance(change[1], "the value of a change", bytes, "bytes")
    if len(value) > INT32_MAX:
        raise UsageError(
            f"a change of {len(value):,} bytes is longer than {INT32_MAX:,} bytes; split the value"
        )
    return key_group, value


def joined_values(arrays: Sequence[pa.Array]) -> pa.Array:
    """
    Concatenate the values in arrays.

    The result is `large_binary` where one of them is, or where 32-bit offsets are too small.
    """
    if len(arrays) == 1:
        return arrays[0]
    if not arrays:
        return pa.array([], pa.binary())
    is_large = any(pa.types.is_large_binary(array.type) for array in arrays)
    if is_large or sum(map(value_bytes, arrays)) > INT32_MAX:
        arrays = [array.cast(pa.large_binary()) for array in arrays]
    return pa.concat_arrays(list(arrays))


def value_bytes(values: pa.Array) -> int:
    """Return the total length of the values in a string or binary array, in constant time."""
    if len(values) == 0:
        return 0
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    offsets = np.frombuffer(values.buffers()[1], dtype=width)
    return int(offsets[values.offset + len(values)] - offsets[values.offset])
