"""
`ColumnarProcessor`: keyed state and rows as columns, without an object per key or row.

It is what `StatefulProcessor` is for single keys: `init` asks for state variables once per task,
and `process` is called once with all keys of a task in a micro-batch, in parts where their rows
exceed the memory budget.  The state is in the same log and snapshots, so that a processor of Rows
reads the values and timers that a columnar one wrote, and the other way round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import pyarrow as pa
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.extensions.broadcasts.tables import BroadcastTable
from statelog.extensions.columns.slots import ColumnState, ColumnTimers, Keys
from statelog.extensions.side_outputs.declaration import SideOutput
from statelog.spark.query.face import AnyProcessor
from statelog.spark.rows.spark_versions import TimerValues

Tables: TypeAlias = "Iterable[Any] | None"
"""Tables of output rows: Arrow tables or record batches, frames of pandas or Polars."""


class ColumnarHandle(Protocol):
    """Gives a columnar processor its state variables, timers and side outputs in `init`."""

    def getColumnState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ColumnState:
        """
        Return the state variable *stateName*, which has one value per key.

        Args:
            stateName: Its name; a value state of a processor of Rows has the same state.
            schema: Names and types of its fields, also as DDL text.
            ttlDurationMs: Time to live in milliseconds, since the last `put`; None for ever.
        """

    def broadcast(self, name: str) -> BroadcastTable:
        """
        Return the broadcast table *name* in the version of the micro-batch.

        See the setting `broadcast`.
        """

    def sideOutput(self, name: str, schema: StructType | str) -> SideOutput:
        """
        Return the side output *name*, whose method `emit` accepts tables of rows.

        Args:
            name: Its name, up to 100 letters, digits, '_' and '.'.
            schema: Names and types of its columns, also as DDL text.
        """

    @property
    def timers(self) -> ColumnTimers:
        """The timers; raises `UsageError` in the time mode None."""

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys; allowed only in `init`."""


class ColumnarProcessor(ABC):
    """
    A processor that handles whole columns; pass an instance to `transform_with_state`.

    A copy of it is made for each task and micro-batch, so what must last is state.

    Example:
        class Totals(ColumnarProcessor):
            columns = ["amount"]

            def init(self, handle):
                self.total = handle.getColumnState("total", "total double")

            def process(self, keys, rows, times):
                old = self.total.get(keys)["total"].fill_null(0.0).to_numpy()
                new = old + np.add.reduceat(rows["amount"].to_numpy(), keys.starts)
                self.total.put(keys, {"total": new})
                yield {"customer": keys["customer"], "total": new}
    """

    __statelog_face__: ClassVar[str] = "columns"

    columns: ClassVar[Sequence[str] | None] = None
    """
    The input columns that `process` reads; None for all.

    The others are not read, shuffled or sent.  The keys and the event time are always sent.  The
    setting `inputColumns` goes first; where keys are recorded or become dead letters, all columns
    are sent.
    """

    @abstractmethod
    def init(self, handle: ColumnarHandle) -> None:
        """Get the state variables from *handle*; called in each task, and once on the driver."""

    @abstractmethod
    def process(self, keys: Keys, rows: pa.Table, times: TimerValues) -> Tables:
        """
        Process the rows of all keys of a task, and yield tables of output rows.

        Args:
            keys: The distinct keys; `keys.starts` and `keys.ends` say which rows are theirs.
            rows: The columns of the input, or those that `columns` names.  The rows of a key are
                together, in order of arrival.
            times: Processing time and watermark of the micro-batch.
        """

    def expired(self, keys: Keys, expiry_ms: pa.Array, times: TimerValues) -> Tables:
        """
        Process all due timers at once, and yield tables of output rows.

        Each is deleted afterwards.  A timer registered here fires in the next micro-batch at the
        earliest.

        Args:
            keys: One key for each timer, by time; a key with several timers is there several times.
            expiry_ms: The time of each timer, in milliseconds.
            times: Processing time and watermark of the micro-batch.
        """
        return None

    def initialize(self, keys: Keys, rows: pa.Table, times: TimerValues) -> None:
        """Process the rows of the initial state, before `process` in the first micro-batch."""
        raise UsageError(
            f"{type(self).__name__} does not implement initialize, which initial state requires"
        )

    def close(self) -> None:
        """Release the resources acquired in `init`; called at the end of each task."""
        return None


def columns_named_by(processor: AnyProcessor, columns: Sequence[str]) -> frozenset[str] | None:
    """Return which input columns a columnar processor reads, or None for all of them."""
    # Imported here: it is needed once, when the query is declared, and never in a worker.
    from statelog.spark.query.input_columns import named_columns

    names = cast("ColumnarProcessor", processor).columns
    if names is None:
        return None
    where = f"{type(processor).__name__}.columns"
    if isinstance(names, str):
        raise UsageError(
            f"{where} is the string {names!r}: pass a list of column names, such as [{names!r}]"
        )
    return named_columns(where, names, columns)
