"""The blocks of curves, and of a query with many micro-batches."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.harness.blocks.peers import plain
from bench.harness.blocks.source import (
    Block,
    Document,
    MissingError,
    Source,
    number,
    origin,
    table,
    times,
)
from bench.harness.figures import Part, Ratio, growth, is_measured, milliseconds, rate
from bench.harness.plots import Axis, Curve, colour_of, curves

_SHOWN = {
    "batch-size": ("Events per second by events of a micro-batch", "events of a micro-batch"),
    "keys": ("Events per second by keys in the state", "keys in the state"),
    "budget": ("Events per second by memory budget, 20 million keys", "memoryBudget, MiB"),
    "value-size": ("Events per second by bytes of a value", "bytes of a value"),
    "tasks": ("Events per second by number of tasks, two cores", "tasks"),
    "workers": ("Events per second by number of tasks, three workers", "tasks"),
    "operators": ("Events per second by number of operators", "operators"),
    "retained": ("Events per second by retained checkpoints", "retained checkpoints"),
}
_NOT_A_GROWTH = ("batch-size", "budget")
_WITH_FIGURE = ("batch-size", "keys", "value-size", "tasks")
_WITH_MEMORY = ("keys", "budget")
_WITH_PUTS = ("keys", "tasks", "workers", "operators", "retained")
_MEMORY = {
    "memory of a worker, MiB": "RssAnon",
    "local disk, MiB": "local",
}
_GROWN = 1.1
"""Less than this is noise."""
WARM_UP, HUNDRED, EVERY = 10, 100, 10
"""As in bench/many_batches.py, which needs Spark to be imported."""


def ways(document: Document, curve: str) -> dict[str, list[Part]]:
    """Return the points of each way of a curve, by size."""
    found: dict[str, list[Part]] = {}
    for part in document["parts"].values():
        if part.get("curve") == curve and is_measured(part):
            found.setdefault(part["way"], []).append(part)
    return {way: sorted(points, key=lambda p: p["size"]) for way, points in found.items()}


def curve(name: str, source: Source) -> str:
    """Return the table of a curve, and its figure."""
    document = source.document("curves")
    found = ways(document, name)
    if not found:
        raise MissingError("curves")
    x_label = _SHOWN[name][1]
    sizes = sorted({part["size"] for points in found.values() for part in points})
    heads = [x_label, *(points[0]["title"] for points in found.values())]
    if name in _WITH_MEMORY:
        names = [points[0]["title"].split(", ")[1] for points in found.values()]
        heads += [f"{way}, {what}" for way in names for what in _MEMORY]
    if name in _WITH_PUTS:
        heads += ["puts of a micro-batch", "objects in the location"]
    rows = []
    for size in sizes:
        at = {
            way: next((p for p in points if p["size"] == size), None)
            for way, points in found.items()
        }
        row = [f"{size:,}", *(_cell(part) for part in at.values())]
        if name in _WITH_MEMORY:
            row += [cell for part in at.values() for cell in _memory_cells(part)]
        if name in _WITH_PUTS:
            row += _put_cells(next(part for part in at.values() if part is not None))
        rows.append(row)
    growths = "" if name in _NOT_A_GROWTH else _growths_said(found, x_label)
    figure = _figure(name, found, source) if name in _WITH_FIGURE else ""
    return "\n\n".join(filter(None, [table(heads, rows), growths, figure, origin(document)]))


def _figure(name: str, found: dict[str, list[Part]], source: Source) -> str:
    """Return the figure of a curve, with its points as text."""
    title, x_label = _SHOWN[name]
    lines = [
        Curve(
            plain(points[0]["title"]),
            [(part["size"], rate(part).median) for part in points],
            colour_of(way),
        )
        for way, points in found.items()
    ]
    x, y = Axis(x_label, is_log=True), Axis("events/s", is_log=name == "batch-size")
    svg = curves(
        title, x, y, lines, "Medians. Both axes as labelled; see the table for the spread."
    )
    said = "; ".join(f"{one.label} {_said(one.points)}" for one in lines)
    return source.figure(f"curve-{name}", svg, f"{title}: {said}")


def _growths_said(found: dict[str, list[Part]], x_label: str) -> str:
    """Return a sentence for each way: how much longer the largest point takes, and where it bends most."""
    sentences = []
    unit = {"tasks": "task", "operators": "operator"}.get(x_label)
    for points in found.values():
        spent = [(part["size"], milliseconds(part).median) for part in points]
        (least, first), (most, last) = spent[0], spent[-1]
        steps = {(a[0], b[0]): b[1] / a[1] for a, b in itertools.pairwise(spent)}
        if not steps:
            continue
        if last / first < _GROWN:
            sentences.append(f"{points[0]['title']}: no growth.")
            continue
        (before, after), bend = max(steps.items(), key=lambda step: step[1])
        sentences.append(
            f"{points[0]['title']}: {times(last / first)} the time from {least:,} to {most:,} {x_label}, "
            f"most of it from {before:,} to {after:,} ({times(bend)})"
            + (
                f"; {(last - first) / (most - least):,.0f} ms for each additional {unit}."
                if unit
                else "."
            )
        )
    return " ".join(sentences)


def _cell(part: Part | None) -> str:
    if part is None:
        return ""
    return f"{number(rate(part).median)} /s, {number(milliseconds(part).median)} ms"


def _memory_cells(part: Part | None) -> list[str]:
    if part is None:
        return ["" for _ in _MEMORY]
    memory = part["runs"][-1]["memory_mib"]
    return [number(memory[kind]) for kind in _MEMORY.values()]


def _put_cells(part: Part) -> list[str]:
    """Return the puts and objects of a point; they are the same in each way."""
    run = part["runs"][-1]
    return [number(statistics.median(run["puts"])), number(run["stored"])]


def _said(points: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{value:,.0f} at {size:,.0f}" for size, value in points)


def hundreds(values: Sequence[float], each: int = 1) -> tuple[list[float], list[float]]:
    """
    Return the values of the first hundred micro-batches after the warm-up, and of the last.

    Args:
        values: One for every so many micro-batches.
        each: How many.
    """
    kept = list(values[WARM_UP // each :])
    size = min(HUNDRED // each, len(kept) // 2)
    return kept[:size], kept[-size:] if size else []


_QUANTITIES = {
    "state_objects": "objects in the state location",
    "state_bytes": "bytes in the state location",
    "spark_files": "files of Spark's checkpoint",
    "spark_bytes": "bytes of Spark's checkpoint",
    "jvm_mib": "resident JVM, MiB",
    "driver_mib": "resident Python of the driver, MiB",
    "workers_mib": "resident largest worker, MiB",
    "threads": "threads of all processes",
    "open_files": "open files of all processes",
}


def growths(run: dict[str, Any]) -> dict[str, tuple[Ratio, float, float]]:
    """
    Return what grew up to the last hundred micro-batches: ratio, median before and at the end.

    What is stored fills up first, to the bounds of log and retention: it is compared with the hundred
    micro-batches after a quarter of all, everything else with the first hundred.
    """
    found = {}
    for name, label in {"milliseconds": "ms per micro-batch", **_QUANTITIES}.items():
        each = 1 if name == "milliseconds" else EVERY
        values = run["milliseconds"] if each == 1 else [one[name] for one in run["samples"]]
        is_stored = name.startswith(("state", "spark"))
        first, last = hundreds(values[len(values) // 4 :] if is_stored else values, each)
        if first and any(last):
            found[label] = (growth(first, last), _median(first), _median(last))
    heap = run.get("heap_mib", {})
    if len(heap) == 2:
        ratio = growth([heap["hundredth"]], [heap["last"]])
        found["JVM heap after a collection, MiB"] = (ratio, heap["hundredth"], heap["last"])
    return found


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def many_batches(source: Source) -> str:
    """Return what changed over many micro-batches, and the figure of the latency."""
    document = source.document("many-batches")
    parts = {name: part for name, part in document["parts"].items() if is_measured(part)}
    if not parts:
        raise MissingError("many-batches")
    found = {name: growths(part["runs"][-1]) for name, part in parts.items()}
    labels = dict.fromkeys(label for one in found.values() for label in one)
    heads = [
        "",
        *(f"{name}: {head}" for name in found for head in ("before", "last 100", "ratio")),
    ]
    rows = []
    for label in labels:
        row = [label]
        for one in found.values():
            ratio, first, last = one.get(label, (None, 0.0, 0.0))
            row += [number(first), number(last), times(ratio.value)] if ratio else ["", "", ""]
        rows.append(row)
    lines = []
    for name, part in parts.items():
        smooth = _smoothed(part["runs"][-1]["milliseconds"])
        lines.append(Curve(name, smooth, 1 if name == "statelog" else 0, marked=False))
    counts = {name: len(part["runs"][-1]["milliseconds"]) for name, part in parts.items()}
    title = "Milliseconds of a micro-batch, median of fifty"
    x, y = Axis("micro-batch", is_log=False), Axis("ms", is_log=False)
    svg = curves(title, x, y, lines, "The floor is a foreachBatch with one empty Python job.")
    alt = f"{title}: " + "; ".join(
        f"{one.label} {one.points[0][1]:.0f} at first, {one.points[-1][1]:.0f} at last"
        for one in lines
    )
    figure = source.figure("many-batches", svg, alt)
    said = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return "\n".join(
        [table(heads, rows), "", figure, "", f"Micro-batches: {said}. {origin(document)}"]
    )


def _smoothed(values: Sequence[float]) -> list[tuple[float, float]]:
    step = min(50, max(1, len(values) // 4))
    return [
        (at + step, _median(values[at : at + step]))
        for at in range(0, len(values) - step + 1, step)
    ]


def ratios(source: Source) -> dict[str, Ratio]:
    """Return how flat the curves are."""
    found: dict[str, Ratio] = {}
    document = source.find("curves") or {"parts": {}}
    for way, points in ways(document, "keys").items():
        if len(points) > 1:
            found[f"curves: keys, {way}, most to fewest"] = _rate_ratio(points[-1], points[0])
    for name, part in source.find("many-batches").get("parts", {}).items():
        if name != "floor" and is_measured(part):
            for label, (ratio, _, _) in growths(part["runs"][-1]).items():
                found[f"many-batches: {label}, last to first hundred"] = ratio
    return found


def _rate_ratio(part: Part, base: Part) -> Ratio:
    own, other = rate(part), rate(base)
    return Ratio(own.median / other.median, (own.relative**2 + other.relative**2) ** 0.5)


BLOCKS: dict[str, Block] = {
    **{f"curve-{name}": partial(curve, name) for name in _SHOWN},
    "many-batches": many_batches,
}
