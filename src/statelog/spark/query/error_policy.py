"""
What a query does with a key whose processing fails.

The number of keys that may fail is bounded, because a fault of the processor fails every key: the
query then stops, and does not put its whole input aside.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from statelog.options.kinds import Kind


class OnError(enum.Enum):
    """What happens where the processing of a key fails."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"
    FREEZE = "freeze"

    @property
    def keeps_letters(self) -> bool:
        """Whether what failed is kept."""
        return self in (OnError.DEAD_LETTER, OnError.FREEZE)

    @property
    def freezes(self) -> bool:
        """Whether later calls for a key that failed are not made."""
        return self is OnError.FREEZE


_LEAST_KEYS: Final = 10
"""A share allows this many keys in any case, because a share of few keys says little."""


@dataclass(frozen=True, slots=True)
class MaxErrors:
    """
    The most keys of one task and micro-batch whose processing may fail.

    Args:
        keys: Their number; 0 where *share* counts.
        share: Their share of the keys of the task, 0 to 1.
    """

    keys: int = 1000
    share: float = 0.0

    def is_exceeded(self, failed: int, of_keys: int | None) -> bool:
        """Return whether too many keys failed."""
        if self.keys:
            return failed > self.keys
        return of_keys is not None and failed > max(_LEAST_KEYS, self.share * of_keys)

    def __str__(self) -> str:
        return str(self.keys or self.share)


def _max_errors(value: object) -> MaxErrors:
    if isinstance(value, MaxErrors):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if 0 < number < 1:
        return MaxErrors(0, number)
    if not 1 <= number <= 1 << 53 or number != int(number):
        raise ValueError
    return MaxErrors(int(number))


MAX_ERRORS: Final = Kind(
    "number of keys, or a share of them below 1",
    _max_errors,
    "a number of keys, at least 1, or a share of the keys, between 0 and 1 (onError='fail' allows no "
    "failed key)",
)
