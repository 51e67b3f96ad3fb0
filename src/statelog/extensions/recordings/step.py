"""The recorded step of one key in a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from statelog.extensions.recordings.format import Failure, TaskRecording, from_stream
from statelog.format.arrow_data import python_rows
from statelog.format.sealed_file import damaged_file
from statelog.state.keys.state_key import StateKey
from statelog.state.schema import OperatorStateSchema

RECORD_COLUMN = "record"
"""Column of input rows with the number of their key."""
_RECORD_FIELD = pa.field(RECORD_COLUMN, pa.int32())


@dataclass(frozen=True, slots=True)
class Call:
    """
    One call of the processor.

    Args:
        method: Its name, as `handleInputRows`.
        timer_ms: The timer of `handleExpiredTimer`; -1 for other methods.
        output_rows: Number of rows that it yielded.
    """

    method: str
    timer_ms: int
    output_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """
    The recorded step of one key in a micro-batch.

    Args:
        task: The recording it is a part of, with times and layout.
        schema: The operator's state schema.
        key: The key, as `statelog.open` returns it.
        before: State before, one row of `cells_table`.
        after: State after; None in a failure.
        input: Its input rows, in the layout of the task's input.
        initial: Its rows of initial state.
        calls: The calls of the processor.
        output: The rows that they yielded.
        broadcasts: The broadcast tables that the micro-batch saw, where they were read.
    """

    task: TaskRecording
    schema: OperatorStateSchema
    key: tuple[object, ...]
    before: pa.Table
    after: pa.Table | None
    input: pa.Table
    initial: pa.Table
    calls: tuple[Call, ...]
    output: pa.Table
    broadcasts: Mapping[str, pa.Table] = field(default_factory=dict)

    @property
    def failure(self) -> Failure | None:
        """Why the key failed, or None."""
        return self.task.failure


class _Tables:
    """The tables that make up a recording."""

    def __init__(self, task: TaskRecording) -> None:
        self._task = task
        self.schema = task.state_schema()
        self.before = from_stream(task.before)
        self._after = from_stream(task.after) if task.after else None
        self._input = from_stream(task.input)
        self._initial = from_stream(task.initial)
        self._output = from_stream(task.output)
        rows = self._output.num_rows
        counts = [count for _, _, _, count in task.calls]
        if min(counts, default=0) < 0 or sum(counts) > rows:
            raise damaged_file("", f"its calls yielded {sum(counts)} rows, but {rows} are stored")
        names = self.schema.key_schema.names
        try:
            keys = python_rows(self.before.select([f"key.{name}" for name in names]))
        except (pa.ArrowInvalid, LookupError) as error:
            raise damaged_file("", str(error)) from error
        self.keys = [tuple(key.values()) for key in keys]
        self._check()

    def _check(self) -> None:
        """Reject tables that are inconsistent."""
        for name, table in (("input", self._input), ("initial", self._initial)):
            if not table.schema.names or table.schema.field(0) != _RECORD_FIELD:
                raise damaged_file("", f"its {name} rows do not start with their record")
        if self._after is not None and self._after.num_rows != len(self.keys):
            raise damaged_file(
                "", f"it contains {self._after.num_rows} final states for {len(self.keys)} keys"
            )
        if not all(0 <= record < len(self.keys) for record, *_ in self._task.calls):
            raise damaged_file("", "a call does not belong to a key")

    def step(self, number: int) -> RecordedStep:
        """Return the step of the key with this number."""
        calls: list[Call] = []
        picked: list[int] = []
        position = 0
        for record, method, timer_ms, rows in self._task.calls:
            if record == number:
                calls.append(Call(method, timer_ms, rows))
                picked += range(position, position + rows)
            position += rows
        return RecordedStep(
            task=self._task,
            schema=self.schema,
            key=self.keys[number],
            before=self.before.take([number]),
            after=None if self._after is None else self._after.take([number]),
            input=_rows_of(self._input, number),
            initial=_rows_of(self._initial, number),
            calls=tuple(calls),
            output=self._output.take(pa.array(picked, pa.int64())),
        )


def check_recording(task: TaskRecording) -> None:
    """Raise `CorruptionError` if the tables in a recording are inconsistent."""
    _Tables(task)


def steps_of(task: TaskRecording) -> Iterator[RecordedStep]:
    """Yield the steps of each recorded key."""
    tables = _Tables(task)
    for number in range(len(tables.keys)):
        yield tables.step(number)


def step_of(task: TaskRecording, key: object) -> RecordedStep | None:
    """Return the step of a key, or None if it was not recorded."""
    tables = _Tables(task)
    number = number_of(tables.before, tables.schema, key)
    return None if number is None else tables.step(number)


def number_of(keys: pa.Table, schema: OperatorStateSchema, key: object) -> int | None:
    """Return the row number of a key in *keys*, a table from `cells_table`, or None."""
    sought = StateKey(key, schema.key_schema)
    rows = pa.array(range(keys.num_rows), pa.int64())
    numbered = keys.append_column("", rows)
    try:
        for batch in numbered.to_batches():
            for number in sought.select(batch).column(batch.num_columns - 1).to_pylist():
                return int(number)
    except (pa.ArrowException, LookupError) as error:
        raise damaged_file("", f"its keys do not match its schema: {error}") from error
    return None


def recorded_rows(table: pa.Table, keep: pa.Array) -> pa.Table:
    """Return the rows of *table* whose key number is in *keep*, renumbered as in *keep*."""
    positions = pc.index_in(table.column(RECORD_COLUMN), value_set=keep)
    numbered = table.set_column(0, pa.field(RECORD_COLUMN, pa.int32()), positions.cast(pa.int32()))
    return numbered.filter(pc.is_valid(numbered.column(0)))


def _rows_of(table: pa.Table, number: int) -> pa.Table:
    rows = table.filter(pc.equal(table.column(RECORD_COLUMN), number))
    return rows.select(range(1, rows.num_columns))
