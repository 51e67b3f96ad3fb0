"""Facts of a report without micro-batches, and colours that can be read."""

from tests.support.locations.costly_history import NASTY

from statelog.extensions.report import Figures

NAMES = [
    NASTY,
    '"><img src=x onerror=alert(1)>',
    "'--><style>",
    "{{script}}{{figures}}",
    "Größe \u202e\U0001f980",
    "\ud800",
]
EMPTY = Figures(location="/job", made_at_ms=0, version="1")


def linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def luminance(colour: tuple[float, float, float]) -> float:
    red, green, blue = map(linear, colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colour: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)
