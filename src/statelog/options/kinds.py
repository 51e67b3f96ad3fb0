"""The kinds of option values: how to parse them from text and Python values."""

from __future__ import annotations

import datetime as dt
import enum
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from statelog import arguments
from statelog.errors import InvalidOptionsError, UsageError

KIB: Final = 1024
MIB: Final = 1024 * KIB

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_PLAIN: Final = (str, int, float, dt.timedelta, type(None))


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """
    The kind of a value.

    Args:
        name: Its name in documentation.
        read: Returns the value from text or from a Python value.  It raises `ValueError`,
            `TypeError` or `LookupError` for another one, or a `UsageError` that says more.
        form: What the value must be, for errors; "" for the name.
        check: Rejects a Python value of another type, also text where the value is none.
        shows_value: Whether an error may show a wrong value.
    """

    name: str
    read: Callable[..., T_co]
    form: str = ""
    check: Callable[..., object] = arguments.text
    shows_value: bool = True

    def parse(self, value: object, name: str, bounds: str = "") -> T_co:
        """Parse *value* to the type of this kind."""
        try:
            return self.read(value)
        except UsageError as error:
            raise InvalidOptionsError(f"{name}: {error}", **error.facts) from None
        except (ValueError, TypeError, LookupError, OverflowError):
            raise self.refused(value, name, bounds) from None

    def refused(
        self, value: object, name: str, bounds: str, advice: str = ""
    ) -> InvalidOptionsError:
        """Return the error for an invalid value; *advice* says what to do."""
        is_shown = self.shows_value and isinstance(value, _PLAIN)
        text = f"{value!r:.100}" if is_shown else f"a {type(value).__name__}"
        expected = f"{name} must be {self.form or self.name}{bounds}, not {text}"
        return InvalidOptionsError(f"{expected}. {advice}" if advice else expected, key=name)


# --- numbers, sizes, durations --------------------------------------------------------------------

_WHOLE: Final = re.compile(r"\s*-?\d+\s*")
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµ]*)")
_SIZES: Final[Mapping[str, int]] = {"": 1, "b": 1, "bytes": 1} | {
    name: 1024**power
    for power, word in enumerate(("kibi", "mebi", "gibi", "tebi"), start=1)
    for name in (word[0], f"{word[0]}b", f"{word[0]}ib", f"{word}bytes")
}
_MICROSECONDS: Final = {
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
}
_ISO_DURATION: Final = re.compile(
    r"p(?:(\d+)d)?(?:t(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?)?", re.IGNORECASE
)


def _whole(value: object) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)  # type: ignore[arg-type]


def _size(value: object) -> int:
    if not isinstance(value, str):
        return _whole(value)
    match = _QUANTITY.fullmatch(value.strip().lower())
    if match is None:
        raise ValueError
    return int(match[1]) * _SIZES[match[2]]


def _ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    ratio = float(value)
    if not 0 < ratio < float("inf"):
        raise ValueError
    return ratio


def read_duration(value: object, bare_unit: str = "ms") -> dt.timedelta:
    """Convert a `timedelta`, a number, "10 ms" or "PT0.01S" to a duration."""
    if isinstance(value, dt.timedelta):
        return value
    text = value.strip() if isinstance(value, str) else str(_whole(value))
    if match := _QUANTITY.fullmatch(text.lower()):
        unit = _MICROSECONDS[match[2] or bare_unit]
        return dt.timedelta(microseconds=float(match[1]) * unit)
    iso = _ISO_DURATION.fullmatch(text)
    if iso is None or not any(iso.groups()):
        raise ValueError
    days, hours, minutes, seconds = (float(group or 0) for group in iso.groups())
    return dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


SIZE: Final = Kind(
    "size", _size, "a number of bytes, or text such as '5 mb'", arguments.whole_number
)
COUNT: Final = Kind("count", _whole, "a whole number", arguments.whole_number)
RATIO: Final = Kind("number", _ratio, "a number above 0, such as 1.5", arguments.number)
DURATION: Final = Kind(
    "duration", read_duration, "a duration such as '10 ms' or 'PT0.01S'", arguments.duration
)


# --- words ----------------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value.strip()


def _path(value: object) -> str:
    return _text(os.fspath(value) if isinstance(value, os.PathLike) else value)


def _switch(value: object) -> bool:
    return {"true": True, "false": False}[str(value).strip().lower()]


def _names(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError
    return tuple(name.strip() for name in names if name.strip())


def _paths(value: object) -> tuple[str, ...]:
    return _names(value.replace(os.pathsep, ",") if isinstance(value, str) else value)


def _as_given(value: T) -> T:
    return value


def _word(value: object) -> str:
    word = value.value if isinstance(value, enum.Enum) else value
    if not isinstance(word, str):
        raise TypeError
    return word.lower()


def choice(*values: T) -> Kind[T]:
    """Return the kind of value for a choice of enum members or case-insensitive words."""
    by_word = {_word(value): value for value in values}
    *first, last = [f'"{word}"' for word in by_word]
    return Kind(f"{', '.join(first)} or {last}", lambda value: by_word[_word(value)])


SWITCH: Final = Kind("true or false", _switch, check=arguments.switch)
TEXT: Final = Kind("text", _text)
PATH: Final = Kind("text", _path, check=arguments.path)
PATHS: Final = Kind("paths", _paths, "paths separated by commas", arguments.paths)
NAMES: Final = Kind("names", _names, "names separated by commas")
AS_GIVEN: Final[Kind[Any]] = Kind("any value", _as_given)


def describe_size(value: int) -> str:
    """Format a number of bytes as the value of an option."""
    for unit, length in (("mb", MIB), ("kb", KIB)):
        if value and value % length == 0:
            return f"{value // length} {unit}"
    return str(value)
