"""
Run a `StatefulProcessor` in a plain unit test: no Spark session, no JVM, no files.

It is the real thing on a small scale.  Each call is one micro-batch of the run loop that tasks run, on
real keyed state: changes are encoded, appended to a changelog on a store in memory, and folded in as
in a worker.  `restart` reads the state back from the log, then from a snapshot.
Source: PySpark's TwsTester, whose methods, handle and errors it has.  Deviations: every batch runs a
fresh copy of the processor, as tasks do, so that what it keeps on `self` is lost here too and `init`
runs in each; timers that are due fire at the end of every batch, not only when time moves; time to
live counts; values go through the types of their state; `handleExpiredTimer` gets the key as a Row;
where keySchema has several columns, a key is a tuple of their values.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statelog.model import DEFAULT_MAX_PARALLELISM, KeyGroupRange
from statelog.spark.query.declared_state import operator_schema
from statelog.spark.query.pickled_processor import pickled
from statelog.spark.rows.interface import KeyedInput
from statelog.spark.rows.row_output import RowOutput
from statelog.spark.rows.spark_errors import (
    UnsupportedOperationError,
    WrongArgumentError,
    WrongTimeError,
)
from statelog.spark.rows.types import arrow_schema, make_row
from statelog.spark.testing.changelog import TesterLog
from statelog.spark.testing.ddl import parse_ddl
from statelog.spark.testing.tester_handle import KnownStates, TesterHandle
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.spark.worker.protocol import TaskSpec
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.values import UNENCODABLE
from statelog.state.heap.tables import Key, Overlay
from statelog.state.keys.key_groups import key_group_of
from statelog.state.objects.bound_state import Cursor
from statelog.state.objects.timers import Timers
from statelog.state.schema.descriptors import TIMERS_NAME

if TYPE_CHECKING:
    import pandas as pd

_TIME_MODES = ("none", "processingtime", "eventtime")
_OUTPUT_MODES = ("append", "update", "complete")


@dataclass
class _Rows:
    """The rows of a few keys, for the run loop."""

    by_group: dict[int, dict[Key, tuple[Key, list[Any]]]] = field(default_factory=dict)
    row_count: int = 0

    def add(self, key_group: int, key: Key, shown: Key, rows: Iterable[Any]) -> None:
        """Add rows (or frames) of one key."""
        keyed = self.by_group.setdefault(key_group, {})
        keyed.setdefault(key, (shown, []))[1].extend(rows)

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read nothing: the rows were given to `add`."""

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, ascending."""
        return sorted(self.by_group)

    def table_keys(self, key_group: int) -> list[Key]:
        """Return the keys as tables hold them."""
        return [key for key, _, _ in self.keys(key_group)]

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Any]]:
        """Yield each key as tables hold it, as the processor sees it, and its rows."""
        for key, (shown, rows) in self.by_group.get(key_group, {}).items():
            yield key, shown, iter(rows)


class _Collected:
    """Keeps what a processor yields as it is."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def extend(self, produced: Iterable[Any]) -> None:
        """Take what one call of the processor yields."""
        self.rows.extend(produced)

    def bound_each_call(self) -> None:
        """Do nothing: the rows of a test fit into memory."""

    settle = flush = bound_each_call


class ProcessorTester:
    """
    Tests a `StatefulProcessor` key by key; see the module for what is real and what is not.

    Args:
        processor: The processor, Row or pandas flavour.  It is pickled, as Spark does.
        initialStateRow: (key, Row) pairs given to `handleInitialState` at once.
        initialStatePandas: (key, DataFrame) pairs instead.
        timeMode: "None", "ProcessingTime" or "EventTime".
        outputMode: "Append", "Update" or "Complete"; makes no difference.
        eventTimeExtractor: Returns the event time of a row in milliseconds; EventTime needs it, to
            drop late rows.
        keySchema: Names and types of the key's columns, also as DDL text.  Default: one column,
            typed as the first key; a tuple is then a struct.
        outputStructType: Schema of the output, also as DDL text: what Rows do not fit is an error.

    Raises:
        UsageError: An argument is wrong, or the processor cannot be pickled.
        ProcessorError: `init` or `handleInitialState` failed.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        initialStateRow: Sequence[tuple[Any, Row]] | None = None,
        initialStatePandas: Sequence[tuple[Any, pd.DataFrame]] | None = None,
        timeMode: str = "None",
        outputMode: str = "Append",
        eventTimeExtractor: Callable[[Any], int] | None = None,
        *,
        keySchema: StructType | str | None = None,
        outputStructType: StructType | str | None = None,
    ) -> None:
        self._time_mode = _one_of("timeMode", timeMode, _TIME_MODES)
        _one_of("outputMode", outputMode, _OUTPUT_MODES)
        if self._time_mode == "eventtime" and eventTimeExtractor is None:
            raise UnsupportedOperationError(
                "the time mode EventTime needs an eventTimeExtractor", condition="ARGUMENT_REQUIRED"
            )
        if initialStateRow is not None and initialStatePandas is not None:
            raise WrongArgumentError("give initialStateRow or initialStatePandas, not both")
        self._extractor = eventTimeExtractor
        self._pickled = pickled(processor)
        self.processor = processor
        self._keys = None if keySchema is None else arrow_schema(_schema(keySchema))
        self._given_keys = self._keys
        self._output = None if outputStructType is None else arrow_schema(_schema(outputStructType))
        self._range = KeyGroupRange(0, DEFAULT_MAX_PARALLELISM - 1)
        self._now_ms = 0
        self._watermark_ms = 0
        self._in_pandas = initialStatePandas is not None
        self._batch_id = -1
        self._log: TesterLog | None = None
        states = self._operator(pa.schema([])).schema.states  # wrong ones are told at once
        self.handle = TesterHandle(self._open, states, self._drop, self._time_mode)
        initial = initialStatePandas if initialStateRow is None else initialStateRow
        if initial:
            rows = _Rows()
            for key, row in initial:
                rows.add(*self._place(key), [row])
            self._run(_Rows(), rows)

    # ---------------------------------------------------------------------------------- batches

    def test(self, key: Any, input: list[Row]) -> list[Row]:
        """
        Run one micro-batch of *input*, all of one key, through a Row-flavour processor.

        Args:
            key: The key: one value, or a tuple of the values of several key columns.
            input: The rows.

        Returns:
            What the processor yields, that of timers which were due included.

        Raises:
            ProcessorError: The processor failed; its own error is the `__cause__`.
        """
        self._in_pandas = False
        self.handle.setGroupingKey(key)
        extractor = self._extractor
        if self._time_mode == "eventtime" and extractor is not None:
            input = [row for row in input if extractor(row) > self._watermark_ms]
        return self._run(self._rows_of(key, input))

    def testInPandas(self, key: Any, input: pd.DataFrame) -> pd.DataFrame:
        """Run one micro-batch through a pandas-flavour processor; as `test`, with frames."""
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
        return self._in_form(self._run(_Rows()))

    def setWatermark(self, currentWatermarkMs: int) -> Any:
        """Move the watermark forward, and fire the timers that are due; as `setProcessingTime`."""
        self._watermark_ms = self._moved("setWatermark", self._watermark_ms, currentWatermarkMs)
        self.handle.setWatermark(self._watermark_ms)
        return self._in_form(self._run(_Rows()))

    def restart(self) -> None:
        """Forget all state in memory and read it back: from the log, then from a snapshot of it."""
        if self._log is not None:
            self._log.restart(self._codec(), self._now())

    # ------------------------------------------------------------------------------------ state

    def updateValueState(self, stateName: str, key: Any, value: tuple[Any, ...]) -> None:
        """Set a value state of *key*."""
        handle, commit = self._open(key)
        handle.getValueState(stateName, "").update(value)
        commit()

    def peekValueState(self, stateName: str, key: Any) -> tuple[Any, ...] | None:
        """Return a value state of *key*, or None if there is none or its time is over."""
        self.handle.setGroupingKey(key)
        handle, _ = self._open(key)
        value: tuple[Any, ...] | None = handle.getValueState(stateName, "").get()
        return value

    def updateListState(self, stateName: str, key: Any, value: list[tuple[Any, ...]]) -> None:
        """Set a list state of *key*."""
        handle, commit = self._open(key)
        handle.getListState(stateName, "").put(value)
        commit()

    def peekListState(self, stateName: str, key: Any) -> list[tuple[Any, ...]]:
        """Return the elements of a list state of *key*."""
        self.handle.setGroupingKey(key)
        handle, _ = self._open(key)
        return list(handle.getListState(stateName, "").get())

    def updateMapState(self, stateName: str, key: Any, value: Mapping[Any, Any]) -> None:
        """Set all entries of a map state of *key*."""
        handle, commit = self._open(key)
        state = handle.getMapState(stateName, "", "")
        state.clear()
        for user_key, entry in value.items():
            state.updateValue(user_key, entry)
        commit()

    def peekMapState(self, stateName: str, key: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Return the entries of a map state of *key*."""
        self.handle.setGroupingKey(key)
        handle, _ = self._open(key)
        return dict(handle.getMapState(stateName, "", "").iterator())

    def peekTimers(self, key: Any) -> list[int]:
        """Return the timers of *key*, ascending."""
        self.handle.setGroupingKey(key)
        return list(self.handle.listTimers())

    def deleteState(self, stateName: str, key: Any) -> None:
        """Delete a state variable of *key*; raises `UsageError` if there is no such variable."""
        self.handle.setGroupingKey(key)
        self.handle.deleteState(stateName)

    # ---------------------------------------------------------------------------------- inside

    def _operator(self, keys: pa.Schema) -> OperatorCodec:
        schema = operator_schema(
            self.processor, "tester", keys, parse_ddl, time_mode=self._time_mode
        )
        return OperatorCodec(schema, make_row)

    def _codec(self) -> OperatorCodec:
        return self._opened(()).state.codec

    def _opened(self, key: Key) -> TesterLog:
        """Return the log, opened with the types of the first key."""
        if self._log is None:
            if self._keys is None:
                self._keys = pa.schema([("key", _type_of(key[0] if key else None))])
            self._log = TesterLog(self._operator(self._keys), self._range)
        return self._log

    def _place(self, key: Any) -> tuple[int, Key, Key]:
        """Return a key's group, the key as tables hold it, and as the processor sees it."""
        shown: Key = key if type(key) is tuple and self._is_key(key) else (key,)
        codec = self._opened(shown).state.codec
        frozen = codec.key.freeze(shown)
        if any(pa.types.is_struct(kind) for kind in codec.key.schema.types):
            # Only Spark can hash a struct; which group it is makes no difference here.
            return crc32(repr(frozen).encode("utf-8")) % len(self._range), frozen, shown
        return key_group_of(shown, codec.key.schema, len(self._range)), frozen, shown

    def _is_key(self, value: tuple[Any, ...]) -> bool:
        """Return whether a tuple is a whole key; else it is the value of the key's one column."""
        columns = self._given_keys
        if columns is None:
            return False
        return len(columns) > 1 or (len(value) == 1 and not pa.types.is_struct(columns.types[0]))

    def _drop(self, name: str) -> None:
        """Empty a state variable for all keys."""
        log = self._opened(())
        state = log.current()
        state_id = state.codec.schema.state_id(name)
        overlays: dict[int, Overlay] = {}
        for group, content in state.groups.items():
            deltas: Overlay = [{} for _ in state.codec.states]
            kind = state.codec.kinds[state_id]
            deltas[state_id].update(
                (key, kind.rules.clear_delta()) for key in content.tables[state_id]
            )
            if deltas[state_id]:
                overlays[group] = deltas
        log.commit(overlays)

    def _rows_of(self, key: Any, rows: Iterable[Any]) -> _Rows:
        found = _Rows()
        found.add(*self._place(key), rows)
        return found

    def _run(self, rows: KeyedInput, initial: KeyedInput | None = None) -> list[Any]:
        if self._log is None:
            return []  # no key was ever named: no timers, no rows
        self._batch_id += 1
        state = self._log.current()
        output = _Collected()
        spec = self._spec()
        run = ProcessorRun(spec, state, self._range, output)
        run.process(rows, initial)
        if self._output is not None and not self._in_pandas:
            typed = RowOutput(self._output, self._batch_id)
            typed.extend(output.rows)
            typed.batch()
        try:
            self._log.commit(run.overlays)
        except UNENCODABLE as error:
            raise run.locate_unencodable_value(error) from error
        return output.rows

    def _now(self) -> int:
        return -1 if self._time_mode == "none" else self._now_ms

    def _spec(self) -> TaskSpec:
        return TaskSpec(
            location="",
            store_options={},
            fsync=False,
            epoch=0,
            batch_id=self._batch_id,
            checkpoint_id=self._batch_id,
            base_id=self._batch_id - 1,
            committed=(),
            ranges=(self._range,),
            schema={},
            key_positions=(),
            first_input=0,
            output=pa.schema([]),
            processor=pickle.loads(self._pickled),
            time_mode=self._time_mode,
            now_ms=self._now(),
            snapshots={},
            inline_bytes=0,
            staged=False,
            watermark_ms=self._watermark_ms if self._time_mode == "eventtime" else -1,
        )

    def _open(self, key: Any) -> tuple[KnownStates, Callable[[], None]]:
        """Return a handle at *key*, and a function that commits what was done with it."""
        group, frozen, _ = self._place(key)
        log = self._opened(())
        state = log.current()
        codec = state.codec
        overlay: Overlay = [{} for _ in codec.states]
        cursor = Cursor(self._now())
        timers = None
        if self._time_mode != "none":
            timers_id = codec.schema.state_id(TIMERS_NAME)
            timers = Timers(cursor, timers_id, codec.states[timers_id].value)
        cursor.enter(state.groups[group], overlay)
        cursor.key = frozen
        handle = KnownStates(cursor, codec, timers, lambda state_id: None)
        return handle, lambda: log.commit({group: overlay})

    def _moved(self, method: str, old: int, new: int) -> int:
        mode = "EventTime" if method == "setWatermark" else "ProcessingTime"
        if self._time_mode != mode.lower():
            raise UnsupportedOperationError(
                f"{method} needs the time mode {mode}; this is {self._time_mode}",
                condition="UNSUPPORTED_OPERATION",
            )
        if new <= old:
            raise WrongTimeError(
                f"{method}: time moves forward; it is {old} ms, {new} ms was given"
            )
        return new

    def _in_form(self, produced: list[Any]) -> Any:
        """Return rows as they are, frames as one."""
        if not self._in_pandas:
            return produced
        import pandas as pd

        return pd.concat(produced, ignore_index=True) if produced else pd.DataFrame()


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value.lower() not in allowed:
        raise WrongArgumentError(f"{name} is one of {', '.join(allowed)}; got {value!r}")
    return value.lower()


def _schema(schema: StructType | str) -> StructType:
    return parse_ddl(schema) if isinstance(schema, str) else schema


def _type_of(key: Any) -> pa.DataType:
    """Return the type of a key; that of text for None, as any type would do."""
    if key is None:
        return pa.string()
    if type(key) is tuple:
        return pa.struct([(f"_{place}", _type_of(part)) for place, part in enumerate(key, 1)])
    return pa.infer_type([key])
