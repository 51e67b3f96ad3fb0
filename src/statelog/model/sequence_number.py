"""
Sequence numbers of change sets.

A number names a *change set*, not a record.  Ranges are half-open.
Source: Flink, SequenceNumber and SequenceNumberRange; one class instead of an interface with one
implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

from statelog.arguments import whole_number
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
        value = self.value
        if value.__class__ is not int or not 0 <= value <= MAX_SEQUENCE_NUMBER:
            number = whole_number(value, "a sequence number", low=0, high=MAX_SEQUENCE_NUMBER)
            object.__setattr__(self, "value", number)

    @classmethod
    def of(cls, value: int | SequenceNumber) -> SequenceNumber:
        """
        Return *value* as a sequence number.

        Raises:
            UsageError: *value* is not a whole number, or outside 0..2**63-1.
        """
        return value if isinstance(value, cls) else cls(value)  # type: ignore[arg-type]

    def next(self) -> SequenceNumber:
        """Return the number after this one; raises `UsageError` at the end of the range."""
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
        """Return the range from numbers or plain integers; raises `UsageError` like `cls`."""
        return cls(SequenceNumber.of(from_sqn), SequenceNumber.of(to_sqn))

    def __len__(self) -> int:
        return self.to_sqn.value - self.from_sqn.value

    def __contains__(self, sqn: int | SequenceNumber) -> bool:
        return self.from_sqn <= SequenceNumber.of(sqn) < self.to_sqn
