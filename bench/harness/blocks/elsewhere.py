"""The blocks of the other engines that a Python user could pick: `bench.elsewhere.run`."""

from __future__ import annotations

from functools import partial

from bench.harness.blocks.source import (
    Block,
    Document,
    MissingError,
    Source,
    number,
    origin,
    table,
    times,
    with_range,
)
from bench.harness.figures import Part, Spread, is_measured, samples

BASE = "statelog-rows"
"""The engine with which each other one is compared: a processor of Rows, direct."""
HEADS = (
    "",
    "survives a crash",
    "emits a row for each",
    "events/s",
    "events per CPU second",
    "to statelog, rows",
    "peak MiB",
    "n",
)


def engines(name: str, query: str, source: Source) -> str:
    """Return the table of one query, the fastest engine for each CPU second first."""
    document = source.document(name)
    parts = _parts_of(document, query)
    measured = {engine: part for engine, part in parts.items() if is_measured(part)}
    if not measured:
        raise MissingError(name)
    base = measured.get(BASE)
    ordered = sorted(measured.values(), key=_per_cpu_second, reverse=True)
    lines = [table(HEADS, (_row(part, base) for part in ordered)), ""]
    packages = sorted(
        {package for part in measured.values() for package in part["packages"] if "==" in package}
    )
    lines += [f"Versions: {', '.join(f'`{package}`' for package in packages)}.", ""]
    left_out = [
        f"{part['title']}: {part.get('skipped') or part.get('failed')}"
        for part in parts.values()
        if not is_measured(part)
    ]
    if left_out:
        lines += [f"Not measured: {'; '.join(left_out)}.", ""]
    lines.append(origin(document))
    return "\n".join(lines)


def _parts_of(document: Document, query: str) -> dict[str, Part]:
    """Return the engines that were asked for a query, by name."""
    return {
        name.removeprefix(f"{query}/"): part
        for name, part in document["parts"].items()
        if name.startswith(f"{query}/")
    }


def _per_cpu_second(part: Part) -> float:
    return Spread.of(samples(part, "events_per_cpu_s")).median


def _row(part: Part, base: Part | None) -> list[str]:
    is_base = part is base
    return [
        f"**{part['title']}**" if is_base else part["title"],
        part["guarantee"],
        part["output"],
        with_range(Spread.of(samples(part, "events_per_s"))),
        with_range(Spread.of(samples(part, "events_per_cpu_s"))),
        "" if is_base or base is None else times(_per_cpu_second(part) / _per_cpu_second(base)),
        number(Spread.of(samples(part, "peak_mib")).median),
        str(len(part["runs"])),
    ]


BLOCKS: dict[str, Block] = {
    "elsewhere": partial(engines, "elsewhere", "totals"),
    "elsewhere-last-ten": partial(engines, "elsewhere-last-ten", "last_ten"),
}
