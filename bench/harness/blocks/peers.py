"""The blocks of peers, queries and variety: ways beside each other over the same input."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from bench.harness.blocks.source import (
    Block,
    Document,
    Source,
    number,
    origin,
    table,
    times,
    with_range,
)
from bench.harness.figures import (
    Part,
    Ratio,
    Spread,
    faster,
    is_measured,
    milliseconds,
    rate,
    samples,
)
from bench.harness.plots import Bar, bars, colour_of

PEERS = ("peers-50", "peers-100k", "peers-1m", "peers-7cols", "peers-7cols-1m")
BESIDE = ("queries", "variety")
_BASES = (("spark-tws", "TWS"), ("spark-agg-rocksdb", "RocksDB"), ("spark-agg-heap", "heap"))


def _base_of(name: str) -> str:
    """Return the peer with which a peer is compared first: pandas with pandas."""
    return "spark-tws-pandas" if "pandas" in name else "spark-tws"


def plain(title: str) -> str:
    """Return a title without marks of Markdown."""
    return title.replace("`", "")


def peers(name: str, source: Source) -> str:
    """Return the table of one size of micro-batches, and its figure."""
    document = source.document(name)
    measured = {key: part for key, part in document["parts"].items() if is_measured(part)}
    rows = [_row(key, part, measured) for key, part in measured.items()]
    left_out = [
        f"{part['title']}: {part['skipped']}"
        for part in document["parts"].values()
        if part.get("skipped")
    ]
    heads = ["", "ms per micro-batch", "events/s", "to TWS", "to agg., RocksDB", "to agg., heap"]
    heads += ["objects", "KiB", "n"]
    if floor := measured.get("floor"):
        heads.insert(3, "of the floor")
        for row, part in zip(rows, measured.values(), strict=True):
            row.insert(3, "" if part is floor else times(faster(floor, part).value))
    if any(samples(part, "state_work") for part in measured.values()):
        heads.append("state work")
        for row, part in zip(rows, measured.values(), strict=True):
            shares = samples(part, "state_work")
            row.append(f"{100 * Spread.of(shares).median:.1f} %" if shares else "")
    lines = [table(heads, rows), "", _peers_figure(name, source, measured, document), ""]
    if "state work" in heads:
        lines += [
            "State work is the fraction of a micro-batch that its slowest task spent in statelog and the "
            "processor (wall-clock time, excluding the wait for rows).",
            "",
        ]
    lines.append(origin(document))
    if left_out:
        lines += ["", "Left out: " + "; ".join(sorted(left_out)) + "."]
    return "\n".join(lines)


def _row(key: str, part: Part, measured: dict[str, Part]) -> list[str]:
    bases = [_base_of(key), *(name for name, _ in _BASES[1:])]
    ratios = [
        times(faster(part, measured[base]).value) if base in measured and base != key else ""
        for base in bases
    ]
    ratios[0] = f"**{ratios[0]}**" if ratios[0] and "statelog" in key else ratios[0]
    return [
        part["title"],
        with_range(milliseconds(part)),
        number(rate(part).median),
        *ratios,
        number(Spread.of(samples(part, "files_per_batch")).median),
        number(Spread.of(samples(part, "bytes_per_batch")).median / 1024),
        str(milliseconds(part).samples),
    ]


def _peers_figure(name: str, source: Source, measured: dict[str, Part], document: Document) -> str:
    rows = []
    for key, part in measured.items():
        value = rate(part).median
        rows.append(Bar(plain(part["title"]), value, f"{value:,.0f}", colour_of(key)))
    events = document["arguments"]["events"]
    title = f"Events per second, micro-batches of {events:,} events"
    said = "; ".join(f"{row.label} {row.shown}" for row in rows)
    svg = bars(title, rows, "Medians. Bars begin at zero.")
    return source.figure(name, svg, f"{title}: {said}")


_FIRST = (
    "spark-tws",
    "spark-agg-rocksdb",
    "statelog-staged",
    "statelog-direct",
    "statelog-columns-direct",
    "statelog-aggregate-direct",
    "spark-tws-pandas",
    "statelog-pandas-direct",
)


def first_figure(source: Source) -> tuple[str, str]:
    """Return the figure of the README and its text: the most telling peers, as far as measured."""
    document = source.document("peers-100k")
    parts = {key: document["parts"].get(key) for key in _FIRST}
    rows = []
    for key, part in parts.items():
        if part is None or not is_measured(part):
            continue
        value, base = rate(part).median, parts[_base_of(key)]
        shown = f"{value:,.0f}"
        if "statelog" in key and base is not None and is_measured(base):
            shown += f"  ({times(faster(part, base).value)})"
        rows.append(Bar(plain(part["title"]), value, shown, colour_of(key)))
    title = "Events per second: count and sum per key over the same input"
    said = "; ".join(f"{row.label} {row.shown.replace('  ', ' ')}" for row in rows)
    machine, events = document["machine"], document["arguments"]["events"]
    note = (
        f"Medians, micro-batches of {events:,} events; in brackets: to transformWithState. "
        f"{machine['cores']} cores of an {machine['cpu']}."
    )
    return bars(title, rows, note), f"{title}. {said}"


def cases(document: Document) -> Iterator[tuple[str, dict[str, Part]]]:
    """Yield the cases of a result that all engines ran, with the part of each engine."""
    found: dict[str, dict[str, Part]] = {}
    for key, part in document["parts"].items():
        case, _, engine = key.partition("/")
        if is_measured(part):
            found.setdefault(case, {})[engine] = part
    for case, engines in found.items():
        if {"spark", "statelog-staged", "statelog-direct"} <= engines.keys():
            yield case, engines


_TASK_PHASES = ("catch_up", "input", "process", "append", "output")


def phases(name: str, source: Source) -> str:
    """Return where the time of the jobs went, with direct delivery: in Spark, and in each phase of statelog."""
    rows = []
    for _, engines in cases(source.document(name)):
        direct = engines["statelog-direct"]
        spent = direct["runs"][-1]["phases"]
        whole = statistics.median(direct["runs"][-1]["milliseconds"])
        tasks = [spent.get(f"task {phase}", 0.0) for phase in _TASK_PHASES]
        driver = spent["total"] - spent["run"]
        figures = [whole, whole - spent["total"], driver, spent["run"] - sum(tasks), *tasks]
        rows.append([direct["title"], *map(number, figures)])
    heads = ["ms", "micro-batch", "Spark's planning and logs", "statelog's driver"]
    heads += ["Spark's job, outside of the slowest task"]
    heads += [f"task: {phase.replace('_', ' ')}" for phase in _TASK_PHASES]
    return table(heads, rows)


def beside(name: str, source: Source) -> str:
    """Return the table of jobs that both engines ran, and its figure."""
    document = source.document(name)
    rows, drawn = [], []
    for _, engines in cases(document):
        spark, direct = engines["spark"], engines["statelog-direct"]
        staged = engines["statelog-staged"]
        ratio = faster(direct, spark).value
        rows.append(
            [
                spark["title"],
                with_range(milliseconds(spark)),
                with_range(milliseconds(staged)),
                with_range(milliseconds(direct)),
                times(faster(staged, spark).value),
                f"**{times(ratio)}**",
                f"{spark['compared_rows']:,}",
            ]
        )
        drawn.append(Bar(plain(spark["title"]), ratio, times(ratio), 1))
    heads = ["", "Spark, ms", "staged, ms", "direct, ms", "staged", "direct", "equal rows"]
    title = f"Times as fast as Spark's transformWithState: {name}, direct delivery"
    said = "; ".join(f"{row.label} {row.shown}" for row in drawn)
    svg = bars(title, drawn, "Medians of micro-batches in one run, the same unmodified processor.")
    figure = source.figure(name, svg, f"{title}: {said}")
    return "\n".join([table(heads, rows), "", figure, "", origin(document)])


def ratios(source: Source) -> dict[str, Ratio]:
    """Return the ratios of all peers and jobs."""
    found: dict[str, Ratio] = {}
    for name in PEERS:
        parts = source.find(name).get("parts", {})
        for key, part in parts.items():
            for base in {_base_of(key), "spark-agg-rocksdb", "spark-agg-heap"}:
                both = is_measured(part) and is_measured(parts.get(base))
                if key.startswith("statelog") and both:
                    found[f"{name}: {key} to {base}"] = faster(part, parts[base])
    for name in BESIDE:
        for case, engines in cases(source.find(name) or {"parts": {}}):
            for engine in ("statelog-staged", "statelog-direct"):
                ratio = faster(engines[engine], engines["spark"])
                found[f"{name}: {case}, {engine} to spark"] = ratio
    return found


BLOCKS: dict[str, Block] = {
    **{name: partial(peers, name) for name in PEERS},
    **{name: partial(beside, name) for name in BESIDE},
    "variety-phases": partial(phases, "variety"),
}
