"""The processor of `aggregate`: partial results of a micro-batch in, combined with the state."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import StructType

from statelog.errors import InvariantError
from statelog.spark.aggregate.arrays import one_array
from statelog.spark.aggregate.merge import Merge
from statelog.spark.query.columnar_processor import ColumnarHandle, ColumnarProcessor, Tables
from statelog.state.slots import Keys

STATE: Final = "aggregates"
"""Name of the state variable."""


class AggregateProcessor(ColumnarProcessor):
    """
    Keeps the aggregates of each key.

    Args:
        merge: The aggregates.
        state: Schema of the state.
        event_time: Position of the key that is an event time or a window of it; the state of a key is
            dropped when the watermark has reached it.  None: it is kept for ever.
        is_append: Whether a key's only output is made then; else in each micro-batch that has rows
            of it.
    """

    def __init__(
        self, merge: Merge, state: StructType, event_time: int | None, *, is_append: bool
    ) -> None:
        self._merge = merge
        self._schema = state
        self._event_time = event_time
        self._is_append = is_append

    def init(self, handle: ColumnarHandle) -> None:
        """Ask for one variable with the state of all aggregates."""
        self._state = handle.getColumnState(STATE, self._schema)
        if self._event_time is not None:
            self._timers = handle.timers

    def process(self, keys: Keys, rows: pa.Table, times: TimerValues) -> Tables:
        """Combine partial results with the state; return the results."""
        if rows.num_rows != len(keys):
            raise InvariantError(f"{rows.num_rows} partial results of {len(keys)} keys")
        if self._event_time is not None:
            new = keys.take(~self._state.exists(keys))
            self._timers.register(new, ends_ms(new.columns[self._event_time]))
        state = self._merge.combined(self._state.get(keys), rows)
        self._state.put(keys, state)
        return [] if self._is_append else [self._merge.results(keys.table, state)]

    def expired(self, keys: Keys, expiry_ms: pa.Array, times: TimerValues) -> Tables:
        """Drop the keys that the watermark has reached."""
        state = self._state.get(keys) if self._is_append else None
        self._state.clear(keys)
        return [] if state is None else [self._merge.results(keys.table, state)]


def ends_ms(column: pa.Array) -> npt.NDArray[np.int64]:
    """
    Return the first watermark, in milliseconds, by which each key is over.

    Args:
        column: Event times, or windows, whose end counts.
    """
    at = one_array(column)
    if pa.types.is_struct(at.type):
        at = pc.struct_field(at, "end")
    moments = at.cast(pa.timestamp("us", at.type.tz)).cast(pa.int64()).to_numpy()
    ends: npt.NDArray[np.int64] = -(-moments // 1000)
    return ends
