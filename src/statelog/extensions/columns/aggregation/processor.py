"""The processor of `aggregate`, which combines partial results with the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from statelog.errors import InvariantError
from statelog.extensions.columns.aggregation.kinds import AggregateKind, Parts
from statelog.extensions.columns.processor import ColumnarHandle, ColumnarProcessor, Tables
from statelog.extensions.columns.slots import Keys
from statelog.format.arrow_limits import one_array
from statelog.spark.rows.spark_versions import TimerValues
from statelog.state.schema import stored_field

STATE: Final = "aggregates"
"""Name of the state variable."""


@dataclass(frozen=True, slots=True)
class NamedAggregate:
    """
    One of the aggregates in a call.

    *parts* has the name of each part, and of its column among partial results and in the state.
    """

    name: str
    kind: AggregateKind
    parts: tuple[tuple[str, str, str], ...]

    def partial(self, rows: pa.Table) -> Parts:
        """Select the aggregate's parts from a table of partial results."""
        return {part: one_array(rows.column(column)) for part, column, _ in self.parts}

    def state(self, table: pa.Table) -> Parts:
        """Select the aggregate's parts from a table of state."""
        return {part: one_array(table.column(column)) for part, _, column in self.parts}


@dataclass(frozen=True, slots=True)
class Merge:
    """The aggregates in a call, and the output columns: first the keys, then the aggregates."""

    aggregates: tuple[NamedAggregate, ...]
    output: pa.Schema

    def combined(self, old: pa.Table, new: pa.Table) -> pa.Table:
        """Combine partial results of a micro-batch with the state, in the same order of keys."""
        columns: dict[str, pa.Array] = {}
        for aggregate in self.aggregates:
            before = aggregate.state(old)
            more = aggregate.partial(new)
            # Texts of a micro-batch may be large ones, by a setting of Spark.
            more = {part: _typed(column, before[part].type) for part, column in more.items()}
            combined = aggregate.kind.combine(before, more)
            columns |= {column: combined[part] for part, _, column in aggregate.parts}
        return pa.table(columns)

    def results(self, keys: pa.Table, state: pa.Table) -> pa.Table:
        """Compute the output rows of some keys from their state."""
        fields = list(self.output)[keys.num_columns :]
        columns: Sequence[pa.Array] = [
            aggregate.kind.result(aggregate.state(state), stored_field(field).type)
            for aggregate, field in zip(self.aggregates, fields, strict=True)
        ]
        return pa.table([*keys.columns, *columns], names=self.output.names)


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


class AggregateProcessor(ColumnarProcessor):
    """Keeps the state of the aggregates for each key."""

    def __init__(
        self, merge: Merge, state: StructType, event_time: int | None, *, is_append: bool
    ) -> None:
        self._merge = merge
        self._schema = state
        self._event_time = event_time
        self._is_append = is_append

    def init(self, handle: ColumnarHandle) -> None:
        """Create a single variable for the state of all aggregates."""
        self._state = handle.getColumnState(STATE, self._schema)
        if self._event_time is not None:
            self._timers = handle.timers

    def process(self, keys: Keys, rows: pa.Table, times: TimerValues) -> Tables:
        """Combine partial results with the state, and return the results."""
        if rows.num_rows != len(keys):
            raise InvariantError(f"{rows.num_rows} partial results for {len(keys)} keys")
        if self._event_time is not None:
            new = keys.take(~self._state.exists(keys))
            self._timers.register(new, ends_ms(new.columns[self._event_time]))
        state = self._merge.combined(self._state.get(keys), rows)
        self._state.put(keys, state)
        return [] if self._is_append else [self._merge.results(keys.table, state)]

    def expired(self, keys: Keys, expiry_ms: pa.Array, times: TimerValues) -> Tables:
        """Drop the keys that the watermark has passed."""
        state = self._state.get(keys) if self._is_append else None
        self._state.clear(keys)
        return [] if state is None else [self._merge.results(keys.table, state)]


def ends_ms(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the lowest watermarks at which keys with these event times or windows end."""
    times = one_array(column)
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, "end")
    moments = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_numpy()
    ends: npt.NDArray[np.int64] = -(-moments // 1000)
    return ends
