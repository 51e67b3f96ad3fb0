"""
Format numbers for readers: counts, sizes and durations.

The script of the page has the same forms.
"""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
NONE: Final = "–"
"""The text for unknown values."""


def count(value: float | None) -> str:
    """Format a count as 12,345; a small fraction gets one decimal."""
    if value is None:
        return NONE
    if value != int(value) and abs(value) < 100:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def size(size_bytes: float) -> str:
    """Format a size in binary units, such as 1.5 MiB."""
    if size_bytes < 1024:
        return f"{size_bytes:,.0f} B"
    value = size_bytes / 1024
    power = 0
    while value >= 1023.95 and power < len(_UNITS) - 1:
        value /= 1024
        power += 1
    return f"{value:,.1f} {_UNITS[power]}"


def duration(milliseconds: float) -> str:
    """Format a duration, such as 12 ms, 1.5 s, 2 min 5 s, 3 h 4 min or 2 d 2 h."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def percent(share: float) -> str:
    """Format a share as a percentage, such as 71 %."""
    return f"{share:.0%}".replace("%", " %")


def plural(number: int, noun: str) -> str:
    """Format a count with its noun, such as "1 object" or "2 objects"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
