"""The time modes and output modes of Spark's stateful operator."""

from __future__ import annotations

from typing import Final

from statelog.errors import UsageError

TIME_MODES: Final = ("none", "processingtime", "eventtime")
OUTPUT_MODES: Final = ("append", "update", "complete")


def mode_of(
    name: str, value: object, allowed: tuple[str, ...], error: type[UsageError] = UsageError
) -> str:
    """
    Return a mode in lower case.

    Args:
        name: Name of the argument, for the message.
        value: The mode as the caller gave it.
        allowed: The modes in lower case.
        error: The class to raise.

    Raises:
        UsageError: *value* is not one of *allowed*.
    """
    if not isinstance(value, str) or value.lower() not in allowed:
        raise error(f"{name} is one of {', '.join(allowed)}; got {value!r}")
    return value.lower()
