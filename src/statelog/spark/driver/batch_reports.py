"""
Report each micro-batch: its log line, callback, metrics, and a warning if it is skewed.

The figures of the tasks are combined here.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import msgspec

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.task_count import BatchCost
from statelog.errors import InvariantError
from statelog.metrics import Metrics, add_entries
from statelog.metrics.table import (
    FIGURES,
    NO_FIGURES,
    BatchFigures,
    Figure,
    FigureKind,
    FigureValue,
    Number,
    metrics_of,
)
from statelog.runtime.clock import Stopwatch
from statelog.spark.query.progress import BatchProgress, LargeKey, LargeKeyGroup, Observers
from statelog.spark.worker.protocol import TaskAck
from statelog.spark.worker.task_input import MIN_LARGE_ROWS, REPORTED_MAX
from statelog.store.requests import REPEATED_REQUESTS, RepeatedSince

_Figures: TypeAlias = dict[str, FigureValue]


def figures_of(
    answers: Sequence[Sequence[TaskAck]], extras: Mapping[str, Figure] = NO_FIGURES
) -> BatchFigures:
    """Return the figures of a micro-batch; *extras* are the figures declared by extensions."""
    declared = {**FIGURES, **extras}
    # First over the tasks of each operator, then over the operators.
    operators = [_combined([ack.figures for ack in acks], declared) for acks in answers]
    combined = _combined(operators, declared)
    for kind, operator in ((FigureKind.FIRST, operators[0]), (FigureKind.LAST, operators[-1])):
        combined |= {
            name: operator.get(name, 0) for name, figure in declared.items() if figure.kind is kind
        }
    combined |= _of_uploads(chain(*(ack.uploads for ack in chain(*answers))))
    of_extensions = {name: combined.pop(name, 0) for name in extras}
    return msgspec.convert({**combined, "extras": of_extensions}, BatchFigures)


def _combined(
    counted: Iterable[Mapping[str, FigureValue]], declared: Mapping[str, Figure]
) -> _Figures:
    """Combine the figures counted by several tasks or operators."""
    columns = defaultdict[str, list[FigureValue]](list)
    for figures in counted:
        for name, value in figures.items():
            columns[name].append(value)
    return {name: _folded(name, declared.get(name), values) for name, values in columns.items()}


def _folded(name: str, figure: Figure | None, values: Sequence[FigureValue]) -> FigureValue:
    """Combine several values of one figure."""
    if figure is None or figure.kind is FigureKind.DRIVER:
        raise InvariantError(f"a task reported {name!r}, which is not a figure of a task")
    # A figure is a number, or numbers by name, such as milliseconds by phase.
    fold = max if figure.kind is FigureKind.MOST else sum
    numbers = [value for value in values if isinstance(value, int | float)]
    if numbers:
        return fold(numbers)
    parts = defaultdict[str, list[Number]](list)
    for value in values:
        if isinstance(value, Mapping):
            for key, number in value.items():
                parts[key].append(number)
    return figure.no_numbers() | {key: fold(counted) for key, counted in parts.items()}


def _of_uploads(entries: Iterable[tuple[str, float]]) -> _Figures:
    """Return the figures that the workers recorded about uploads."""
    recorded = defaultdict[str, list[float]](list)
    for name, value in entries:
        recorded[name].append(value)
    return {
        name: figure.fold(recorded[figure.recorded])
        for name, figure in FIGURES.items()
        if figure.recorded in recorded
    }


_WORK: Final = ("input", "process", "output", "append", "stage")


def batch_cost(acks: Sequence[TaskAck], size: int | None) -> BatchCost:
    """Compute the cost of a micro-batch from the results of its tasks."""
    waits = [ack.milliseconds("wait") for ack in acks]
    return BatchCost(
        tasks=len(acks),
        rows=sum(ack.count("rows") for ack in acks),
        input_bytes=size,
        work_ms=sum(ack.milliseconds(phase) for ack in acks for phase in _WORK) - sum(waits),
        input_ms=max(waits, default=0.0),
    )


# What a micro-batch cost, for its record in the checkpoint.

_AFTER: Final = ("commit", "deliver", "clean_up")


def after_commit(watch: Stopwatch) -> dict[str, int]:
    """Return the phases from the commit on, which the next micro-batch's record includes."""
    return {phase: round(ms) for phase, ms in watch.milliseconds.items() if phase in _AFTER}


# Find the key groups and keys with most of the rows.

DOMINATING_SHARE = 0.5


def largest_groups(acks: Sequence[TaskAck]) -> list[LargeKeyGroup]:
    """Return the largest key groups of a micro-batch."""
    total = sum(ack.count("rows") for ack in acks)
    top = sorted(
        (top_group for ack in acks for top_group in ack.top_groups),
        key=lambda top_group: -top_group[1],
    )
    return [
        {"key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, rows in top[:REPORTED_MAX]
    ]


def largest_keys(acks: Sequence[TaskAck]) -> list[LargeKey]:
    """Return the largest keys of a micro-batch."""
    total = sum(ack.count("rows") for ack in acks)
    top = sorted(
        (top_key for ack in acks for top_key in ack.top_keys), key=lambda top_key: -top_key[2]
    )
    return [
        {"key": key, "key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, key, rows in top[:REPORTED_MAX]
    ]


class Skew(NamedTuple):
    """A dominating key or key group and the warning about it; both are "" if none dominates."""

    subject: str = ""
    warning: str = ""


def skew_of(groups: Sequence[LargeKeyGroup], keys: Sequence[LargeKey]) -> Skew:
    """Find the key or key group that dominates a micro-batch, if any."""
    if not groups or groups[0]["rows"] < MIN_LARGE_ROWS:
        return Skew()
    if keys and keys[0]["share"] >= DOMINATING_SHARE:
        subject = f"key {keys[0]['key']}"
        return Skew(
            subject,
            f"{subject} receives {keys[0]['share']:.0%} of the rows; the rows of one key "
            "always go to one task, so more tasks do not help",
        )
    if groups[0]["share"] >= DOMINATING_SHARE:
        subject = f"key group {groups[0]['key_group']}"
        return Skew(
            subject,
            f"{subject} receives {groups[0]['share']:.0%} of the rows, which always go to one task",
        )
    return Skew()


_log = logging.getLogger("statelog.spark")


class BatchReports:
    """Reports the micro-batches of one query; *extras* are the figures declared by extensions."""

    def __init__(self, observers: Observers, extras: Mapping[str, Figure] = NO_FIGURES) -> None:
        self._on_progress = observers.on_progress
        self._metrics = observers.metrics or Metrics()
        self._metrics.declare(metrics_of(extras))
        self._no_extras = dict.fromkeys(extras, 0)
        self._figures = {**FIGURES, **extras}
        self._last_skewed = ""
        self._repeated = RepeatedSince()
        self.current: BatchProgress | None = None
        """The figures of the newest micro-batch; None while it runs, or if it had no effect."""

    def begin(self) -> None:
        """Discard the figures of the previous micro-batch."""
        self.current = None

    def committed(
        self,
        batch_id: int,
        checkpoint_id: int,
        figures: BatchFigures,
        acks: Sequence[TaskAck],
    ) -> None:
        """Report a micro-batch that was committed and delivered."""
        # What the driver repeated; the tasks have counted their own.
        repeated = self._repeated.take()
        all_requests = figures.repeated_requests + repeated
        progress = BatchProgress(
            **asdict(replace(figures, repeated_requests=all_requests)),
            batch_id=batch_id,
            checkpoint_id=checkpoint_id,
            largest_key_groups=largest_groups(acks),
            largest_keys=largest_keys(acks),
        )
        self._warn_of_skew(progress)
        self._measure(progress, acks, repeated)
        self._emit(progress)

    def _warn_of_skew(self, progress: BatchProgress) -> None:
        """Warn about each dominating key or key group once."""
        skew = skew_of(progress.largest_key_groups, progress.largest_keys)
        if skew.subject and skew.subject != self._last_skewed:
            self._last_skewed = skew.subject
            _log.warning("the load of batch %d is uneven: %s", progress.batch_id, skew.warning)

    def _measure(self, progress: BatchProgress, acks: Sequence[TaskAck], repeated: int) -> None:
        """Update the metrics with the micro-batch's figures."""
        self._metrics.count(REPEATED_REQUESTS, repeated)
        for ack in acks:
            add_entries(self._metrics, ack.uploads)
        for name, figure in self._figures.items():
            if figure.gauge:
                self._metrics.gauge(figure.gauge, partial(getattr, progress, name))

    def delivered_again(
        self, batch_id: int, checkpoint_id: int, record: BatchRecord, watch: Stopwatch
    ) -> None:
        """Report the redelivery of a micro-batch from an earlier run."""
        self._emit(
            BatchProgress(
                batch_id=batch_id,
                checkpoint_id=checkpoint_id,
                replayed=True,
                tasks=record.figures.tasks,
                output_rows=record.figures.output_rows,
                extras=self._no_extras,
                milliseconds=watch.with_total(),
            )
        )

    def _emit(self, progress: BatchProgress) -> None:
        _log.info("%s", progress)
        self.current = progress
        for name, figure in self._figures.items():
            if figure.counter:
                self._metrics.count(figure.counter, getattr(progress, name))
        self._metrics.record("micro_batch_durations", progress.milliseconds["total"])
        if self._on_progress is not None:
            self._on_progress(progress)
