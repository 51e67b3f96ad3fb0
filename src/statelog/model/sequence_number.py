"""
Sequence numbers of change sets.

A number names a *change set*, not a record.  Ranges are half-open.
Source: Flink, SequenceNumber and SequenceNumberRange; one class instead of an interface with one
implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

from statelog.errors import UsageError

MAX_SEQUENCE_NUMBER = 2**63 - 1
"""Largest number, as in Flink (a signed 64-bit integer)."""


@dataclass(frozen=True, slots=True, order=True)
class SequenceNumber:
    """
    Position of a change set in the log of one writer.

    Args:
        value: 0 to 2**63-1.

    Raises:
        UsageError: *value* is outside that range.
    """

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value <= MAX_SEQUENCE_NUMBER:
            raise UsageError(f"sequence number {self.value} is outside 0..2**63-1")

    def next(self) -> SequenceNumber:
        """Return the number after this one; raises `UsageError` at the end of the range."""
        return SequenceNumber(self.value + 1)

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class SequenceNumberRange:
    """
    The half-open range [from_sqn, to_sqn) of change sets.

    Raises:
        UsageError: *to_sqn* lies below *from_sqn*.
    """

    from_sqn: SequenceNumber
    to_sqn: SequenceNumber

    def __post_init__(self) -> None:
        if self.to_sqn < self.from_sqn:
            raise UsageError(f"sequence number range [{self.from_sqn}, {self.to_sqn}) is negative")

    def __len__(self) -> int:
        return self.to_sqn.value - self.from_sqn.value

    def __contains__(self, sqn: SequenceNumber) -> bool:
        return self.from_sqn <= sqn < self.to_sqn
