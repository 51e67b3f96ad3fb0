"""
The columnar face: the driver's handle for `init`, and the run over a task's keys.

The order is the same as in `ProcessorRun`: `init`, then `initialize` and `process` for each part of
the rows, then `expired` for the timers that are due, then `close`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from statelog.errors import InvariantError, ProcessorError, UsageError
from statelog.extensions.columns.processor import (
    ColumnarHandle,
    ColumnarProcessor,
    Tables,
    columns_named_by,
)
from statelog.extensions.columns.rows import ColumnarFormat, ColumnarInput
from statelog.extensions.columns.slots import (
    ColumnState,
    ColumnTimers,
    Keys,
    SlotState,
    SlotTable,
    snapshot_of,
)
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.spark.extension_table import ExtendedHandle, ExtensionRow
from statelog.spark.query.declared_state import DriverHandle, check_not_reserved
from statelog.spark.query.face import Face, Methods
from statelog.spark.query.processor_checks import described
from statelog.spark.query.state_variables import SchemaLike, WantedVariable
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.interface import KeyedInput, OutputCollector
from statelog.spark.rows.spark_versions import TimerValues
from statelog.spark.rows.unfit_output import NOTHING_COMMITTED, UnfitOutputError, returned
from statelog.spark.worker.extension import NO_EXTENSIONS, TaskExtensions
from statelog.spark.worker.failures import ends_of_process_are_errors
from statelog.spark.worker.handle import NO_TIMERS
from statelog.spark.worker.protocol import NEVER_MS, BatchContext
from statelog.spark.worker.spill_file import SpillFile
from statelog.state.kinds import StateKind
from statelog.state.schema import TIMERS_NAME

_ONLY_IN_INIT: Final = "state {!r}: state variables can be {} only in init()"


class ColumnarTaskHandle(ExtendedHandle):
    """The state variables by name, and the timers."""

    def __init__(
        self,
        table: SlotTable,
        timers: ColumnTimers | None,
        drop: Callable[[int], None],
        extensions: TaskExtensions,
    ) -> None:
        self._table = table
        self._timers = timers
        self._drop = drop
        self._extensions = extensions
        self._initialized = False

    def initialized(self) -> None:
        """End the phase in which state variables may be created."""
        self._initialized = True

    def getColumnState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> ColumnState:
        """Return a state variable; raise `UsageError` if the driver did not declare it."""
        if self._initialized:
            raise UsageError(_ONLY_IN_INIT.format(stateName, "created"))
        schemas = self._table.codec.schema
        try:
            state_id = schemas.state_id(stateName)
        except KeyError:
            raise UsageError(
                f"init() declares state {stateName!r} in a task, but did not declare it on the driver; it must "
                "declare the same state everywhere"
            ) from None
        descriptor = schemas.states[state_id]
        if descriptor.kind is not ColumnState.kind:
            raise UsageError(f"state {stateName!r} is a {descriptor.kind_text} state")
        return ColumnState(self._table, state_id)

    def _call_of(self, row: ExtensionRow, method: str) -> Callable[..., object]:
        return self._extensions.call(row, method)

    @property
    def timers(self) -> ColumnTimers:
        """The timers."""
        if self._timers is None:
            raise UsageError(NO_TIMERS)
        return self._timers

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys; allowed only in `init`."""
        if self._initialized:
            raise UsageError(_ONLY_IN_INIT.format(stateName, "deleted"))
        check_not_reserved(stateName)
        try:
            self._drop(self._table.codec.schema.state_id(stateName))
        except KeyError:
            return


class ColumnarRun:
    """A run of a columnar processor; see `ProcessorRun` for the methods."""

    def __init__(
        self,
        context: BatchContext,
        state: SlotState,
        key_group_range: KeyGroupRange,
        output: OutputCollector,
        extensions: TaskExtensions = NO_EXTENSIONS,
    ) -> None:
        self._processor = cast("ColumnarProcessor", context.processor)
        self._context = context
        self._state = state
        self._table = state.table
        self._range = key_group_range
        has_time = context.time_mode != "none"
        self._times = TimerValues(context.now_ms, context.watermark_ms if has_time else -1)
        self._timers_id: int | None = None
        self._timers: ColumnTimers | None = None
        if has_time:
            self._timers_id = state.codec.schema.state_id(TIMERS_NAME)
            self._timers = ColumnTimers(state.table, self._timers_id)
        state.table.now_ms = context.now_ms
        state.table.zone = context.zone
        self.output = output
        self._extensions = extensions
        self.key_count = 0

    @ends_of_process_are_errors
    def begin(self) -> None:
        """Initialize the processor; raise `ProcessorError` if that fails."""
        self._table.forget_pending()
        handle = ColumnarTaskHandle(self._table, self._timers, self._drop, self._extensions)
        self._call("init", None, lambda: self._processor.init(cast("ColumnarHandle", handle)))
        handle.initialized()
        self._extensions.opened()

    def in_parts(self, file: SpillFile) -> bool:
        """Return False: all writes stay in memory, as columns, until the end."""
        self.output.bound_each_call()
        return False

    @ends_of_process_are_errors
    def take(self, rows: KeyedInput, initial: KeyedInput | None = None) -> None:
        """Run the processor over rows; raises `ProcessorError`."""
        zone = self._context.zone
        initial_keys = None if initial is None else _keyed(initial, zone)
        input_keys = _keyed(rows, zone)
        if initial_keys is not None:
            keys, table = initial_keys
            self._call(
                "initialize", keys, lambda: self._processor.initialize(keys, table, self._times)
            )
            self.key_count += len(keys)
        if input_keys is not None:
            process_keys, input_rows = input_keys
            self._collect(
                "process",
                process_keys,
                lambda: self._processor.process(process_keys, input_rows, self._times),
            )
            self.key_count += len(process_keys)

    def retire(self, changes: ChangeBatch) -> None:
        """Raise an error; see `in_parts`."""
        raise InvariantError(
            "a columnar run cannot retire changes, because it keeps all of them in memory"
        )

    @ends_of_process_are_errors
    def end(self) -> None:
        """Run the processor for due timers, then close it; raises `ProcessorError`."""
        if self._timers_id is not None and self._timers is not None:
            slots, times = self._table.due(self._range, self._timers_id, self._context.due_until_ms)
            if len(slots):
                keys = self._table.keys_of(slots)
                expiry = pa.array(times)
                self._collect(
                    "expired", keys, lambda: self._processor.expired(keys, expiry, self._times)
                )
                self._timers.delete(keys, times)
        self._extensions.closed()
        self._call("close", None, self._processor.close)

    def flush(self) -> None:
        """Join the remaining output, whose tables were converted when they were yielded."""
        self.output.flush()
        self._extensions.flush()

    def next_due_ms(self) -> int:
        """Return when the task's earliest timer is due after this run."""
        if self._timers_id is None:
            return NEVER_MS
        return self._table.next_due_ms(self._range, self._timers_id, self._context.due_until_ms)

    def encoded(self) -> ChangeBatch:
        """Encode the changes for the log."""
        return self._table.changes()

    def stage(self, checkpoint_id: int, base_id: int, state_handle_id: str) -> None:
        """Store the changes for the next task of this worker."""
        self._state.stage(checkpoint_id, base_id, state_handle_id, self._range)

    def snapshot(self, key_group_range: KeyGroupRange) -> bytes:
        """Return a snapshot of the state, including the changes made in this run."""
        return snapshot_of(self._table, key_group_range, self._context.now_ms)

    def _drop(self, state_id: int) -> None:
        self._table.drop(state_id, self._range)

    def _collect(self, method: str, keys: Keys, call: Callable[[], Tables]) -> None:
        """Call a method, and collect the tables that it yields."""

        def run() -> None:
            produced = call()
            if produced is not None:
                self.output.extend(returned(produced, self._context.batch_id, "tables"))

        self._call(method, keys, run)
        self.output.convert_if_many()

    def _call(self, method: str, keys: Keys | None, call: Callable[[], None]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:
            name = type(self._processor).__name__
            groups = "" if keys is None else f" for {_of(keys)}"
            what = error.what if isinstance(error, UnfitOutputError) else described(error)
            raise ProcessorError(
                f"{name}.{method} failed{groups} in batch {self._context.batch_id}: {what}. "
                f"{NOTHING_COMMITTED}",
                batch_id=self._context.batch_id,
                method=method,
            ) from error


def _of(keys: Keys) -> str:
    groups = np.unique(keys.key_groups)
    return f"{len(keys)} keys of the key groups {groups[0]} to {groups[-1]}"


def _keyed(rows: KeyedInput, zone: str) -> tuple[Keys, pa.Table] | None:
    if not isinstance(rows, ColumnarInput):
        raise InvariantError(f"{type(rows).__name__} is not a columnar input")
    return rows.keyed(zone)


class ColumnarDriverHandle(DriverHandle):
    """Records the variables that a columnar processor declares."""

    def getColumnState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> object:
        """Declare a variable; `init` cannot use the returned object without a key."""
        return super()._variable(
            WantedVariable(stateName, StateKind.VALUE, schema, ttl_ms=ttlDurationMs)
        )

    def _variable(self, variable: WantedVariable) -> NoReturn:
        """Reject the state variables that other kinds of processors use."""
        raise UsageError(
            "a columnar processor supports only column state and timers: use getColumnState for values. "
            "To store lists or maps, use a processor that takes Rows or pandas frames"
        )

    @property
    def timers(self) -> _NoTimers:
        """Timers that reject all use, because keys do not exist yet."""
        return _NoTimers()


class _NoTimers:
    """Timers on the driver."""

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise UsageError("timers belong to keys; register them in process()")

    register = delete = get = _refuse


def _columns(session: SparkSession, output: StructType, has_initial: bool) -> RowFormat:
    return ColumnarFormat()


def _test_tables(tester: object, rows: pa.Table | None, initial: pa.Table | None) -> pa.Table:
    # Imported here, because a task does not test.
    from statelog.extensions.columns.tester import Tester, run_columns

    return run_columns(cast("Tester", tester), rows, initial)


COLUMNS: Final = Face(
    processor_type=ColumnarProcessor,
    methods=Methods("process", "expired", "initialize"),
    handles_single_keys=False,
    row_format=_columns,
    driver_handle=ColumnarDriverHandle,
    new_state=SlotState,
    new_run=ColumnarRun,
    columns_read=columns_named_by,
    test_tables=_test_tables,
)
