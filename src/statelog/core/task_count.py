"""
Choose how many tasks a micro-batch gets, from its estimated work and within limits.

One task needs no shuffle; several share the work, and each pays for the shuffle and a Python task.
The work of a micro-batch is estimated from the size of its input, where that is known, else from
the rows of the last micro-batches.  The cost of a row is measured on the last micro-batches.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from statelog.errors import UsageError

TASK_WORK_MS = 150.0
"""Work that pays for one more task: the cost of a shuffle and a second Python task, measured with
`bench/pipeline.py` on two cores."""

_FEWER_BELOW = 0.75
"""Part of the work that has paid for a number of tasks, below which there are fewer: tasks that get
other keys replay what they missed, so the number must not go to and fro with the noise."""

_ROW_MS = 0.004
"""Cost of a row before the first measurement: a running total per key, rows included."""

_INPUT_ROW_BYTES = 16
"""Bytes of input per row before the first measurement."""

_REMEMBERED = 3
_SLOW_INPUT_MS = 300.0
_SLOW_INPUTS = 3
"""In a row; the first batch of a run is always slow."""

_SHUFFLED_BATCHES = 100


@dataclass(frozen=True, slots=True)
class TaskBounds:
    """
    The limits on the number of tasks.

    Args:
        least: 1 to *most*.
        most: At most the number of key groups.

    Raises:
        UsageError: The bounds contradict each other.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(
                f"tasks must be a range that starts at 1 or more; got {self.least} to {self.most}"
            )


@dataclass(frozen=True, slots=True)
class BatchCost:
    """
    The cost of a micro-batch.

    Args:
        tasks: Its number of tasks.
        rows: Its input rows.
        input_bytes: Size of its input, known before it ran; None if unknown.
        work_ms: Time that all tasks together spent on rows, milliseconds.
        input_ms: Longest time that a task waited for rows, milliseconds.
    """

    tasks: int
    rows: int
    input_bytes: int | None
    work_ms: float
    input_ms: float


class TaskCount:
    """
    Chooses the number of tasks for each micro-batch.

    The most expensive of the last three micro-batches counts, and there are fewer tasks only where
    the work is clearly less.  A burst is under-provisioned for at most one micro-batch, and not at
    all where the size of the input is known.
    """

    def __init__(self, bounds: TaskBounds, task_work_ms: float = TASK_WORK_MS) -> None:
        self._bounds = bounds
        self._task_work_ms = task_work_ms
        self._last: deque[BatchCost] = deque(maxlen=_REMEMBERED)
        self._shuffled = 0
        self._slow_inputs = 0

    def choose(self, input_bytes: int | None) -> int:
        """Return the number of tasks for the next micro-batch."""
        rows = self._expected_rows(input_bytes)
        # Nothing is known before the first batch: start wide, and narrow after a measurement.
        if rows is None:
            return self._bounds.most
        # While the input is slow, a shuffle spreads its reading: at least two tasks.
        least = max(self._bounds.least, 2) if self._shuffled else self._bounds.least
        paid = rows * self._row_ms() / self._task_work_ms
        count = math.floor(paid) + 1
        # Fewer than before only with a margin, see `_FEWER_BELOW`; more at once.
        if self._last and count < self._last[-1].tasks:
            count = min(math.floor(paid / _FEWER_BELOW) + 1, self._last[-1].tasks)
        return min(max(count, least), self._bounds.most)

    def ran(self, cost: BatchCost) -> None:
        """Record the cost of a micro-batch."""
        self._last.append(cost)
        self._shuffled = max(0, self._shuffled - 1)
        # Without a shuffle the one task also reads, parses and filters the input.  That is worth
        # more tasks although few rows are left.
        slow = cost.tasks == 1 and cost.input_ms > max(_SLOW_INPUT_MS, cost.work_ms)
        self._slow_inputs = self._slow_inputs + 1 if slow else 0
        if self._slow_inputs >= _SLOW_INPUTS:
            self._shuffled = _SHUFFLED_BATCHES
            self._slow_inputs = 0

    def _expected_rows(self, input_bytes: int | None) -> float | None:
        if input_bytes is None:
            return max((cost.rows for cost in self._last), default=None)
        # Rows per byte of the last batches turns a size into rows.
        ratios = [
            cost.rows / cost.input_bytes for cost in self._last if cost.input_bytes and cost.rows
        ]
        return input_bytes * max(ratios, default=1 / _INPUT_ROW_BYTES)

    def _row_ms(self) -> float:
        # For a few rows, only the fixed cost would be measured.
        return max(
            (cost.work_ms / cost.rows for cost in self._last if cost.rows >= _MIN_SAMPLE_ROWS),
            default=_ROW_MS,
        )


_MIN_SAMPLE_ROWS = 1000
