"""
Charts: inline SVG for the shapes, HTML for the words, and a table with the same values.

The SVG is stretched to the width of the page.  So it holds only bars, areas and lines; labels stay
at their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from statelog.extensions.report import texts
from statelog.extensions.report.html import Html, tag

Values: TypeAlias = Sequence[float | None]
_HEIGHT: Final = 100.0
_GAP: Final = 0.16
"""Part of a bar's place that is left free."""
_LINES: Final = 4
_STEPS: Final = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class Series:
    """
    One series of a chart.

    Args:
        name: Shown in the legend and in the table.
        values: One for each label; None where it is not known.
        tone: Number of its colour, 1 to 5.
    """

    name: str
    values: Values
    tone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """
    A chart of one or more series, stacked in this order.

    Args:
        identity: Unique in the page.
        title, note: Words above it.
        head: What the labels are: "Checkpoint".
        labels: Names of the places, in their order.
        series: At least one, each as long as *labels*.
        show: Makes text of a value.
        binary: Whether the values are sizes, whose scale has powers of 1024.
        is_area: Areas instead of bars.
        extra: More columns of the table only: head, and text of each place.
    """

    identity: str
    title: str
    note: str
    head: str
    labels: Sequence[str]
    series: Sequence[Series]
    show: Callable[[float | None], str] = texts.count
    binary: bool = False
    is_area: bool = False
    extra: Sequence[tuple[str, Sequence[str]]] = field(default_factory=tuple)

    def totals(self) -> list[float | None]:
        """Return the sum of the series at each place; None where none is known."""
        sums: list[float | None] = []
        for at in range(len(self.labels)):
            values = [each.values[at] for each in self.series if each.values[at] is not None]
            sums.append(math.fsum(value or 0.0 for value in values) if values else None)
        return sums


def scale_top(largest: float, *, binary: bool = False) -> float:
    """
    Return the top of a scale with four parts, at or above *largest*.

    The parts are whole numbers: of counts, of milliseconds, or (*binary*) of bytes, KiB, MiB.
    """
    unit = 1.0
    while binary and largest / unit > 1000:
        unit *= 1024
    value = max(largest / unit, 1e-9)
    power = 10.0 ** max(math.floor(math.log10(value)), 0)
    while True:
        for step in _STEPS:
            top = round(step * power, 6)
            if top >= value and (top % _LINES == 0 or (binary and unit > 1)):
                return top * unit
        power *= 10


def chart(spec: Chart) -> Html:
    """Return a chart with its words and its table."""
    totals = spec.totals()
    values = [value for value in totals if value is not None]
    top = scale_top(max(values, default=0.0), binary=spec.binary)
    title = f"{spec.identity}-title"
    plot = tag(
        "div",
        {"class": "plot"},
        tag("div", {"class": "scale", "aria-hidden": "true"}, _scale(spec, top)),
        tag("div", {"class": "canvas"}, _svg(spec, top, totals)),
    )
    ends = [spec.labels[0], spec.labels[-1]] if len(spec.labels) > 1 else list(spec.labels)
    return tag(
        "figure",
        {"class": "chart", "id": spec.identity, "aria-labelledby": title},
        tag("h3", {"id": title}, spec.title),
        tag("p", {"class": "note"}, spec.note),
        _legend(spec) if len(spec.series) > 1 else None,
        plot,
        tag(
            "div",
            {"class": "ends", "aria-hidden": "true"},
            [
                tag("span", {}, f"{spec.head} {ends[0]}" if at == 0 else end)
                for at, end in enumerate(ends)
            ],
        ),
        tag("p", {"class": "readout"}),
        _table(spec, totals),
    )


def summary(spec: Chart, totals: Values) -> str:
    """Return a chart in a sentence, for readers who do not see it."""
    values = [
        (value, label)
        for value, label in zip(totals, spec.labels, strict=True)
        if value is not None
    ]
    if not values:
        return f"{spec.title}: no values are known."
    largest, at = max(values, key=lambda pair: pair[0])
    last = values[-1][0]
    return (
        f"{spec.title}: {len(values)} values, from {spec.head.lower()} {spec.labels[0]} to "
        f"{spec.labels[-1]}. The largest is {spec.show(largest)} at {at}, the last {spec.show(last)}. "
        "The table below has all values."
    )


def _svg(spec: Chart, top: float, totals: Values) -> Html:
    count = len(spec.labels)
    shapes = [
        tag("line", {"x1": 0, "x2": count, "y1": _number(y), "y2": _number(y), "class": "grid"})
        for y in (_HEIGHT * part / _LINES for part in range(_LINES + 1))
    ]
    base = [0.0] * count
    for series in spec.series:
        upper = [low + (value or 0.0) for low, value in zip(base, series.values, strict=True)]
        draw = _area if spec.is_area else _bars
        path = draw(series.values, base, upper, top)
        shapes.append(tag("path", {"d": path, "class": f"shape tone-{series.tone}"}))
        if spec.is_area:
            edge = _edge(series.values, upper, top)
            shapes.append(tag("path", {"d": edge, "class": f"edge tone-{series.tone}"}))
        base = upper
    style = "areas" if spec.is_area else "stacked" if len(spec.series) > 1 else None
    return tag(
        "svg",
        {
            "viewBox": f"0 0 {count} {_HEIGHT:.0f}",
            "preserveAspectRatio": "none",
            "class": style,
            "role": "img",
            "aria-label": summary(spec, totals),
        },
        shapes,
    )


def _bars(values: Values, base: Sequence[float], upper: Sequence[float], top: float) -> str:
    width = 1 - _GAP
    parts = []
    for at, value in enumerate(values):
        if not value:
            continue
        y, height = _y(upper[at], top), _y(base[at], top) - _y(upper[at], top)
        parts.append(f"M{_number(at + _GAP / 2)} {_number(y)}h{width}v{_number(height)}h-{width}z")
    return "".join(parts)


def _area(values: Values, base: Sequence[float], upper: Sequence[float], top: float) -> str:
    """Return an area over the known values; a place that is not known ends it."""
    parts = []
    for run in _runs(values):
        there, back = _points(run, upper, top), _points(run, base, top)
        parts.append(f"M{'L'.join(there)}L{'L'.join(reversed(back))}z")
    return "".join(parts)


def _edge(values: Values, upper: Sequence[float], top: float) -> str:
    """Return the upper line of an area."""
    return "".join(f"M{'L'.join(_points(run, upper, top))}" for run in _runs(values))


def _runs(values: Values) -> Iterator[range]:
    """Yield the places of values that are known, one after the other."""
    start = None
    for at, value in enumerate([*values, None]):
        if value is not None and start is None:
            start = at
        elif value is None and start is not None:
            yield range(start, at)
            start = None


def _points(run: range, heights: Sequence[float], top: float) -> list[str]:
    """Return the points of a line, from the first place's left to the last one's right."""
    places = [(run[0], 0.0), *((at, 0.5) for at in run), (run[-1], 1.0)]
    return [f"{_number(at + off)} {_number(_y(heights[at], top))}" for at, off in places]


def _y(value: float, top: float) -> float:
    return _HEIGHT * (1 - value / top)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _scale(spec: Chart, top: float) -> list[Html]:
    parts = []
    for part in range(_LINES + 1):
        text = spec.show(top * part / _LINES).replace(".0 ", " ")
        parts.append(tag("span", {"style": f"top:{100 - 100 * part / _LINES:.0f}%"}, text))
    return parts


def _legend(spec: Chart) -> Html:
    return tag(
        "ul",
        {"class": "legend"},
        [
            tag("li", {}, tag("span", {"class": f"swatch tone-{series.tone}"}), series.name)
            for series in spec.series
        ],
    )


def _table(spec: Chart, totals: Values) -> Html:
    several = len(spec.series) > 1
    heads = [spec.head, *(series.name for series in spec.series)]
    heads += ["Total"] if several else []
    heads += [head for head, _ in spec.extra]
    rows = []
    for at, label in enumerate(spec.labels):
        cells = [spec.show(series.values[at]) for series in spec.series]
        cells += [spec.show(totals[at])] if several else []
        cells += [column[at] for _, column in spec.extra]
        rows.append([label, *cells])
    return tag(
        "details",
        {},
        tag("summary", {}, f"Table: {spec.title}"),
        table(heads, rows, caption=spec.title),
    )


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str | Html]],
    *,
    caption: str,
    left: Collection[int] = (0,),
) -> Html:
    """
    Return a table that scrolls sideways where it is too wide.

    Args:
        heads: Names of the columns.
        rows: The cells; the first of each row is its head.
        caption: Its name, for readers who do not see it.
        left: Columns of words, which begin at the left; the others are numbers.
    """
    sides = [{"class": "text"} if at in left else {} for at in range(len(heads))]
    return tag(
        "div",
        {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": f"{caption}, table"},
        tag(
            "table",
            {},
            tag("caption", {"class": "hidden"}, caption),
            tag(
                "thead",
                {},
                tag(
                    "tr",
                    {},
                    [
                        tag("th", {"scope": "col", **side}, head)
                        for head, side in zip(heads, sides, strict=True)
                    ],
                ),
            ),
            tag("tbody", {}, [tag("tr", {}, _cells(row, sides)) for row in rows]),
        ),
    )


def _cells(row: Sequence[str | Html], sides: Sequence[dict[str, str]]) -> list[Html]:
    return [
        tag("th", {"scope": "row", **side}, cell) if at == 0 else tag("td", {**side}, cell)
        for at, (cell, side) in enumerate(zip(row, sides, strict=True))
    ]
