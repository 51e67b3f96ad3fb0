"""
Run a processor over a task's keys.

Source: PySpark's transformWithState: for each key `handleInitialState` for each row (or frame) of
initial state in a first batch, then `handleInputRows` once if there are input rows; then every
timer that is due, in the order of time; a processor is initialized once per task and closed at its
end.  The key is a plain tuple of the values that rows hold; in `handleExpiredTimer` it is a Row
with the names of the key's columns and the values that state holds (timestamps without a zone,
structs as Rows).
Deviation: a timer that the call for another timer deleted does not fire (Spark has read it by
then).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import GeneratorType
from typing import Any, Final, NoReturn, cast

from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from statelog.errors import ProcessorError
from statelog.extras import require
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.spark.query.declared_state import DriverHandle
from statelog.spark.query.face import AnyProcessor, Face, Methods
from statelog.spark.query.processor_checks import described, plain_function
from statelog.spark.rows.formats import PandasRowFormat, RowFormat, SparkRowFormat
from statelog.spark.rows.interface import KeyedInput, OutputCollector
from statelog.spark.rows.spark_versions import ExpiredTimerInfo, StatefulProcessor, TimerValues
from statelog.spark.rows.types import make_row, row_factory
from statelog.spark.rows.unfit_output import UnfitOutputError, returned
from statelog.spark.worker.due_timers import Due, RetiredChanges, due_timers, first_timer_ms
from statelog.spark.worker.extension import NO_EXTENSIONS, TaskExtensions
from statelog.spark.worker.failures import ends_of_process_are_errors
from statelog.spark.worker.handle import TaskHandle
from statelog.spark.worker.protocol import NEVER_MS, BatchContext
from statelog.spark.worker.spill_file import SpillFile
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.values import UNENCODABLE, StructCodec
from statelog.state.heap import KeyGroupState, Overlay
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import Key
from statelog.state.objects import Cursor, Timers
from statelog.state.schema import TIMERS_NAME


class ProcessorRun:
    """
    Runs a processor over the keys of one task.

    The order of calls: `begin`, then for each part of the input `take` and, once its overlays are
    appended to the log, `retire`, then `end`.  `take` is `prepare` and `handle`, `end` is `due`,
    `fire` and `close`.
    """

    def __init__(
        self,
        context: BatchContext,
        state: KeyedState,
        key_group_range: KeyGroupRange,
        output: OutputCollector,
        extensions: TaskExtensions = NO_EXTENSIONS,
    ) -> None:
        self._processor = cast("StatefulProcessor", context.processor)
        self._key_group = -1
        self._context = context
        self._state = state
        self._range = key_group_range
        self._codec = state.codec
        self._cursor = Cursor(context.now_ms)
        self._timers_id: int | None = None
        self._timers: Timers | None = None
        if context.time_mode != "none":
            self._timers_id = self._codec.schema.state_id(TIMERS_NAME)
            timers_codec = self._codec.states[self._timers_id].value
            self._timers = Timers(self._cursor, self._timers_id, timers_codec)
        has_time = context.time_mode != "none"
        self._times = TimerValues(context.now_ms, context.watermark_ms if has_time else -1)
        self.output = output
        self._extensions = extensions
        self._calls = output.calls
        self.overlays: dict[int, Overlay] = {}
        self.key_count = 0
        self.failed: tuple[int, Key] | None = None
        self._in_parts = False
        self._retired: RetiredChanges | None = None
        self._shadows: dict[int, KeyGroupState] = {}

    @ends_of_process_are_errors
    def begin(self) -> None:
        """Initialize the processor; raises `ProcessorError` if that fails."""
        processor = self._processor
        handle = TaskHandle(self._cursor, self._codec, self._timers, self._drop, self._extensions)
        try:
            # `init` runs for each task: it binds the state objects to this task's cursor.
            processor.init(handle)
            handle.initialized()
        except (Exception, SystemExit) as error:
            self._raise("init", None, error)
        self._extensions.opened()

    def in_parts(self, file: SpillFile) -> bool:
        """
        Prepare for input parts whose changes do not stay in memory; called after `begin`.

        Returns:
            Whether `retire` may be called: not where `init` deleted a variable of all keys, because
            those changes stay in memory until the end.
        """
        self.output.bound_each_call()
        # Overlays before the first row come from a variable that `init` deleted.
        self._in_parts = not self.overlays
        if self._in_parts and self._timers_id is not None:
            until = self._context.due_until_ms
            self._retired = RetiredChanges(self._codec, self._timers_id, until, file)
        return self._in_parts

    def take(self, rows: KeyedInput, initial: KeyedInput | None = None) -> None:
        """Run the processor over some keys, passing all their rows."""
        self.prepare(rows, initial)
        self.handle(rows, initial)

    def prepare(self, rows: KeyedInput, initial: KeyedInput | None) -> None:
        """Prepare the state for a part of the input, for one or more calls of `handle`."""
        if self._state.is_columnar:
            # Borrowed keys return to the columns after the part; prepared ones stay in the dict
            # tables.
            keys = {group: rows.table_keys(group) for group in rows.key_groups()}
            (self._state.borrow if self._in_parts else self._state.prepare)(keys)

    @ends_of_process_are_errors
    def handle(self, rows: KeyedInput, initial: KeyedInput | None = None) -> None:
        """Run the processor over some keys in the part; raises like `take`."""
        if initial is not None:
            self._initialize_groups(initial, rows)
        for key_group in rows.key_groups():
            self._enter(key_group)
            self._process_group(key_group, rows)

    def retire(self, changes: ChangeBatch) -> None:
        """Discard the overlays, which have been appended to the log as *changes*."""
        if self._retired is not None:
            self._retired.add(self._state.groups, self.overlays, changes)
        self._cursor.leave()
        self.overlays = {}
        self._state.give_back()

    def end(self) -> None:
        """
        Run the processor for due timers, then close it.

        Raises as `take`.
        """
        self.fire(self.due())
        self.close()

    @ends_of_process_are_errors
    def close(self) -> None:
        """Close the processor; raises `ProcessorError` if that fails."""
        self._cursor.leave()
        self._extensions.closed()
        try:
            self._processor.close()
        except (Exception, SystemExit) as error:
            self._raise("close", None, error)

    def flush(self) -> None:
        """Convert the remaining output; raises `ProcessorError` if a row does not fit."""
        try:
            self.output.flush()
            self._extensions.flush()
        except UnfitOutputError as error:
            raise self.located(error) from error.__cause__

    def _convert_if_many(self) -> None:
        """Convert the output if it has grown to many rows; raises like `flush`."""
        try:
            self.output.convert_if_many()
        except UnfitOutputError as error:
            raise self.located(error) from error.__cause__

    def _returned(self, produced: object) -> Iterable[Any]:
        """Return what a method returned; raise `UnfitOutputError` if it is a single row."""
        return returned(produced, self._context.batch_id, "rows")

    def encoded(self) -> ChangeBatch:
        """Encode the changes for the log; raises `ProcessorError` if a value does not fit."""
        try:
            return self._codec.encode(self.overlays)
        except UNENCODABLE as error:
            raise self.locate_unencodable_value(error) from error

    def stage(self, checkpoint_id: int, base_id: int, state_handle_id: str) -> None:
        """Store the changes for the next task of this worker."""
        self._state.stage(checkpoint_id, base_id, state_handle_id, self._range, self.overlays)

    def snapshot(self, key_group_range: KeyGroupRange) -> bytes:
        """Return a snapshot of the state, including the changes made in this run."""
        return self._state.snapshot(key_group_range, self.overlays, self._context.now_ms)

    def _initialize_groups(self, initial: KeyedInput, rows_of: KeyedInput) -> None:
        """Call `handleInitialState` for each key; also count keys without input rows."""
        initialize = self._processor.handleInitialState
        key: Key = ()
        for key_group in initial.key_groups():
            self._enter(key_group)
            # A key with input rows too is counted when these are handled.
            with_rows = set(rows_of.table_keys(key_group))
            try:
                for key, key_object, rows in initial.keys(key_group):
                    self._cursor.key = key
                    self._begin_initial(key)
                    for row in rows:
                        initialize(key_object, row, self._times)
                    self.key_count += key not in with_rows
            except (Exception, SystemExit) as error:
                self._raise("handleInitialState", key, error)

    def _process_group(self, key_group: int, rows_of: KeyedInput) -> None:
        keys = rows_of.table_keys(key_group)
        # Remembered for errors: which call yielded which row is computed only after a failure.
        self._calls.begin(keys, key_group, "handleInputRows")
        self._cursor.key = ()
        try:
            self._handle_keys(key_group, rows_of)
        except (Exception, SystemExit) as error:
            self._raise("handleInputRows", self._cursor.key, error)
        self.key_count += len(keys)
        self._calls.finish()
        self._convert_if_many()

    def _handle_keys(self, key_group: int, rows_of: KeyedInput) -> None:
        """Call `handleInputRows` for each key, and record where the output of each key ends."""
        # Locals, because this loop runs once for each key.
        handle_rows = self._processor.handleInputRows
        cursor = self._cursor
        times = self._times
        extend = self.output.extend
        items = self.output.items
        generator = GeneratorType
        add_end = self._calls.ends.append
        for key, key_object, rows in rows_of.keys(key_group):
            cursor.key = key
            produced = handle_rows(key_object, rows, times)
            if produced is not None:
                extend(produced if produced.__class__ is generator else self._returned(produced))
            add_end(len(items))

    def overlay(self, key_group: int) -> Overlay:
        """Return the changes to a key group."""
        overlay = self.overlays.get(key_group)
        if overlay is None:
            overlay = self.overlays[key_group] = [{} for _ in self._codec.states]
        return overlay

    def group(self, key_group: int) -> KeyGroupState:
        """Return the state of a key group, without the overlays."""
        return self._shadows.get(key_group) or self._state.groups[key_group]

    def _enter(self, key_group: int) -> None:
        self._key_group = key_group
        self._cursor.enter(self.group(key_group), self.overlay(key_group))

    def due(self) -> list[Due]:
        """Return the due timers sorted by time, and prepare the state of their keys."""
        if self._timers_id is None:
            return []
        until = self._context.due_until_ms
        retired = self._retired
        due = due_timers(self._state, self._range, self._timers_id, until, self.overlays, retired)
        if retired is not None:
            keys: dict[int, set[Key]] = {}
            for _, key_group, key in due:
                keys.setdefault(key_group, set()).add(key)
            self._state.prepare(keys)
            for key_group, keys_of_group in keys.items():
                group = self._state.groups[key_group]
                self._shadows[key_group] = retired.brought_forward(key_group, group, keys_of_group)
        return due

    @ends_of_process_are_errors
    def fire(self, due: Sequence[Due]) -> None:
        """Run the processor for due timers; raises like `take`."""
        for time, key_group, key in due:
            self._enter(key_group)
            self._cursor.key = key
            self._fire(time, key)
            self._convert_if_many()

    def drop_timer(self, time: int, key_group: int, key: Key) -> bool:
        """Delete a timer without calling the processor; return whether it existed."""
        timers = self._timers
        if timers is None:
            return False
        self._enter(key_group)
        self._cursor.key = key
        was_there = timers.contains(time)
        timers.delete(time)
        return was_there

    def _fire(self, time: int, key: Key) -> None:
        timers = self._timers
        if timers is None or not timers.contains(time):
            return  # the call for an earlier timer deleted it
        self._calls.begin((key,), self._key_group, "handleExpiredTimer", time)
        try:
            produced = self._handle_timer(time, key)
            if produced is not None:
                self.output.extend(self._returned(produced))
            self._calls.ends.append(len(self.output.items))
            self._calls.finish()
        except (Exception, SystemExit) as error:
            self._raise("handleExpiredTimer", key, error, time)
        # After the call: registering the same time again within it does not fire twice.
        timers.delete(time)

    def _handle_timer(self, time: int, key: Key) -> Iterable[Row] | None:
        return self._processor.handleExpiredTimer(
            key=self._key_of_timer(key),
            timerValues=self._times,
            expiredTimerInfo=ExpiredTimerInfo(time),
        )

    @cached_property
    def _key_of_timer(self) -> Callable[[Key], Row]:
        """The function that converts a key for `handleExpiredTimer`; created by the first timer."""
        schema = self._codec.key.schema
        make = row_factory(schema.names)
        from_hashable = self._codec.key.from_hashable
        as_state = StructCodec(schema, struct_factory=make_row, what="the key").normalize
        return lambda key: make(as_state(from_hashable(key)))

    def next_due_ms(self) -> int:
        """Return when the task's earliest timer is due after this run."""
        timers_id = self._timers_id
        if timers_id is None:
            return NEVER_MS
        until = self._context.due_until_ms
        retired = self._retired
        return first_timer_ms(self._state, self._range, timers_id, until, self.overlays, retired)

    def _drop(self, state_id: int) -> None:
        """Delete a variable for every key of the task."""
        kind = self._codec.kinds[state_id]
        self._state.prepare_all(self._range)
        for key_group in self._range:
            table = self._state.groups[key_group].tables[state_id]
            if table:
                deltas = self.overlay(key_group)[state_id]
                for key in table:
                    deltas[key] = kind.rules.clear_delta()

    def located(self, error: UnfitOutputError) -> ProcessorError:
        """Add the method and the key to an error about the output."""
        item = len(self.output.items) if error.item_number is None else error.item_number
        call = self._calls.call_of(item)
        failure = self._failure(call.method, call.key, error.what)
        self.failed = call.key_group, call.key
        if self._in_parts and call.is_over:
            failure.key = None  # it cannot be recorded: the rows of its part are gone
        else:
            self._note_failure(call.key_group, call.key, call.method, call.timer_ms)
        return failure

    # --- for a run that records keys: `RecordedRun`

    def _begin_initial(self, key: Key) -> None:
        """A hook that is called before the `handleInitialState` calls for each key."""

    def _note_failure(self, key_group: int, key: Key, method: str, timer_ms: int = -1) -> None:
        """A hook that is called when a call fails."""
        self.failed = key_group, key

    def _raise(
        self, method: str, key: Key | None, error: BaseException, timer_ms: int = -1
    ) -> NoReturn:
        """Raise the error for a failed call."""
        raise self._failed(method, key, error, timer_ms) from error

    def _failed(
        self, method: str, key: Key | None, error: BaseException, timer_ms: int = -1
    ) -> ProcessorError:
        if isinstance(error, UnfitOutputError):
            return self.located(error)
        if key is not None:
            self._note_failure(self._key_group, key, method, timer_ms)
        return self._failure(method, key, described(error))

    def _failure(self, method: str, key: Key | None, what: str) -> ProcessorError:
        name = type(self._processor).__name__
        of_key = "" if key is None else f" for key {self._codec.key.from_hashable(key)!r:.200}"
        return ProcessorError(
            f"{name}.{method} failed{of_key} in batch {self._context.batch_id}: {what}. "
            "Nothing of this batch was committed; the state is unchanged",
            batch_id=self._context.batch_id,
            key=None if key is None else repr(key),
            method=method,
            what=what,
        )

    def locate_unencodable_value(self, error: Exception) -> ProcessorError:
        """Return an error that names the state and key whose value does not fit its type."""
        batch_id = self._context.batch_id
        located = next(unencodable_values(self._codec, self.overlays, batch_id), None)
        if located is None:
            return ProcessorError(
                f"the state changes of batch {batch_id} cannot be encoded: {error}",
                batch_id=batch_id,
            )
        key_group, key, failure = located
        self._note_failure(key_group, key, "")
        return failure


def unencodable_values(
    codec: OperatorCodec, overlays: Mapping[int, Overlay], batch_id: int
) -> Iterator[tuple[int, Key, ProcessorError]]:
    """Yield (key group, key, error) for each value that does not fit its type."""
    for key_group, overlay in overlays.items():
        for state, deltas in zip(codec.states, overlay, strict=True):
            for key, delta in deltas.items():
                try:
                    state.batch(state.operations({key: delta}))
                except UNENCODABLE as unfit:
                    schema = state.descriptor.value_schema
                    shown_key = codec.key.from_hashable(key)
                    error = ProcessorError(
                        f"state {state.descriptor.name!r} of key {shown_key!r:.200} in batch "
                        f"{batch_id} contains a value that does not fit its type "
                        f"({schema.to_string(show_field_metadata=False)}): {unfit}. Nothing of this "
                        "batch was committed",
                        batch_id=batch_id,
                        key=repr(key),
                        state=state.descriptor.name,
                        key_group=key_group,
                    )
                    error.__cause__ = unfit
                    yield key_group, key, error


def _rows(session: SparkSession, output: StructType, has_initial: bool) -> RowFormat:
    return SparkRowFormat()


def _columns_read(processor: AnyProcessor, columns: Sequence[str]) -> frozenset[str] | None:
    # Imported here: it is needed once, when the query is declared, and never in a worker.
    from statelog.spark.query.input_columns import columns_read

    function = plain_function(processor, "handleInputRows")
    return None if function is None else columns_read(function, columns)


def _frames(session: SparkSession, output: StructType, has_initial: bool) -> RowFormat:
    require("a processor of pandas frames", "spark", "pandas")
    # Imported here, because the import of pandas takes time.
    from statelog.spark.rows.pandas_input import PandasSettings

    return PandasRowFormat(PandasSettings.of(session, has_initial=has_initial), output)


ROWS: Final = Face(
    processor_type=StatefulProcessor,
    methods=Methods("handleInputRows", "handleExpiredTimer", "handleInitialState"),
    handles_single_keys=True,
    row_format=_rows,
    driver_handle=DriverHandle,
    new_state=KeyedState,
    new_run=ProcessorRun,
    columns_read=_columns_read,
)
PANDAS: Final = replace(ROWS, row_format=_frames, columns_read=lambda processor, columns: None)
