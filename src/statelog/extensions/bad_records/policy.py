"""
Define what a query does with keys whose processing fails: `onError` and `maxErrors`.

The number of keys that may fail is bounded, because a fault of the processor fails every key: the
query then stops, and does not put its whole input aside.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from statelog.spark.query.settings import QuerySettings

_LEAST_KEYS: Final = 10
"""A share allows this many keys in any case, because a share of few keys says little."""


class OnError(enum.Enum):
    """What to do with a key whose processing fails."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"
    FREEZE = "freeze"

    @property
    def keeps_letters(self) -> bool:
        """Whether failed calls are stored."""
        return self in (OnError.DEAD_LETTER, OnError.FREEZE)

    @property
    def freezes(self) -> bool:
        """Whether later calls for a failed key are skipped."""
        return self is OnError.FREEZE


@dataclass(frozen=True, slots=True)
class MaxErrors:
    """
    The maximum number of keys that may fail in one task and micro-batch.

    Args:
        keys: Their number; 0 where *share* counts.
        share: Their share of the keys of the task, 0 to 1.
    """

    keys: int
    share: float = 0.0

    @classmethod
    def of(cls, setting: float) -> Self:
        """Create a limit from a number of keys, or from a fraction below 1."""
        return cls(0, setting) if setting < 1 else cls(int(setting))

    def is_exceeded(self, failed: int, of_keys: int | None) -> bool:
        """Return whether more keys failed than allowed."""
        if self.keys:
            return failed > self.keys
        return of_keys is not None and failed > max(_LEAST_KEYS, self.share * of_keys)

    def __str__(self) -> str:
        return str(self.keys or self.share)


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """
    What a task does with keys whose processing fails, unless the task itself must fail.

    Args:
        keeps_letters: Whether what failed is kept, to be replayed.
        most: The most keys that may fail.
        freezes: Whether later calls for a key that failed are kept too, and not made.
    """

    keeps_letters: bool
    most: MaxErrors
    freezes: bool = False


def error_policy(settings: QuerySettings) -> ErrorPolicy | None:
    """Return how tasks handle keys that fail, or None if the task must fail too."""
    on_error = OnError(settings.on_error)
    if on_error is OnError.FAIL:
        return None
    most = MaxErrors.of(settings.max_errors)
    return ErrorPolicy(on_error.keeps_letters, most, freezes=on_error.freezes)


def keeps_rows(settings: QuerySettings) -> str:
    """Return the name of the setting that stores the rows of failed keys, or ""."""
    return "onError" if OnError(settings.on_error).keeps_letters else ""
