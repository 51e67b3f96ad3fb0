"""
Changes of state: one by one, and in columns.

A record has no number of its own; a *change set* has one.  Between the append and the file,
changes travel as columns: an integer array of key groups beside an Arrow binary array of values.
Source: Flink, StateChange and StateChangeSet (row-wise there).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.model.sequence_number import SequenceNumber

Int32Array = npt.NDArray[np.int32]


class StateChange(NamedTuple):
    """One change: its key group (-1 for metadata) and its bytes."""

    key_group: int
    value: bytes


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBatch:
    """
    Some changes as two columns of equal length.

    Args:
        key_groups: int32, shape (n,); -1 marks metadata.
        values: Arrow `binary` (or `large_binary`) array of n values without nulls.
    """

    key_groups: Int32Array
    values: pa.Array[Any]

    def __len__(self) -> int:
        return len(self.key_groups)

    @property
    def size_bytes(self) -> int:
        """Sum of the lengths of all values."""
        return value_bytes(self.values)

    def __iter__(self) -> Iterator[StateChange]:
        for key_group, value in zip(self.key_groups.tolist(), self.values.to_pylist(), strict=True):
            yield StateChange(key_group, value)


class ChangeRows(ChangeBatch):
    """
    A batch of few changes, kept as rows: as columns, one change takes more than a kilobyte.

    Its columns are made anew at each access.

    Args:
        rows_key_groups: One for each value.
        rows_values: The changes.
    """

    __slots__ = ("rows_key_groups", "rows_values")

    rows_key_groups: tuple[int, ...]
    rows_values: tuple[bytes, ...]

    def __init__(self, rows_key_groups: tuple[int, ...], rows_values: tuple[bytes, ...]) -> None:
        object.__setattr__(self, "rows_key_groups", rows_key_groups)
        object.__setattr__(self, "rows_values", rows_values)

    @property
    def key_groups(self) -> Int32Array:
        """The column of key groups, see `ChangeBatch`."""
        return np.array(self.rows_key_groups, np.int32)

    @property
    def values(self) -> pa.Array[Any]:
        """The column of values, see `ChangeBatch`."""
        return pa.array(self.rows_values, pa.binary())

    @property
    def size_bytes(self) -> int:
        """Sum of the lengths of all values."""
        return sum(map(len, self.rows_values))

    def __len__(self) -> int:
        return len(self.rows_values)

    def __iter__(self) -> Iterator[StateChange]:
        return map(StateChange, self.rows_key_groups, self.rows_values)


@dataclass(frozen=True, slots=True, eq=False)
class StateChangeSet:
    """
    The changes of one writer between two cuts; the unit that is numbered, uploaded and truncated.

    Args:
        log_id: Number of the writer within its storage.
        sqn: Position of the set in that writer's log.
        batches: The changes in append order; small pieces as rows.
        size_bytes: Sum of the lengths of all values.
    """

    log_id: int
    sqn: SequenceNumber
    batches: tuple[ChangeBatch, ...]
    size_bytes: int

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def __iter__(self) -> Iterator[StateChange]:
        for batch in self.batches:
            yield from batch


def value_bytes(values: pa.Array[Any]) -> int:
    """Return the summed lengths of a `binary` or `large_binary` array, in constant time."""
    if len(values) == 0:
        return 0
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    offsets = np.frombuffer(values.buffers()[1], dtype=width)
    return int(offsets[values.offset + len(values)] - offsets[values.offset])
