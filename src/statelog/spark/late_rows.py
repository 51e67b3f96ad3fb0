"""
Rows that come later than the watermark: dropped before the shuffle, and counted there.

The count is taken by Spark's `observe` inside the job that runs the tasks, so it costs no job.
Source: Spark's WatermarkSupport; the count is its `numRowsDroppedByWatermark`, Flink's
`numLateRecordsDropped`.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import col, count_if, lit, timestamp_millis
from pyspark.sql.types import StructType

_WAITS: Final = 20
"""How often to wait for Spark's listener, 100 ms each; it usually has run before."""


class LateRows:
    """
    A micro-batch without its late rows, and their number.

    Args:
        frame: The input.
        column: Event time; of a window its end counts.
        late_ms: Rows whose event time is at or before it are late; those without one are not.
    """

    def __init__(self, frame: DataFrame, column: str, late_ms: int) -> None:
        time = col(f"`{column.replace('`', '``')}`")
        if isinstance(frame.schema[column].dataType, StructType):
            time = time["end"]
        limit = timestamp_millis(lit(late_ms))
        self._seen = Observation()
        observed = frame.observe(self._seen, count_if(time <= limit).alias("late"))
        self.frame = observed.where(time.isNull() | (time > limit))

    def count(self) -> int:
        """
        Return how many rows were late; call it when the rows have been evaluated.

        Blocks: For at most two seconds, until Spark's listener has the number.
        """
        observation: Any = self._seen._jo
        for _ in range(_WAITS):
            found = observation.getOrEmpty()
            if found.contains("late"):
                return int(found.apply("late"))
        return 0
