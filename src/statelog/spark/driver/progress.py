"""Combine the figures that the tasks of a micro-batch counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

import msgspec

from statelog.core.task_count import BatchCost
from statelog.errors import InvariantError
from statelog.metrics.table import (
    FIGURES,
    NO_FIGURES,
    BatchFigures,
    Figure,
    FigureKind,
    FigureValue,
    Number,
)
from statelog.spark.worker.protocol import TaskAck

_Figures: TypeAlias = dict[str, FigureValue]


def figures_of(
    answers: Sequence[Sequence[TaskAck]], extras: Mapping[str, Figure] = NO_FIGURES
) -> BatchFigures:
    """Return the figures of a micro-batch; *extras* are the figures that extensions declare."""
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
    """Return the figures that several tasks, or operators, counted."""
    columns = defaultdict[str, list[FigureValue]](list)
    for figures in counted:
        for name, value in figures.items():
            columns[name].append(value)
    return {name: _folded(name, declared.get(name), values) for name, values in columns.items()}


def _folded(name: str, figure: Figure | None, values: Sequence[FigureValue]) -> FigureValue:
    """Return several values of a figure as one."""
    if figure is None or figure.kind is FigureKind.DRIVER:
        raise InvariantError(f"a task counted {name!r}, which is not a figure of tasks")
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
    """Return the figures of what the workers recorded of their uploads."""
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
    """Return the cost of a micro-batch, from the answers of its tasks."""
    waits = [ack.milliseconds("wait") for ack in acks]
    return BatchCost(
        tasks=len(acks),
        rows=sum(ack.count("rows") for ack in acks),
        input_bytes=size,
        work_ms=sum(ack.milliseconds(phase) for ack in acks for phase in _WORK) - sum(waits),
        input_ms=max(waits, default=0.0),
    )
