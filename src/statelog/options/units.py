"""
Parse values of options: sizes in binary units, durations, switches, lists of paths.

Each `parse_` function raises `InvalidOptionsError` for a value of another form.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from typing import Final

from statelog.errors import InvalidOptionsError

KIB: Final = 1024
MIB: Final = 1024 * KIB
_SIZE: Final = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)
_SIZE_UNITS: Final = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib", "kibibytes"), KIB),
    **dict.fromkeys(("m", "mb", "mib", "mebibytes"), MIB),
    **dict.fromkeys(("g", "gb", "gib", "gibibytes"), 1024 * MIB),
    **dict.fromkeys(("t", "tb", "tib", "tebibytes"), 1024 * 1024 * MIB),
}
_DURATION: Final = re.compile(r"\s*(\d+)\s*([a-zµ]*)\s*", re.IGNORECASE)
_DURATION_UNITS_US: Final = {
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
}
_ISO_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


def _refuse(key: str, value: object, form: str) -> InvalidOptionsError:
    return InvalidOptionsError(f"option {key!r} is {value!r}; it must be {form}", key=key)


def parse_size(value: object, *, key: str = "size") -> int:
    """Return a number of bytes; text such as "5 mb" has binary units."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise _refuse(key, value, "a number of bytes, or text such as '5 mb'")
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


def parse_count(value: object, *, key: str = "count") -> int:
    """Return a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
        return int(value)
    raise _refuse(key, value, "a whole number")


def parse_ratio(value: object, *, key: str = "ratio") -> float:
    """Return a number that may have a fraction."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if number - number == 0:  # neither infinite nor not a number
            return number
    raise _refuse(key, value, "a number such as 1.5")


def parse_duration(value: object, *, key: str = "duration") -> dt.timedelta:
    """Return a duration from a `timedelta`, milliseconds, "10 ms" or "PT0.01S"."""
    if isinstance(value, dt.timedelta):
        return value
    plain = isinstance(value, str | int) and not isinstance(value, bool)
    text = str(value).strip() if plain else ""
    try:
        if (match := _DURATION.fullmatch(text)) and match[2].lower() in _DURATION_UNITS_US:
            return dt.timedelta(microseconds=int(match[1]) * _DURATION_UNITS_US[match[2].lower()])
        iso = _ISO_DURATION.fullmatch(text)
        if iso is not None and any(iso.groups()):
            days, hours, minutes, seconds = (float(group or 0) for group in iso.groups())
            return dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise _refuse(key, value, "a shorter duration") from None
    raise _refuse(key, value, "a duration such as '10 ms' or 'PT0.01S'")


def parse_bool(value: object, *, key: str = "switch") -> bool:
    """Return a switch from `bool` or from "true" and "false"."""
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise _refuse(key, value, "true or false")
    return text == "true"


def parse_text(value: object, *, key: str = "text") -> str:
    """Return text, stripped."""
    if not isinstance(value, str) or not value.strip():
        raise _refuse(key, value, "text")
    return value.strip()


def parse_paths(value: object, *, key: str = "paths") -> tuple[str, ...]:
    """
    Return paths from a list, or from text.

    In text, paths are separated by commas or by the system's path separator.
    """
    parts = value.replace(os.pathsep, ",").split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise _refuse(key, value, "paths separated by commas")
    return tuple(part.strip() for part in parts if part.strip())


def describe(value: object) -> str:
    """Return *value* as text for a setting."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case dt.timedelta():
            milliseconds = round(value.total_seconds() * 1000)
            for unit, length in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
                if milliseconds and milliseconds % length == 0:
                    return f"{milliseconds // length} {unit}"
            return f"{milliseconds} ms"
        case tuple():
            return ", ".join(value) or "none"
        case _:
            return str(value)


def describe_size(value: int) -> str:
    """Return a number of bytes as text for a setting."""
    for unit, length in (("mb", MIB), ("kb", KIB)):
        if value and value % length == 0:
            return f"{value // length} {unit}"
    return str(value)
