"""The blocks of the simulated driver: what is measured, and what follows at stated prices and speeds."""

from __future__ import annotations

import math
from typing import Any

from bench.harness.blocks.curves import ways
from bench.harness.blocks.source import (
    Block,
    Document,
    MissingError,
    Source,
    number,
    origin,
    size,
    table,
)
from bench.harness.figures import Part, Ratio, is_measured, rate
from bench.harness.plots import Axis, Curve, curves

from statelog.extensions.report.bill import PRICES
from statelog.options import SnapshotPolicy

REQUEST_S = 0.030
"""Assumed time of a request of the driver: within a region, to its first byte."""
UPLOAD_BYTES_PER_S = 80e6
"""Assumed speed of one upload."""
EVERY_S = 10.0
"""Assumed time from one micro-batch to the next."""
DELETED_AT_ONCE = 1_000
_STEPS = ("plan", "instructions", "answers", "acknowledge", "commit", "advance", "clean_up")
_TASKS, _BOUNDS = (1_000, 5_000), (20, 64, 250)
_KEYS, _EVENTS_PER_S = 10**9, 10**6
_SPARE = 2
"""As many times the cores that the events need, so that a query can catch up."""
_CORES = 2
_WAYS = ("statelog-direct", "statelog-columns-direct")
_MONTH_S = 30 * 24 * 3600
_GB = 1e9

Run = dict[str, Any]


def parts_of(document: Document, prefix: str) -> list[tuple[Part, Run]]:
    """Return the measured parts of a name, with their run, by size."""
    found = [
        (part, part["runs"][-1])
        for name, part in document["parts"].items()
        if name.startswith(prefix) and is_measured(part)
    ]
    if not found:
        raise MissingError("driver-scale")
    return sorted(found, key=lambda one: (one[0]["tasks"], one[0]["handles"]))


def requests_of(run: Run) -> float:
    """Return the requests of the driver for a micro-batch; deletions go in thousands."""
    counts = dict(run["requests"])
    deleted = counts.pop("deleted objects", 0)
    return sum(counts.values()) + (deleted + DELETED_AT_ONCE - 1) // DELETED_AT_ONCE


def waiting_s(run: Run) -> float:
    """Return how long the driver waits for the store, at the assumed speeds."""
    return requests_of(run) * REQUEST_S + run["driver_bytes"] / UPLOAD_BYTES_PER_S


def median_s(run: Run) -> float:
    """Return the CPU seconds of a micro-batch."""
    ordered = sorted(run["seconds_per_batch"])
    return float(ordered[len(ordered) // 2])


def by_tasks(source: Source) -> str:
    """Return the work of the driver by number of tasks."""
    document = source.document("driver-scale")
    rows = []
    for part, run in parts_of(document, "tasks-"):
        seconds = median_s(run)
        rows.append(
            [
                f"{part['tasks']:,}",
                *(f"{1000 * run['steps'][step]:,.1f}" for step in _STEPS),
                f"**{number(seconds)}**",
                number(waiting_s(run)),
                f"{1e6 * seconds / part['tasks']:,.0f}",
            ]
        )
    heads = ["tasks", *(f"{step.replace('_', '-')}, ms" for step in _STEPS), "CPU, s"]
    heads += ["waiting, s", "CPU per task, µs"]
    return "\n".join([table(heads, rows), "", origin(document)])


def by_log(source: Source) -> str:
    """Return the work of the driver by the length of the log, and its figure."""
    document = source.document("driver-scale")
    rows, points = [], []
    for part, run in parts_of(document, "log-"):
        seconds = median_s(run)
        points.append((run["log_handles"], seconds))
        rows.append(
            [
                f"{run['log_handles']:,.0f}",
                f"{run['log_handles'] / part['tasks']:,.0f}",
                size(run["commit_bytes"]),
                f"**{number(seconds)}**",
                number(run["steps"]["commit"]),
                number(waiting_s(run)),
                f"{run['peak_memory_mib']:,}",
            ]
        )
    heads = ["handles in a commit", "micro-batches", "commit object", "CPU, s"]
    heads += ["of it commit, s", "waiting, s", "peak memory so far, MiB"]
    tasks = parts_of(document, "log-")[-1][0]["tasks"]
    title = f"CPU seconds of the driver by handles in the log, {tasks:,} tasks"
    line = [Curve("one micro-batch", points, 1)]
    svg = curves(title, Axis("handles", is_log=False), Axis("seconds", is_log=False), line)
    said = ", ".join(f"{y:.2f} at {x:,.0f}" for x, y in points)
    figure = source.figure("driver-scale", svg, f"{title}: {said}")
    return "\n".join([table(heads, rows), "", figure, "", origin(document)])


def cost(source: Source) -> str:
    """Return requests, bytes and dollars of the largest simulated job, at each list of prices."""
    document = source.document("driver-scale")
    part, run = parts_of(document, "tasks-")[-1]
    numbers, tasks = document["arguments"], part["tasks"]
    events = tasks * numbers["events_per_task"]
    # The simulated micro-batches are the first ones of a location: in the long run a whole state is
    # written, by each task its part, in as many micro-batches as the log may have.
    bound = SnapshotPolicy().max_log_handles
    puts = tasks + tasks / bound + 1
    lists, gets = run["requests"].get("list", 0), run["requests"].get("head", 0)
    stored = 3 * numbers["state_bytes"]
    lines = [
        table(
            ["for each micro-batch", ""],
            [
                ["events", f"{events:,}"],
                ["puts: changes, snapshots, commit", f"{puts:,.0f}"],
                ["listings; checks of the claims", f"{lists:.0f}; {gets:.0f}"],
                ["bytes of changes", size(tasks * numbers["delta_bytes"])],
                [f"bytes of snapshots: the state in {bound}", size(numbers["state_bytes"] / bound)],
                ["commit object", size(run["commit_bytes"])],
                ["answers to the driver", size(run["answer_bytes"])],
                ["instructions to each executor", size(run["instruction_bytes"])],
                ["CPU of the driver, s", number(median_s(run))],
                ["waiting for the store, s", number(waiting_s(run))],
            ],
        ),
        "",
    ]
    rows = []
    for prices in PRICES.values():
        dollars = ((puts + lists) * prices.puts_per_1000 + gets * prices.gets_per_1000) / 1000
        storage = stored / _GB * prices.gb_month
        batches = _MONTH_S / EVERY_S
        per_million = 1e6 / events
        rows.append(
            [
                prices.title,
                f"{dollars:.4f}",
                f"{dollars * per_million:.6f}",
                f"{storage:,.0f}",
                f"{(dollars + storage / batches) * per_million:.6f}",
            ]
        )
    heads = ["Store", "requests of a micro-batch, $", "requests per million events, $"]
    heads += ["storage of a month, $", "both per million events, $"]
    lines += [table(heads, rows), "", origin(document)]
    return "\n".join(lines)


def limits(source: Source) -> str:
    """Return where the driver saturates, from the two slopes that were measured, and the price of a short log."""
    document = source.document("driver-scale")
    per_task, per_handle = slopes(document)
    state = document["arguments"]["state_bytes"]
    rows = []
    for tasks in _TASKS:
        for bound in _BOUNDS:
            handles = tasks * bound
            seconds = tasks * per_task + handles * per_handle
            rows.append(
                [
                    f"{tasks:,}",
                    f"{bound:,}",
                    f"{handles:,}",
                    number(seconds),
                    f"{seconds / EVERY_S:.0%}",
                    size(state / bound),
                    number(state / tasks / UPLOAD_BYTES_PER_S),
                ]
            )
    heads = ["tasks", "`snapshot.max-log-handles`", "handles, at most", "CPU of the driver, s"]
    heads += [f"busy, a micro-batch each {EVERY_S:.0f} s", "snapshots per micro-batch"]
    heads += ["upload of one task's state, s"]
    said = (
        f"These figures are computed from two measured slopes ({1e6 * per_task:.0f} µs per task and "
        f"{1e6 * per_handle:.1f} µs per handle in the log), from {size(state)} of state that is written "
        f"once in that number of micro-batches, and from uploads at {UPLOAD_BYTES_PER_S / 1e6:.0f} MB/s."
    )
    return "\n".join([table(heads, rows), "", said])


def slopes(document: Document) -> tuple[float, float]:
    """Return CPU seconds per task and per handle in the log."""
    by_handles = parts_of(document, "log-")
    (first, short), (_, long) = by_handles[0], by_handles[-1]
    more = long["log_handles"] - short["log_handles"]
    per_handle = max(0.0, (median_s(long) - median_s(short)) / more) if more > 0 else 0.0
    rest = median_s(short) - per_handle * short["log_handles"]
    return max(0.0, rest / first["tasks"]), per_handle


def needs(source: Source) -> str:
    """Return what a far larger job would need, from the largest points of the curves and the driver's slopes."""
    document, driver = source.document("curves"), source.document("driver-scale")
    per_task, per_handle = slopes(driver)
    bound = SnapshotPolicy().max_log_handles
    table_of: dict[str, list[str]] = {}
    for way in _WAYS:
        part = curve_of(document, "keys", way)[-1]
        measured = part["size"] / _CORES
        for_events = math.ceil(_SPARE * _EVENTS_PER_S / (rate(part).median / _CORES))
        for_keys = math.ceil(_KEYS / measured)
        workers = max(for_events, for_keys)
        memory = part["runs"][-1]["memory_mib"]["RssAnon"]
        seconds = workers * per_task + workers * bound * per_handle
        facts = {
            f"events/s of a core, measured with {part['size']:,} keys": f"{rate(part).median / _CORES:,.0f}",
            f"cores for {_EVENTS_PER_S:,} events/s, half of them idle": f"{for_events:,}",
            f"cores for {_KEYS:,} keys, {measured:,.0f} in each worker": f"{for_keys:,}",
            "**cores needed**": f"**{workers:,}**",
            "memory of all workers": size(workers * memory * 2**20),
            "CPU of the driver for a micro-batch, s": number(seconds),
            f"puts of a micro-batch each {EVERY_S:.0f} s": f"{workers + workers / bound + 1:,.0f}",
        }
        for label, cell in facts.items():
            table_of.setdefault(label, []).append(cell)
    smallest = curve_of(document, "budget", _WAYS[-1])[0]
    keys = curve_of(document, "keys", _WAYS[-1])[-1]["size"]  # of the curve over budgets, too
    bytes_of_key = smallest["runs"][-1]["memory_mib"]["local"] * 2**20 / keys
    on_disk = [size(_KEYS * bytes_of_key)] * len(_WAYS)
    table_of[f"state in local files, {bytes_of_key:.0f} bytes a key"] = on_disk
    rows = [[label, *cells] for label, cells in table_of.items()]
    titles = [curve_of(document, "keys", way)[-1]["title"] for way in _WAYS]
    return "\n".join([table(["", *titles], rows), "", "Computed from the tables below."])


def curve_of(document: Document, curve: str, way: str) -> list[Part]:
    """Return the points of a way on a curve, by size."""
    if not (found := ways(document, curve).get(way)):
        raise MissingError("curves")
    return found


def ratios(source: Source) -> dict[str, Ratio]:
    """Return by how much more the driver works for a task of the largest job than of a smaller."""
    document = source.find("driver-scale")
    if not document:
        return {}
    try:
        parts = [one for one in parts_of(document, "tasks-") if one[0]["tasks"] >= 100]
    except MissingError:
        return {}
    if len(parts) < 2:
        return {}
    each = [median_s(run) / part["tasks"] for part, run in (parts[0], parts[-1])]
    name = f"driver-scale: CPU per task, {parts[-1][0]['tasks']} to {parts[0][0]['tasks']} tasks"
    return {name: Ratio(each[1] / each[0], 0.2, higher_is_better=False)}


BLOCKS: dict[str, Block] = {
    "scale-tasks": by_tasks,
    "scale-log": by_log,
    "scale-cost": cost,
    "scale-limits": limits,
    "scale-needs": needs,
}
