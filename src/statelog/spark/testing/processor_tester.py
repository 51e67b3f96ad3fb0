"""
Run a `StatefulProcessor` in a unit test without Spark and JVM.

Each call is one micro-batch of the same `ProcessorRun` that tasks use, on the same keyed state:
changes are encoded, appended to a changelog on a store in memory, and folded in as in a worker.
`restart` reads the state back from the log, then from a snapshot.
Source: PySpark's TwsTester, with its methods, handle and errors.  Deviations: every batch runs a
new copy of the processor, as tasks do, so that attributes of `self` are lost here too and `init` runs
in each; timers that are due fire at the end of every batch, not only when time moves; time to live
has effect; values are converted to the types of their state; `handleExpiredTimer` gets the key as a
Row; where keySchema has several columns, a key is a tuple of their values.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statelog.spark.query.modes import OUTPUT_MODES, TIME_MODES, mode_of
from statelog.spark.query.pickled_processor import pickled
from statelog.spark.rows.interface import RowLike
from statelog.spark.rows.row_output import RowOutput
from statelog.spark.rows.spark_errors import (
    UnsupportedOperationError,
    WrongArgumentError,
    WrongTimeError,
)
from statelog.spark.rows.types import arrow_schema
from statelog.spark.testing.ddl import parse_ddl
from statelog.spark.testing.tester_handle import KnownStates, TesterHandle
from statelog.spark.testing.tester_rows import TesterOutput, TesterRows
from statelog.spark.testing.tester_state import TesterState
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.spark.worker.protocol import BatchContext
from statelog.state.encoding.values import UNENCODABLE

if TYPE_CHECKING:
    import pandas as pd

Values = tuple[object, ...]
"""The fields of a value, an element or a map key."""


class ProcessorTester:
    """
    Tests a `StatefulProcessor` key by key.

    The module lists the deviations from PySpark's tester.

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

    Raises:
        UsageError: An argument is wrong, or the processor cannot be pickled.
        ProcessorError: `init` or `handleInitialState` failed.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        initialStateRow: Sequence[tuple[object, Row]] | None = None,
        initialStatePandas: Sequence[tuple[object, pd.DataFrame]] | None = None,
        timeMode: str = "None",
        outputMode: str = "Append",
        eventTimeExtractor: Callable[[Any], int] | None = None,
        *,
        keySchema: StructType | str | None = None,
        outputStructType: StructType | str | None = None,
    ) -> None:
        self._time_mode = mode_of("timeMode", timeMode, TIME_MODES, WrongArgumentError)
        mode_of("outputMode", outputMode, OUTPUT_MODES, WrongArgumentError)
        if self._time_mode == "eventtime" and eventTimeExtractor is None:
            raise UnsupportedOperationError(
                "the time mode EventTime needs an eventTimeExtractor", condition="ARGUMENT_REQUIRED"
            )
        if initialStateRow is not None and initialStatePandas is not None:
            raise WrongArgumentError("give initialStateRow or initialStatePandas, not both")
        self._extractor = eventTimeExtractor
        self._pickled = pickled(processor)
        self.processor = processor
        self._output = None if outputStructType is None else _arrow_schema(outputStructType)
        self._now_ms = 0
        self._watermark_ms = 0
        self._in_pandas = initialStatePandas is not None
        self._batch_id = -1
        keys = None if keySchema is None else _arrow_schema(keySchema)
        self._state = TesterState(processor, self._time_mode, keys)
        self.handle = TesterHandle(
            self._open, self._state.declared, self._state.drop, self._time_mode
        )
        initial = initialStatePandas if initialStateRow is None else initialStateRow
        if initial:
            rows = TesterRows()
            for key, row in initial:
                rows.add(*self._state.place(key), [row])
            self._run(TesterRows(), rows)

    # ---------------------------------------------------------------------------------- batches

    def test(self, key: object, input: list[Row]) -> list[Row]:
        """
        Run one micro-batch of one key through a processor of Rows.

        Args:
            key: The key: one value, or a tuple of the values of several key columns.
            input: The rows.

        Returns:
            What the processor yields, for timers that were due too.

        Raises:
            ProcessorError: The processor failed; `__cause__` is its own error.
        """
        self._in_pandas = False
        self.handle.setGroupingKey(key)
        extractor = self._extractor
        if self._time_mode == "eventtime" and extractor is not None:
            input = [row for row in input if extractor(row) > self._watermark_ms]
        return self._run(self._rows_of(key, input))

    def testInPandas(self, key: object, input: pd.DataFrame) -> pd.DataFrame:
        """
        Run one micro-batch through a processor of pandas frames.

        As `test`, with frames.
        """
        self._in_pandas = True
        self.handle.setGroupingKey(key)
        extractor = self._extractor
        if self._time_mode == "eventtime" and extractor is not None:
            late = [extractor(row) <= self._watermark_ms for _, row in input.iterrows()]
            input = input[[not one for one in late]].reset_index(drop=True)
        return self._in_form(self._run(self._rows_of(key, [input])))

    def setProcessingTime(self, currentTimeMs: int) -> Any:
        """
        Move processing time forward, and fire the timers that are due.

        Args:
            currentTimeMs: The new time in milliseconds; 0 at the beginning.

        Returns:
            What the processor yields: rows, or a frame after `testInPandas`.

        Raises:
            UsageError: The time mode is another one, or time would not move forward.
        """
        self._now_ms = self._moved("setProcessingTime", self._now_ms, currentTimeMs)
        return self._in_form(self._run(TesterRows()))

    def setWatermark(self, currentWatermarkMs: int) -> Any:
        """
        Move the watermark forward, and fire the timers that are due.

        As `setProcessingTime`.
        """
        self._watermark_ms = self._moved("setWatermark", self._watermark_ms, currentWatermarkMs)
        self.handle.setWatermark(self._watermark_ms)
        return self._in_form(self._run(TesterRows()))

    def restart(self) -> None:
        """Read the state back from the log, then from a snapshot."""
        self._state.restart(self._now())

    # ------------------------------------------------------------------------------------ state

    def updateValueState(self, stateName: str, key: object, value: Values) -> None:
        """Set a value state of *key*."""
        handle, commit = self._open(key)
        handle.getValueState(stateName, "").update(value)
        commit()

    def peekValueState(self, stateName: str, key: object) -> Values | None:
        """Return a value state of *key*, or None."""
        self.handle.setGroupingKey(key)
        handle, _ = self._open(key)
        value: Values | None = handle.getValueState(stateName, "").get()
        return value

    def updateListState(self, stateName: str, key: object, value: list[Values]) -> None:
        """Set a list state of *key*."""
        handle, commit = self._open(key)
        handle.getListState(stateName, "").put(value)
        commit()

    def peekListState(self, stateName: str, key: object) -> list[Values]:
        """Return the elements of a list state of *key*."""
        self.handle.setGroupingKey(key)
        handle, _ = self._open(key)
        return list(handle.getListState(stateName, "").get())

    def updateMapState(self, stateName: str, key: object, value: Mapping[Values, Values]) -> None:
        """Set all entries of a map state of *key*."""
        handle, commit = self._open(key)
        state = handle.getMapState(stateName, "", "")
        state.clear()
        for user_key, entry in value.items():
            state.updateValue(user_key, entry)
        commit()

    def peekMapState(self, stateName: str, key: object) -> dict[Values, Values]:
        """Return the entries of a map state of *key*."""
        self.handle.setGroupingKey(key)
        handle, _ = self._open(key)
        return dict(handle.getMapState(stateName, "", "").iterator())

    def peekTimers(self, key: object) -> list[int]:
        """Return the timers of *key*, ascending."""
        self.handle.setGroupingKey(key)
        return list(self.handle.listTimers())

    def deleteState(self, stateName: str, key: object) -> None:
        """
        Delete a state variable of *key*.

        Raises `UsageError` if there is no such variable.
        """
        self.handle.setGroupingKey(key)
        self.handle.deleteState(stateName)

    # ---------------------------------------------------------------------------------- inside

    def _rows_of(self, key: object, rows: Iterable[RowLike]) -> TesterRows:
        keyed = TesterRows()
        keyed.add(*self._state.place(key), rows)
        return keyed

    def _run(self, rows: TesterRows, initial: TesterRows | None = None) -> list[Any]:
        if not self._state.has_keys:
            return []  # no key yet: no timers, no rows
        self._batch_id += 1
        output = TesterOutput()
        run = ProcessorRun(
            self._context(), self._state.current(), self._state.key_group_range, output
        )
        run.process(rows, initial)
        if self._output is not None and not self._in_pandas:
            typed = RowOutput(self._output, self._batch_id)
            typed.extend(output.rows)
            typed.batch()
        try:
            self._state.commit(run.overlays)
        except UNENCODABLE as error:
            raise run.locate_unencodable_value(error) from error
        return output.rows

    def _now(self) -> int:
        return -1 if self._time_mode == "none" else self._now_ms

    def _context(self) -> BatchContext:
        watermark_ms = self._watermark_ms if self._time_mode == "eventtime" else -1
        processor = pickle.loads(self._pickled)
        return BatchContext(processor, self._batch_id, self._time_mode, self._now(), watermark_ms)

    def _open(self, key: object) -> tuple[KnownStates, Callable[[], None]]:
        return self._state.open_key(key, self._now())

    def _moved(self, method: str, old: int, new: int) -> int:
        mode = "EventTime" if method == "setWatermark" else "ProcessingTime"
        if self._time_mode != mode.lower():
            raise UnsupportedOperationError(
                f"{method} needs the time mode {mode}; this is {self._time_mode}",
                condition="UNSUPPORTED_OPERATION",
            )
        if new <= old:
            raise WrongTimeError(
                f"{method}: time moves forward; it is {old} ms, and {new} ms was given"
            )
        return new

    def _in_form(self, produced: list[Any]) -> Any:
        """Return rows unchanged, and frames joined."""
        if not self._in_pandas:
            return produced
        import pandas as pd

        return pd.concat(produced, ignore_index=True) if produced else pd.DataFrame()


def _arrow_schema(schema: StructType | str) -> pa.Schema:
    return arrow_schema(parse_ddl(schema) if isinstance(schema, str) else schema)
