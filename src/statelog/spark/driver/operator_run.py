"""
Run one operator of a query over a micro-batch.

The input of the first operator is the frame that Spark gives, that of each other operator the
staged rows of the operator before it, with the steps in between.  Rows between operators are those
of the answers that are committed, because every operator is one Spark job: a task that runs twice
cannot give its rows of one attempt and its changes of the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import OperatorRecord
from statelog.core.task_count import TASK_WORK_MS, TaskCount
from statelog.model import KeyGroupRange
from statelog.spark.driver.batch_reports import batch_cost
from statelog.spark.driver.batch_times import BatchTimes
from statelog.spark.driver.delivery import frame_of_rows, inline_rows
from statelog.spark.driver.extension import DriverExtensions
from statelog.spark.driver.no_data_batches import has_due_timer
from statelog.spark.driver.state_location import StateLocation
from statelog.spark.jvm.frames import input_bytes
from statelog.spark.query.keyed_frame import InitialState, by_task, with_initial_rows
from statelog.spark.query.query import Query
from statelog.spark.rows.layout import LateRows
from statelog.spark.worker.protocol import (
    BatchContext,
    TaskAck,
    TaskRows,
    TaskSpec,
    TaskState,
)

# Warn of output columns that no row names, which a misspelt name leaves null as in Spark.

_log = logging.getLogger("statelog.spark")

_MOST_NAMES: Final = 10


class UnnamedOutput:
    """
    Warns once if an operator's rows omit output columns.

    The first micro-batch with output rows decides.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_decided = False

    def committed(self, batch_id: int, acks: Sequence[TaskAck]) -> None:
        """Warn about output columns that no row in a committed micro-batch sets."""
        if self._is_decided:
            return
        # Tasks without output rows say nothing about the columns.
        answers = [ack.output.unnamed for ack in acks if ack.count("output_rows")]
        self._is_decided = bool(answers)
        unnamed = [answer for answer in answers if answer is not None]
        if not answers or len(unnamed) < len(answers):  # a task names all columns
            return
        columns = [
            name
            for name in unnamed[0].columns
            if all(name in answer.columns for answer in unnamed[1:])
        ]
        if columns:
            others = sorted({name for answer in unnamed for name in answer.other_names})
            _log.warning("%s", self._message(batch_id, columns, others))

    def _message(self, batch_id: int, columns: Sequence[str], others: Sequence[str]) -> str:
        message = (
            f"no output row of {self._name} in batch {batch_id} sets the columns "
            f"{_listed(map(repr, columns))}: they are null"
        )
        if others:
            fields = _listed(_with_advice(name, columns) for name in others)
            message += f". The rows contain fields that are not columns: {fields}"
        return message


def _with_advice(name: str, columns: Sequence[str]) -> str:
    """Quote a field name, and suggest an output column with a similar name."""
    by_lower = {column.lower(): column for column in columns}
    similar = get_close_matches(name.lower(), by_lower, n=1)
    return f"{name!r} (did you mean {by_lower[similar[0]]!r}?)" if similar else repr(name)


def _listed(names: Iterable[str]) -> str:
    """Join names with commas; if there are many, only the first few."""
    every = list(names)
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return ", ".join(every[:_MOST_NAMES]) + more


_MAX_INLINE_BYTES = 32 * 1024 * 1024
"""Maximum bytes that all tasks send through the driver, for deltas and for rows."""

_SMALL_BYTES = 512 * 1024
"""Input that one task reads and reduces faster than two stages of Spark."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """
    A micro-batch that has started.

    Args:
        batch_id: Spark's id of it.
        checkpoint_id: The checkpoint it makes.
        times: Its times.
        ranges: Key groups of each task, by operator.
        snapshots: Key groups of which to write a snapshot, by the key groups of the task.
        query_id: Spark's id of the query; "" where it is unknown.
    """

    batch_id: int
    checkpoint_id: int
    times: BatchTimes
    ranges: Sequence[tuple[KeyGroupRange, ...]]
    snapshots: Mapping[KeyGroupRange, KeyGroupRange]
    query_id: str


class OperatorRun:
    """
    Runs one operator of a query in each micro-batch.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self,
        query: Query,
        index: int,
        location: StateLocation,
        extensions: DriverExtensions,
    ) -> None:
        self._extensions = extensions
        self.definition = query.operators[index]
        self.unnamed_output = UnnamedOutput(type(self.definition.processor).__name__)
        self._query = query
        self._index = index
        self._location = location
        self._key_groups = query.key_groups_of(index)
        reduction = self.definition.reduction
        self._reducer = None if reduction is None else reduction.reducer(self._key_groups)
        self._task_count = TaskCount(
            query.task_bounds, TASK_WORK_MS if reduction is None else reduction.work_ms
        )
        self._input_bytes: int | None = None

    @property
    def _initial(self) -> InitialState | None:
        """The initial rows, if this micro-batch starts with them."""
        return self.definition.initial if self._location.state.base is None else None

    def ranges(self, frame: DataFrame, times: BatchTimes) -> tuple[KeyGroupRange, ...]:
        """Choose the tasks of a micro-batch and return their key groups."""
        self._input_bytes = self._size_of(frame, times) if self._index == 0 else None
        return self._key_groups.split(self._task_count.choose(self._input_bytes))

    def _size_of(self, frame: DataFrame, times: BatchTimes) -> int | None:
        """Return the size of the input, if it is known and needed."""
        bounds = self._query.task_bounds
        if bounds.least == bounds.most or self._initial is not None:
            return None
        return 0 if times.is_idle and self.definition.plan.is_stateless else input_bytes(frame)

    def reads(self, times: BatchTimes, upstream: Sequence[TaskAck]) -> bool:
        """Return whether the operator may receive rows in this micro-batch."""
        if self._initial is not None or not self.definition.plan.is_stateless:
            return True
        if self._index == 0:
            return not times.is_idle
        return any(ack.output.staged is not None for ack in upstream)

    def can_be_skipped(self, batch: MicroBatch, upstream: Sequence[TaskAck]) -> bool:
        """Return whether the operator has no rows, no due timers and no snapshot to write."""
        due_ms = self._location.state.due_ms[self._index]
        return not (
            self.reads(batch.times, upstream)
            or has_due_timer(self.definition, due_ms, batch.times)
            or any(key_range in batch.snapshots for key_range in batch.ranges[self._index])
        )

    def input(
        self, frame: DataFrame, batch: MicroBatch, upstream: Sequence[TaskAck]
    ) -> tuple[DataFrame, bool]:
        """Return the input with one partition per task, and whether it may contain rows."""
        tasks = len(batch.ranges[self._index])
        session = frame.sparkSession
        if not self.reads(batch.times, upstream):  # one row in each partition, the task's number
            return session.range(0, tasks, 1, tasks), False
        definition = self.definition
        query = self._query
        # The rows of the operator before, as committed, with the user's steps in between.
        if definition.of_upstream is not None:
            before = query.operators[self._index - 1]
            inline = inline_rows(upstream)
            files = [file for ack in upstream for file in ack.output.files]
            columns = before.output
            arrow = before.arrow_output
            what = f"the output of operator {before.schema.operator_id!r}"
            rows = frame_of_rows(session, query, columns, arrow, inline, files, what=what)
            frame = definition.of_upstream(rows)
        if self._initial is not None:
            frame = with_initial_rows(frame, self._initial)
        if self._reducer is not None:
            size = self._input_bytes
            is_small = size is not None and size < _SMALL_BYTES
            return self._reducer.partitioned(frame, tasks, is_small=is_small), True
        if tasks == 1:  # one task gets all rows, without a shuffle
            return frame.coalesce(1), True
        return by_task(frame, tasks, self._key_groups), True

    def spec(self, batch: MicroBatch, *, is_read: bool, staged: bool) -> TaskSpec:
        """Return the instructions for the operator's tasks."""
        ranges = batch.ranges[self._index]
        stream = self._query.settings.options.stream
        # What the operator starts from; a task that lacks it restores the newest checkpoint, see
        # `TaskSpec`.
        last = self._location.state.last_run(self._index)
        base_id = self._location.state.base_id
        return TaskSpec(
            context=self._context(batch),
            rows=self._task_rows(batch.times, is_read=is_read),
            state=self._task_state(),
            checkpoint_id=batch.checkpoint_id,
            base_id=last.checkpoint_id,
            restore_id=-1 if base_id is None else base_id,
            committed=last.handles,
            ranges=ranges,
            snapshots={
                partition: batch.snapshots[key_range]
                for partition, key_range in enumerate(ranges)
                if key_range in batch.snapshots
            },
            inline_bytes=min(stream.data_inline_threshold_bytes, _MAX_INLINE_BYTES // len(ranges)),
            staged=staged,
            extras=self._extensions.task_parts(self._index, len(ranges)),
        )

    def _context(self, batch: MicroBatch) -> BatchContext:
        """Return the micro-batch's context for the processor."""
        definition = self.definition
        has_time = definition.time_mode != "none"
        return BatchContext(
            definition.processor,
            batch.batch_id,
            definition.time_mode,
            batch.times.now_ms if has_time else -1,
            batch.times.watermark_ms,
            definition.zone,
        )

    def _task_rows(self, times: BatchTimes, *, is_read: bool) -> TaskRows:
        """Return the formats of the tasks' input and output rows."""
        definition = self.definition
        initial = None if self._initial is None else self._initial.task_layout
        return TaskRows(
            layout=definition.layout,
            row_format=definition.row_format,
            output=definition.arrow_output,
            input_bytes=self._query.settings.backend.input_bytes,
            initial=initial,
            late=self._late_rows(times, has_initial_rows=initial is not None),
            event_time_output=definition.event_time_output,
            is_read=is_read,
        )

    def _task_state(self) -> TaskState:
        """Return the location of the tasks' state, and how a worker stores it."""
        settings = self._query.settings
        location = self._location
        return TaskState(
            location=self._query.location,
            storage_options=settings.storage_options,
            epoch=location.epoch or 0,
            run_id=location.run_id,
            schema=location.schemas[self._index].to_json(),
            backend=settings.backend_of_each(len(self._query.operators)),
            operator=self._index,
            changelog=settings.options.changelog,
        )

    def _late_rows(self, times: BatchTimes, *, has_initial_rows: bool) -> LateRows | None:
        column = self.definition.event_time
        if column is None:
            return None
        # With initial state a flag is in front of the input's columns.
        return LateRows(column + has_initial_rows, times.late_ms)

    def ran(self, acks: Sequence[TaskAck]) -> None:
        """Record the cost of a micro-batch that was committed."""
        self._task_count.ran(batch_cost(acks, self._input_bytes))

    def record(self, acks: Sequence[TaskAck]) -> OperatorRecord:
        """Return the operator's record for the micro-batch."""
        schema = self._location.schemas[self._index]
        before = self._location.state.record
        stored = None if before is None else before.operators[self._index]
        entries = 0
        due = self._location.state.due_ms[self._index]
        if acks:
            entries = sum(ack.count("state_entries") for ack in acks)
            due = min(ack.changes.next_due_ms for ack in acks)
        elif stored is not None:
            entries = stored.state_entries
        return OperatorRecord(
            operator_id=schema.operator_id,
            schema=schema.to_json(),
            state_entries=entries,
            next_due_ms=due,
        )
