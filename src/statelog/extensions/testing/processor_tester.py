"""
Run a `StatefulProcessor` in a unit test, without Spark or a JVM.

Each call is one micro-batch: the task that runs in Spark's workers, over a state location in
memory, and a commit.  `restart` reads the state back from the log, then from a snapshot.
Source: PySpark's TwsTester, with its methods, handle and errors.  Deviations: every batch runs a
new copy of the processor, as tasks do, so that attributes of `self` are lost here too and `init`
runs in each; timers that are due fire at the end of every batch, not only when time moves; time to
live has effect; values are converted to the types of their state; `handleExpiredTimer` gets the key
as a Row; where keySchema has several columns, a key is a tuple of their values.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.extensions.broadcasts.tables import BroadcastTable, version_of
from statelog.extensions.side_outputs.declaration import operator_of
from statelog.extensions.testing.memory_job import (
    KeyContent,
    KeyHandle,
    MemoryJob,
    Place,
    TesterHandle,
    cells_given,
    content_of,
    timers_given,
    type_of_key,
)
from statelog.extensions.testing.tester_rows import (
    CollectedOutput,
    GivenFormat,
    GivenRows,
    format_of,
    is_frame,
    rows_as,
    side_rows,
    typed_rows,
)
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import Declared, declared_by
from statelog.spark.query.face import AnyProcessor, face_of
from statelog.spark.query.processor_checks import pickled
from statelog.spark.query.query import OUTPUT_MODES, TIME_MODES, mode_of
from statelog.spark.rows.interface import RowLike
from statelog.spark.rows.key_types import grouping_keys
from statelog.spark.rows.spark_versions import (
    UnsupportedOperationError,
    WrongArgumentError,
    WrongTimeError,
)
from statelog.spark.rows.types import arrow_schema, table_of
from statelog.spark.worker.protocol import BatchContext, part_of
from statelog.state.kinds import Key

if TYPE_CHECKING:
    import pandas as pd

Values = tuple[object, ...]
"""The fields of a value, an element or a map key."""
KeyRows = tuple[object, "Sequence[RowLike]"]
"""A key, and its rows or frames."""


class ProcessorTester:
    """
    Tests a `StatefulProcessor` key by key, or a `ColumnarProcessor` with `testColumns`.

    docs/reference/processor-tester.md lists the deviations from PySpark's tester.

    Example:
        tester = ProcessorTester(Totals(), keySchema="customer string")
        rows = tester.test("c1", [Row(customer="c1", amount=2.5)])

    Args:
        processor: The processor, for Rows or pandas frames.  It is pickled, as by Spark.
        initialStateRow: (key, Row) pairs with which `handleInitialState` is called at once.
        initialStatePandas: (key, DataFrame) pairs instead.
        timeMode: "None", "ProcessingTime" or "EventTime".
        outputMode: "Append", "Update" or "Complete"; has no effect.
        eventTimeExtractor: Returns the event time of a row in milliseconds; EventTime needs it, to
            drop late rows.
        keySchema: Names and types of the key's columns, also as DDL text.  Default: one column
            with the type of the first key; a tuple is then a struct.
        outputStructType: Schema of the output, also as DDL text; Rows that do not fit are an error.
        timeZone: Time zone of the session, in which a `ColumnarProcessor` gets points in time.
        broadcast: Broadcast tables by name, see `setBroadcast`.

    Raises:
        UsageError: An argument is wrong, or the processor cannot be pickled.
        ProcessorError: `init` or `handleInitialState` failed.
    """

    def __init__(
        self,
        processor: AnyProcessor,
        initialStateRow: Sequence[tuple[object, Row]] | None = None,
        initialStatePandas: Sequence[tuple[object, pd.DataFrame]] | None = None,
        timeMode: str = "None",
        outputMode: str = "Append",
        eventTimeExtractor: Callable[[Any], int] | None = None,
        *,
        keySchema: StructType | str | None = None,
        outputStructType: StructType | str | None = None,
        timeZone: str = "UTC",
        broadcast: Mapping[str, object] | None = None,
    ) -> None:
        self._time_mode = mode_of("timeMode", timeMode, TIME_MODES, WrongArgumentError)
        mode_of("outputMode", outputMode, OUTPUT_MODES, WrongArgumentError)
        if self._time_mode == "eventtime" and eventTimeExtractor is None:
            raise UnsupportedOperationError(
                "the time mode EventTime requires an eventTimeExtractor",
                condition="ARGUMENT_REQUIRED",
            )
        if initialStateRow is not None and initialStatePandas is not None:
            raise WrongArgumentError("pass initialStateRow or initialStatePandas, not both")
        self._extractor = eventTimeExtractor
        self._pickled = pickled(processor)
        self.processor = processor
        self._face = face_of(processor)
        self._columns = None if outputStructType is None else _struct(outputStructType)
        self._output = None if self._columns is None else arrow_schema(self._columns)
        self._zone = timeZone
        self._now_ms = 0
        self._watermark_ms = 0
        self._shown_watermark_ms = -1
        self._in_pandas = initialStatePandas is not None
        self._batch_id = -1
        self._side_rows: Mapping[str, list[Row]] = {}
        self._broadcasts: dict[str, BroadcastTable] = {}
        for name, table in (broadcast or {}).items():
            self.setBroadcast(name, table)
        self._keys = None if keySchema is None else arrow_schema(grouping_keys(_struct(keySchema)))
        self._memory_job: MemoryJob | None = None
        self._declared = self._declare(pa.schema([]))  # wrong ones are an error at once
        self.handle = TesterHandle(
            self._open,
            self._declared.state.states,
            lambda name: self._opened(()).drop(name),
            self._time_mode,
        )
        if initialStateRow:
            self._run([], [(key, [row]) for key, row in initialStateRow])
        elif initialStatePandas:
            self._run([], [(key, [frame]) for key, frame in initialStatePandas])

    def __repr__(self) -> str:
        name = type(self.processor).__name__
        mode = self._time_mode
        return f"<ProcessorTester of {name}, timeMode {mode}, {self._batch_id + 1} micro-batches>"

    def begin(
        self,
        key: object,
        state: Mapping[str, object] | None = None,
        timers: Sequence[int] = (),
        *,
        expiresAtMs: Mapping[str, object] | None = None,
        processingTimeMs: int | None = None,
        watermarkMs: int | None = None,
    ) -> None:
        """
        Start in the middle of a stream: set the times and all state of a key, and run nothing.

        Args:
            key: The key.
            state: By variable: a tuple for a value, a list of tuples for a list, a dict from tuples
                to tuples for a map.  Variables that are left out are empty.
            timers: Times in milliseconds.
            expiresAtMs: When values with a time to live expire, by variable, in milliseconds: a
                number, a list of numbers, or a dict from map keys to numbers.  Default: as if
                written at *processingTimeMs*.
            processingTimeMs: Processing time from now on; None leaves it.
            watermarkMs: Watermark from now on; None leaves it.

        Raises:
            UsageError: `init` creates no such variable, or a value does not fit it.
        """
        self.handle.setGroupingKey(key)
        if processingTimeMs is not None:
            self._now_ms = processingTimeMs
        if watermarkMs is not None:
            self._watermark_ms = self._shown_watermark_ms = watermarkMs
            self.handle.setWatermark(watermarkMs)
        place = self._place(key)
        job = self._opened(())
        cells = cells_given(job.codec, state or {}, expiresAtMs or {}, self._now())
        if timers:
            cells |= timers_given(job.codec, timers)
        job.set_cells(place, cells)

    def test(self, key: object, input: list[Row], *, initialState: Sequence[Row] = ()) -> list[Row]:
        """
        Run one micro-batch with rows of one key, for a processor of Rows.

        Args:
            key: The key: one value, or a tuple of the values of several key columns.
            input: The rows.
            initialState: Rows with which `handleInitialState` is called before.

        Returns:
            What the processor yields, for timers that were due too.

        Raises:
            ProcessorError: The processor failed; `__cause__` is its own error.
        """
        self._refuse_tables()
        self._in_pandas = False
        self.handle.setGroupingKey(key)
        extractor = self._extractor
        if self._time_mode == "eventtime" and extractor is not None:
            input = [row for row in input if extractor(row) > self._watermark_ms]
        produced: list[Row] = self._run(
            [(key, input)], [(key, initialState)] if initialState else []
        )
        return produced

    def testInPandas(
        self, key: object, input: pd.DataFrame, *, initialState: Sequence[pd.DataFrame] = ()
    ) -> pd.DataFrame:
        """Run one micro-batch for a processor of pandas frames; like `test`, but with frames."""
        self._refuse_tables()
        self._in_pandas = True
        self.handle.setGroupingKey(key)
        extractor = self._extractor
        if self._time_mode == "eventtime" and extractor is not None:
            late = [extractor(row) <= self._watermark_ms for _, row in input.iterrows()]
            input = input[[not is_late for is_late in late]].reset_index(drop=True)
        initial = [(key, initialState)] if initialState else []
        return self._in_form(self._run([(key, [input])], initial))

    def testColumns(self, rows: object, *, initialState: object = None) -> pa.Table:
        """
        Run one micro-batch with rows of many keys, for a `ColumnarProcessor`.

        Args:
            rows: All columns of the input, the key's by the names of keySchema: an Arrow
                table, a frame of pandas or Polars, or a dict of columns.
            initialState: Rows with which `initialize` is called before.

        Returns:
            What the processor yields, for timers that were due too.  Where the tester has an
            outputStructType, it is an error if a column does not fit.

        Raises:
            UsageError: The processor is not columnar, the tester has no keySchema, or a column of
                the key is missing.
            ProcessorError: The processor failed; `__cause__` is its own error.
        """
        if self._face.test_tables is None:
            raise UsageError(
                f"{type(self.processor).__name__} is not a ColumnarProcessor: use test or testInPandas"
            )
        if self._keys is None:
            raise UsageError("ProcessorTester requires keySchema for a columnar processor")
        table = table_of(rows, "testColumns")
        initial = None if initialState is None else table_of(initialState, "initialState")
        return self._face.test_tables(self, table, initial)

    def _refuse_tables(self) -> None:
        if self._face.test_tables is not None:
            raise UsageError(f"{type(self.processor).__name__} is columnar: use testColumns")

    def testNoData(self) -> Any:
        """
        Run one micro-batch without rows, which fires the timers that are due.

        Returns:
            What the processor yields: rows, or a frame after `testInPandas`.
        """
        return self._in_form(self._run([], []))

    def typedOutput(self, produced: object, *, timeZone: str = "UTC") -> list[Row]:
        """
        Convert rows or a frame to *outputStructType*, as is done for the sink.

        Times are in UTC, structs are dicts.

        Args:
            produced: What a test of this tester returned.
            timeZone: The zone of times without one in a frame.

        Raises:
            UsageError: The tester has no *outputStructType*.
            ProcessorError: A row does not fit it.
        """
        if self._output is None or self._columns is None:
            raise UsageError("typedOutput requires a tester with an outputStructType")
        return typed_rows(produced, self._columns, self._batch_id, timeZone)

    def sideOutput(self, name: str) -> list[Row]:
        """
        Return the rows that the processor emitted to a side output in the last micro-batch.

        Args:
            name: The side output.

        Returns:
            Rows, converted to the types of the side output; times are in UTC, structs are dicts.

        Raises:
            UsageError: `init` declares no such side output.
        """
        operator_of(name, [part_of(self._declared.extras, "side_outputs", dict) or {}])
        return list(self._side_rows.get(name, ()))

    def setBroadcast(
        self, name: str, table: object, schema: StructType | str | None = None
    ) -> None:
        """
        Set a broadcast table for the micro-batches that follow.

        Args:
            name: The table.
            table: An Arrow table, a frame of pandas or Polars, a dict of columns, or a list of Rows
                or dicts.
            schema: Names and types of the columns, also as DDL text; None takes them from *table*.

        Raises:
            UsageError: *table* has another form.
        """
        if schema is not None:
            table = rows_as(_struct(schema), table, name)
        self._broadcasts[name] = version_of(name, table)

    def setProcessingTime(self, currentTimeMs: int) -> Any:
        """
        Advance the processing time, and fire the timers that become due.

        Args:
            currentTimeMs: The new time in milliseconds; 0 at the beginning.

        Returns:
            What the processor yields: rows, or a frame after `testInPandas`.

        Raises:
            UsageError: The time mode is another one, or time would not move forward.
        """
        self._now_ms = self._moved("setProcessingTime", self._now_ms, currentTimeMs)
        return self.testNoData()

    def setWatermark(self, currentWatermarkMs: int) -> Any:
        """Advance the watermark, and fire the timers that become due; see `setProcessingTime`."""
        self._watermark_ms = self._moved("setWatermark", self._watermark_ms, currentWatermarkMs)
        self.handle.setWatermark(self._watermark_ms)
        return self._in_form(self._run([], []))

    def restart(self) -> None:
        """Read the state back from the log, and then from a snapshot."""
        if self._memory_job is not None:
            self._memory_job.restart(self._now())

    def updateValueState(self, stateName: str, key: object, value: Values) -> None:
        """Set a value state of *key*."""
        with self._open(key) as handle:
            handle.getValueState(stateName, "").update(value)

    def peekValueState(self, stateName: str, key: object) -> Values | None:
        """Return a value state of *key*, or None."""
        self.handle.setGroupingKey(key)
        with self._open(key) as handle:
            value: Values | None = handle.getValueState(stateName, "").get()
        return value

    def updateListState(self, stateName: str, key: object, value: list[Values]) -> None:
        """Set a list state of *key*."""
        with self._open(key) as handle:
            handle.getListState(stateName, "").put(value)

    def peekListState(self, stateName: str, key: object) -> list[Values]:
        """Return the elements of a list state of *key*."""
        self.handle.setGroupingKey(key)
        with self._open(key) as handle:
            return list(handle.getListState(stateName, "").get())

    def updateMapState(self, stateName: str, key: object, value: Mapping[Values, Values]) -> None:
        """Set all entries of a map state of *key*."""
        with self._open(key) as handle:
            state = handle.getMapState(stateName, "", "")
            state.clear()
            for user_key, entry in value.items():
                state.updateValue(user_key, entry)

    def peekMapState(self, stateName: str, key: object) -> dict[Values, Values]:
        """Return the entries of a map state of *key*."""
        self.handle.setGroupingKey(key)
        with self._open(key) as handle:
            return dict(handle.getMapState(stateName, "", "").iterator())

    def peekTimers(self, key: object) -> list[int]:
        """Return the timers of *key* in ascending order."""
        self.handle.setGroupingKey(key)
        return list(self.handle.listTimers())

    def stateOf(self, key: object) -> dict[str, Any]:
        """Return all state of *key* that is not empty, in the form that `begin` accepts."""
        return self._content(key).state

    def expiryOf(self, key: object) -> dict[str, Any]:
        """Return when the state of *key* expires, in the form that `begin` accepts."""
        return self._content(key).expiry

    def deleteState(self, stateName: str, key: object) -> None:
        """Delete a state variable of *key*; raise `UsageError` if it does not exist."""
        self.handle.setGroupingKey(key)
        self.handle.deleteState(stateName)

    def _content(self, key: object) -> KeyContent:
        place = self._place(key)
        job = self._opened(())
        return content_of(job.codec, job.cells(place), self._now())

    def _open(self, key: object) -> AbstractContextManager[KeyHandle]:
        place = self._place(key)
        return self._opened(()).opened(place, self._now())

    def _place(self, key: object) -> Place:
        values = key if type(key) is tuple and self._is_whole_key(key) else (key,)
        return self._opened(values).place(values)

    def _is_whole_key(self, value: tuple[object, ...]) -> bool:
        """Return whether a tuple contains a value for every key column."""
        keys = self._keys
        if keys is None:
            return False
        return len(keys) > 1 or (len(value) == 1 and not pa.types.is_struct(keys.types[0]))

    def _declare(self, keys: pa.Schema) -> Declared:
        return declared_by(self.processor, "tester", keys, parse_ddl, time_mode=self._time_mode)

    def _opened(self, first_key: Key) -> MemoryJob:
        """Return the job; infer the key types from the first key unless they were set."""
        if self._memory_job is None:
            keys = self._keys
            if keys is None:
                keys = pa.schema([("key", type_of_key(first_key[0] if first_key else None))])
            self._memory_job = MemoryJob(self._declare(keys).state, self._time_mode)
        return self._memory_job

    def _input(self, rows: Sequence[KeyRows]) -> GivenRows:
        """Convert the rows or frames of some keys to an input."""
        task_input = GivenRows()
        for key, of_key in rows:
            task_input.add(*self._place(key), of_key)
        return task_input

    def _run(self, rows: Sequence[KeyRows], initial: Sequence[KeyRows]) -> Any:
        """Run one micro-batch on the rows or frames of some keys."""
        if self._face.test_tables is not None:
            return self._face.test_tables(self, None, None)
        task_input = self._input(rows)
        first = self._input(initial) if initial else None
        if self._memory_job is None:
            return []  # no key yet: no timers, no rows
        plain = format_of(in_pandas=self._in_pandas, timezone=self._zone)
        collected = CollectedOutput(plain, task_input, first)
        self._task(collected, None if self._in_pandas else self._output)
        self._in_pandas |= any(map(is_frame, collected.produced))
        return collected.produced

    def _task(self, rows: GivenFormat, output: pa.Schema | None) -> list[pa.RecordBatch]:
        """Run the task of the next micro-batch, commit it, and return its output."""
        self._batch_id += 1
        extras = {**self._declared.extras, "broadcasts": self._broadcasts}
        job = self._opened(())
        has_watermark = self._time_mode == "eventtime"
        context = BatchContext(
            pickle.loads(self._pickled),
            self._batch_id,
            self._time_mode,
            self._now(),
            self._watermark_ms if has_watermark else self._shown_watermark_ms,
            self._zone,
        )
        produced, answers = job.run(context, rows, output, extras)
        self._side_rows = side_rows(part_of(answers, "side_outputs", tuple) or (), job.store)
        return produced

    def _now(self) -> int:
        return -1 if self._time_mode == "none" else self._now_ms

    def _moved(self, method: str, old: int, new: int) -> int:
        mode = "EventTime" if method == "setWatermark" else "ProcessingTime"
        if self._time_mode != mode.lower():
            raise UnsupportedOperationError(
                f"{method} requires the time mode {mode}; the tester uses {self._time_mode}",
                condition="UNSUPPORTED_OPERATION",
            )
        if new <= old:
            raise WrongTimeError(
                f"{method}: time cannot move backward; it is {old} ms, but got {new} ms"
            )
        return new

    def _in_form(self, produced: object) -> Any:
        """Return rows unchanged, but join frames."""
        if not self._in_pandas:
            return produced
        import pandas as pd

        return pd.concat(produced, ignore_index=True) if produced else pd.DataFrame()


def _struct(schema: StructType | str) -> StructType:
    return parse_ddl(schema) if isinstance(schema, str) else schema
