"""
Draw bars and curves as SVG, readable on light and on dark pages, and on a phone.

A figure is as wide as a phone, so that its text is never scaled down much; labels are above their bars.
It has its own background and colours for both schemes.  Ways are told apart by the shape of
their points too, not by colour alone, and every figure has a title and a description as text.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 440
_MARGIN, _VALUE = 16, 124
_BAR, _ROW = 14, 38
_PLOT_LEFT, _PLOT_RIGHT, _PLOT_HEIGHT = 56, 20, 240
_TITLE_LETTERS, _NOTE_LETTERS = 48, 68

_STYLE = """<style>
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#24292f;font-size:13px}
.title{font-size:14px;font-weight:600}.note{fill:#57606a;font-size:11px}.back{fill:#fff}
.grid{stroke:#d0d7de;stroke-width:1}.line{fill:none;stroke-width:2}
.c0{fill:#6e7781;stroke:#6e7781}.c1{fill:#0969da;stroke:#0969da}.c2{fill:#1a7f37;stroke:#1a7f37}
.c3{fill:#8250df;stroke:#8250df}.c4{fill:#bc4c00;stroke:#bc4c00}.line{fill:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9198a1}.back{fill:#0d1117}
.grid{stroke:#3d444d}.c0{fill:#9198a1;stroke:#9198a1}.c1{fill:#58a6ff;stroke:#58a6ff}
.c2{fill:#3fb950;stroke:#3fb950}.c3{fill:#bc8cff;stroke:#bc8cff}.c4{fill:#f0883e;stroke:#f0883e}
.line{fill:none}}
</style>"""

COLOURS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """
    One bar.

    Args:
        label: What it stands for.
        value: Its length; not negative.
        shown: The value as text.
        colour: 0 to 4.
    """

    label: str
    value: float
    shown: str
    colour: int = 0


def colour_of(way: str) -> int:
    """Return the colour of a way to keep state: Spark's is gray."""
    for part, colour in (("aggregate", 3), ("columns", 2), ("pandas", 4), ("statelog", 1)):
        if part in way and "statelog" in way:
            return colour
    return 0


def bars(title: str, rows: Sequence[Bar], note: str = "") -> str:
    """Return horizontal bars from zero."""
    longest = max((row.value for row in rows), default=0.0) or 1.0
    parts, y = [], _top(title)
    for row in rows:
        width = max(1, round((WIDTH - _MARGIN - _VALUE) * row.value / longest))
        parts.append(
            f'<text x="{_MARGIN}" y="{y + 12}">{escape(row.label)}</text>'
            f'<rect class="c{row.colour}" x="{_MARGIN}" y="{y + 18}" width="{width}" height="{_BAR}" rx="3"/>'
            f'<text x="{_MARGIN + width + 6}" y="{y + 30}">{escape(row.shown)}</text>'
        )
        y += _ROW
    said = "; ".join(f"{row.label}: {row.shown}" for row in rows)
    return _figure(title, said, parts, y + 8, note)


Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """
    One curve.

    Args:
        label: What it stands for.
        points: By x; above zero on a logarithmic axis.
        colour: 0 to 4; the shape of the points too.
        marked: Whether each point has a mark.
    """

    label: str
    points: Sequence[Point]
    colour: int
    marked: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """
    One axis.

    Args:
        label: What it shows, with the unit.
        is_log: Whether it is logarithmic; else it begins at zero.
    """

    label: str
    is_log: bool = True

    def ticks(self, values: Sequence[float]) -> list[float]:
        """Return the values of the axis's lines, which enclose all *values*."""
        low, high = min(values), max(values)
        if self.is_log:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            return [10.0**power for power in range(first, max(last, first + 1) + 1)]
        step = 10 ** math.floor(math.log10(high)) if high > 0 else 1.0
        step = next(one for one in (step / 5, step / 2, step, 2 * step) if high / one <= 6)
        return [step * number for number in range(math.ceil(high / step) + 1)]

    def place(self, value: float, ticks: Sequence[float]) -> float:
        """Return where a value is between the first and the last line, 0 to 1."""
        if self.is_log:
            low, high = math.log10(ticks[0]), math.log10(ticks[-1])
            return (math.log10(value) - low) / (high - low)
        return value / ticks[-1]


def curves(title: str, x: Axis, y: Axis, lines: Sequence[Curve], note: str = "") -> str:
    """Return curves over a grid, with a legend below."""
    points = [point for line in lines for point in line.points]
    x_ticks, y_ticks = x.ticks([p[0] for p in points]), y.ticks([p[1] for p in points])
    top = _top(title) + 18
    right, bottom = WIDTH - _PLOT_RIGHT, top + _PLOT_HEIGHT

    def at(point: Point) -> Point:
        across = _PLOT_LEFT + (right - _PLOT_LEFT) * x.place(point[0], x_ticks)
        return round(across, 1), round(bottom - _PLOT_HEIGHT * y.place(point[1], y_ticks), 1)

    parts = [f'<text class="note" x="{_PLOT_LEFT}" y="{top - 8}">{escape(y.label)}</text>']
    for tick in x_ticks:
        across, _ = at((tick, y_ticks[-1]))
        parts.append(
            f'<line class="grid" x1="{across}" y1="{top}" x2="{across}" y2="{bottom}"/>'
            f'<text class="note" x="{across}" y="{bottom + 16}" text-anchor="middle">{short(tick)}</text>'
        )
    for tick in y_ticks:
        _, down = at((x_ticks[-1], tick))
        parts.append(
            f'<line class="grid" x1="{_PLOT_LEFT}" y1="{down}" x2="{right}" y2="{down}"/>'
            f'<text class="note" x="{_PLOT_LEFT - 6}" y="{down + 4}" text-anchor="end">{short(tick)}</text>'
        )
    parts.append(
        f'<text class="note" x="{right}" y="{bottom + 34}" text-anchor="end">{escape(x.label)}</text>'
    )
    for number, line in enumerate(lines):
        placed = [at(point) for point in line.points]
        drawn = " ".join(f"{across},{down}" for across, down in placed)
        parts.append(f'<polyline class="line c{line.colour}" points="{drawn}"/>')
        if line.marked:
            parts += [_mark(across, down, line.colour) for across, down in placed]
        down = bottom + 56 + 20 * number
        parts.append(_mark(_PLOT_LEFT + 6, down, line.colour))
        parts.append(f'<text x="{_PLOT_LEFT + 18}" y="{down + 4}">{escape(line.label)}</text>')
    said = "; ".join(f"{line.label}: {spoken(line.points)}" for line in lines)
    return _figure(title, said, parts, bottom + 52 + 20 * len(lines), note)


def spoken(points: Sequence[Point]) -> str:
    """Return the first, the last and the points between as text; of many only the ends."""
    chosen = points if len(points) <= 8 else (points[0], points[-1])
    return ", ".join(f"{short(x)} gives {short(y)}" for x, y in chosen)


def short(value: float) -> str:
    """Return a number as people write it on an axis."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _mark(across: float, down: float, colour: int) -> str:
    if colour == 1:
        return f'<circle class="c1" cx="{across}" cy="{down}" r="4"/>'
    corners: Mapping[int, str] = {
        0: "-4,-4 4,-4 4,4 -4,4",
        2: "0,-5 5,4 -5,4",
        3: "0,-5 5,0 0,5 -5,0",
        4: "-5,-4 5,-4 0,5",
    }
    return (
        f'<polygon class="c{colour}" points="{corners[colour]}" '
        f'transform="translate({across} {down})"/>'
    )


def _top(title: str) -> int:
    """Return where a figure begins below its title."""
    return 20 + 18 * len(textwrap.wrap(title, _TITLE_LETTERS))


def _lines(kind: str, text: str, y: float, letters: int, step: int) -> list[str]:
    """Return a text as lines of at most so many letters."""
    return [
        f'<text class="{kind}" x="{_MARGIN}" y="{y + step * number:.0f}">{escape(line)}</text>'
        for number, line in enumerate(textwrap.wrap(text, letters))
    ]


def _figure(title: str, said: str, parts: Sequence[str], bottom: float, note: str) -> str:
    height = bottom + 14 + 15 * len(textwrap.wrap(note, _NOTE_LETTERS))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(said)}</desc>',
            _STYLE,
            f'<rect class="back" width="{WIDTH}" height="{height:.0f}" rx="6"/>',
            *_lines("title", title, 24, _TITLE_LETTERS, 18),
            *parts,
            *_lines("note", note, bottom + 14, _NOTE_LETTERS, 15),
            "</svg>",
            "",
        ]
    )
