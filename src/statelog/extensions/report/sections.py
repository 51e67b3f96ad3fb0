"""The sections of the page that show charts: state, micro-batches, key groups."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from statelog.extensions.report import texts
from statelog.extensions.report.charts import Chart, Series, chart, table
from statelog.extensions.report.figures import CheckpointFigures, Figures
from statelog.extensions.report.html import Child, Html, tag
from statelog.extensions.report.skew import KeyGroups, spread_of

SHOWN_MAX: Final = 400
"""Checkpoints that charts and tables show, the newest ones; `--json` has all."""
PHASES: Final = {
    "plan": "Plan",
    "run": "Run tasks",
    "commit": "Commit",
    "deliver": "Deliver",
    "clean_up": "Clean up",
}
"""Phases of a micro-batch on the driver, in their order."""
_INSIDE: Final = (
    "catch_up", "input", "wait", "process", "output", "append", "snapshot", "stage",
)  # fmt: skip
"""Phases of a task, in their order."""
_TONES: Final = (5, 1, 2, 3, 4)
_BARS_MAX: Final = 256


def section(identity: str, title: str, *children: Child) -> Html:
    """Return a section with its heading."""
    heading = f"{identity}-heading"
    return tag(
        "section",
        {"id": identity, "aria-labelledby": heading},
        tag("h2", {"id": heading}, title),
        children,
    )


def shown(figures: Figures) -> list[CheckpointFigures]:
    """Return the checkpoints that charts show: readable ones, the newest of them."""
    readable = [
        checkpoint for checkpoint in figures.checkpoints if checkpoint.created_at_ms is not None
    ]
    return readable[-SHOWN_MAX:]


def state_section(figures: Figures) -> Html:
    """Return the growth of state and log."""
    rows = shown(figures)
    labels = [str(row.checkpoint_id) for row in rows]
    when = [texts.moment(row.created_at_ms) for row in rows]
    return section(
        "state",
        "State and log",
        tag(
            "div",
            {"class": "pair"},
            chart(
                Chart(
                    identity="entries",
                    title="State entries",
                    note="Values, list elements, map entries and timers before each micro-batch.",
                    head="Checkpoint",
                    labels=labels,
                    series=[Series("Entries", [row.state_entries for row in rows], 1)],
                    is_area=True,
                    extra=[("Committed", when)],
                )
            ),
            chart(
                Chart(
                    identity="stored-state",
                    title="Snapshots, and the log after them",
                    note="What a restart from the checkpoint needs: stored bytes of snapshots, and "
                    "bytes of changes after them. A snapshot makes the log shorter.",
                    head="Checkpoint",
                    labels=labels,
                    series=[
                        Series("Snapshots", [row.full_snapshot_bytes for row in rows], 1),
                        Series("Log after them", [row.log_bytes for row in rows], 2),
                    ],
                    show=texts.size,
                    binary=True,
                    is_area=True,
                    extra=[
                        ("Log handles", [texts.count(row.log_handles) for row in rows]),
                        ("Committed", when),
                    ],
                )
            ),
        ),
    )


def batch_section(figures: Figures) -> Html:
    """Return duration, bytes, objects and rows of the micro-batches, and retries."""
    rows = shown(figures)
    charts = [_durations(rows), _bytes(figures, rows), _objects(rows), _rows(rows)]
    return section(
        "batches",
        "Micro-batches",
        tag("div", {"class": "pair"}, [chart(each) for each in charts]),
        tag("div", {"class": "pair"}, _phases(rows), _retries(rows)),
    )


def _durations(rows: Sequence[CheckpointFigures]) -> Chart:
    series = [
        Series(name, [row.durations_ms.get(phase) for row in rows], tone)
        for (phase, name), tone in zip(PHASES.items(), _TONES, strict=True)
    ]
    return Chart(
        identity="durations",
        title="Duration by phase",
        note="On the driver. The phases after the commit are recorded by the next micro-batch of the "
        "run, so the newest one lacks them.",
        head="Checkpoint",
        labels=[str(row.checkpoint_id) for row in rows],
        series=series,
        show=texts.duration,
        extra=[
            ("Micro-batch", [texts.count(row.batch_id) for row in rows]),
            ("Tasks", [texts.count(row.tasks) for row in rows]),
        ],
    )


def _bytes(figures: Figures, rows: Sequence[CheckpointFigures]) -> Chart:
    older = figures.older_changes[-SHOWN_MAX + len(rows) :] if len(rows) < SHOWN_MAX else ()
    if rows:
        older = tuple(each for each in older if each[0] < rows[0].checkpoint_id)
    nothing: list[float | None] = [None] * len(older)
    note = "Changes of state and staged rows before compression, and the snapshots that it wrote."
    if older:
        note += (
            f" {texts.plural(len(older), 'older checkpoint')} are no longer stored; the log "
            "behind the snapshots still has their changes."
        )
    return Chart(
        identity="bytes",
        title="Bytes of each checkpoint",
        note=note,
        head="Checkpoint",
        labels=[*(str(each) for each, _ in older), *(str(row.checkpoint_id) for row in rows)],
        series=[
            Series("Changes", [*(size for _, size in older), *(x.change_bytes for x in rows)], 1),
            Series("Staged rows", [*nothing, *(row.output_bytes for row in rows)], 3),
            Series("Snapshots", [*nothing, *(row.snapshot_bytes for row in rows)], 2),
        ],
        show=texts.size,
        binary=True,
    )


def _objects(rows: Sequence[CheckpointFigures]) -> Chart:
    return Chart(
        identity="objects",
        title="Objects of each checkpoint",
        note="Each is one put. The commit is one; large changes, large outputs and snapshots are "
        "objects of their own.",
        head="Checkpoint",
        labels=[str(row.checkpoint_id) for row in rows],
        series=[Series("Objects", [row.objects for row in rows], 1)],
        extra=[("Size of the commit", [texts.size(row.commit_bytes) for row in rows])],
    )


def _rows(rows: Sequence[CheckpointFigures]) -> Chart:
    return Chart(
        identity="rows",
        title="Input rows",
        note="Rows of each micro-batch; the table has keys and output rows too.",
        head="Checkpoint",
        labels=[str(row.checkpoint_id) for row in rows],
        series=[Series("Rows", [row.rows for row in rows], 1)],
        extra=[
            ("Keys", [texts.count(row.keys) for row in rows]),
            ("Output rows", [texts.count(row.output_rows) for row in rows]),
        ],
    )


def _phases(rows: Sequence[CheckpointFigures]) -> Html | None:
    """Return a table of the phases: median, 95th percentile, share."""
    parts: list[list[str | Html]] = []
    total = sum(row.total_ms or 0 for row in rows)
    for phase, name in PHASES.items():
        parts += _phase(name, [row.durations_ms.get(phase) for row in rows], total)
        if phase == "run":
            inner = {inside for row in rows for inside in row.task_ms}
            for inside in sorted(inner, key=_place):
                text = tag("span", {"class": "inner"}, inside.replace("_", " "))
                parts += _phase(text, [row.task_ms.get(inside, 0) for row in rows if row.task_ms])
    if not parts:
        return None
    return tag(
        "div",
        {"class": "card"},
        tag("h3", {}, "Where the time is spent"),
        tag(
            "p",
            {"class": "note"},
            "The indented lines are phases inside of the tasks, of the slowest task in each, so they "
            "do not add up to the run.",
        ),
        table(
            ["Phase", "Median", "95th percentile", "Share"],
            parts,
            caption="Where the time is spent",
        ),
    )


def _phase(
    name: str | Html, values: Sequence[int | None], total: int | None = None
) -> list[list[str | Html]]:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return []
    share = texts.percent(sum(numbers) / total) if total else ""
    high = float(np.percentile(numbers, 95))
    return [[name, texts.duration(statistics.median(numbers)), texts.duration(high), share]]


def _place(phase: str) -> tuple[int, str]:
    """Return the place of a task's phase; unknown ones are the last."""
    return (_INSIDE.index(phase) if phase in _INSIDE else len(_INSIDE), phase)


def _retries(rows: Sequence[CheckpointFigures]) -> Html:
    """Return a table of the runs, with what was repeated in each."""
    runs: dict[int, list[CheckpointFigures]] = {}
    for row in rows:
        runs.setdefault(row.epoch or 0, []).append(row)
    parts = [
        [
            str(epoch),
            f"{batches[0].checkpoint_id} to {batches[-1].checkpoint_id}",
            texts.count(_sum([each.task_retries for each in batches])),
            texts.count(_sum([each.put_retries for each in batches])),
            texts.count(_sum([each.uploads for each in batches])),
            texts.count(_sum([each.upload_retries for each in batches])),
            texts.size(_sum([each.upload_bytes for each in batches])),
            texts.duration(_highest([each.slowest_upload_ms for each in batches])),
        ]
        for epoch, batches in runs.items()
    ]
    return tag(
        "div",
        {"class": "card", "id": "retries"},
        tag("h3", {}, "Retries and restarts"),
        tag(
            "p",
            {"class": "note"},
            f"{texts.plural(len(runs), 'run')} of the query committed these checkpoints. Requests that "
            "the client of the store repeats by itself are not counted.",
        ),
        table(
            [
                "Run",
                "Checkpoints",
                "Failed task attempts",
                "Repeated puts",
                "Uploads of tasks",
                "Repeated attempts",
                "Bytes uploaded",
                "Slowest upload",
            ],
            parts,
            caption="Retries and restarts",
        ),
        _retried(rows),
    )


def _retried(rows: Sequence[CheckpointFigures]) -> Html | None:
    """Return the checkpoints whose micro-batch or commit was repeated in part."""
    retried = [
        [
            str(row.checkpoint_id),
            texts.count(row.task_retries),
            texts.count(row.put_retries),
            texts.count(row.upload_retries),
        ]
        for row in rows
        if row.task_retries or row.put_retries or row.upload_retries
    ]
    if not retried:
        return None
    return tag(
        "details",
        {},
        tag("summary", {}, "Table: checkpoints with retries"),
        table(
            ["Checkpoint", "Failed task attempts", "Repeated puts", "Repeated uploads"],
            retried,
            caption="Checkpoints with retries",
        ),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _highest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def skew_section(figures: Figures) -> Html:
    """Return keys and changes by key group."""
    if figures.skew_problem:
        body: Child = tag("p", {"class": "card"}, f"Not counted: {figures.skew_problem}")
    elif not figures.skew:
        body = tag("p", {"class": "card"}, "There is no state of a query to count.")
    else:
        body = [_key_groups(at, skew) for at, skew in enumerate(figures.skew)]
    return section("key-groups", "Key groups", body)


def _key_groups(at: int, skew: KeyGroups) -> Html:
    charts = []
    for name, title, noun, counts, show in (
        ("keys", "Keys", "keys", skew.keys, texts.count),
        ("changes", "Changes in the log", "bytes of changes", skew.change_bytes, texts.size),
    ):
        if counts:
            charts.append(_groups(f"{name}-{at}", f"{title}: {skew.operator}", noun, counts, show))
    return tag("div", {"class": "pair"}, [chart(each) for each in charts])


def _groups(
    identity: str,
    title: str,
    noun: str,
    counts: Sequence[int],
    show: Callable[[float | None], str],
) -> Chart:
    spread = spread_of(counts)
    if spread is None:
        note = f"There are no {noun}."
    else:
        note = (
            f"Key group {spread.largest_group} has the most {noun}, {show(spread.largest)}: "
            f"{texts.times(spread.factor)} the mean. The median is {show(spread.median)}."
        )
    each = -(-len(counts) // _BARS_MAX)
    starts = range(0, len(counts), each)
    if each > 1:
        note += f" Each bar is the largest of {each} key groups."
    return Chart(
        identity=identity,
        title=title,
        note=note,
        head="Key group",
        labels=[str(at) if each == 1 else f"{at}–{at + each - 1}" for at in starts],
        series=[Series(noun.capitalize(), [max(counts[at : at + each]) for at in starts], 1)],
        show=show,
        binary=show is texts.size,
    )
