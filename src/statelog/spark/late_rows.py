"""
Rows that come later than the watermark: dropped before the shuffle, and counted there.

The count is taken by Spark's `observe` inside the job that runs the tasks, so it costs no job.
Source: Spark's WatermarkSupport; the count is its `numRowsDroppedByWatermark`, Flink's
`numLateRecordsDropped`.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import coalesce, col, count_if, lit, timestamp_millis
from pyspark.sql.types import StructType

_log = logging.getLogger("statelog.spark")

_WAIT_SECONDS: Final = 2.0
"""How long to wait for Spark's listener, which usually has the number before it is asked for."""

_POLL_SECONDS: Final = 0.005
_FLAG: Final = "__late"


class LateRows:
    """
    A micro-batch without its late rows, and their number.

    Args:
        frame: The input.
        column: Event time; of a window its end counts.
        late_ms: Rows whose event time is at or before it are late; those without one are not.
    """

    def __init__(self, frame: DataFrame, column: str, late_ms: int) -> None:
        at = col(f"`{column.replace('`', '``')}`")
        if isinstance(frame.schema[column].dataType, StructType):
            at = at["end"]
        # The watermark stands in one expression only: each expression that holds a constant is
        # compiled anew when the constant changes, which is in each micro-batch.
        is_late = coalesce(at <= timestamp_millis(lit(late_ms)), lit(False))
        self._seen = Observation()
        flagged = frame.withColumn(_FLAG, is_late)
        observed = flagged.observe(self._seen, count_if(col(_FLAG)).alias("late"))
        self.frame = observed.where(~col(_FLAG)).drop(_FLAG)

    def count(self) -> int:
        """
        Return how many rows were late; call it when the rows have been evaluated.

        Blocks: For at most two seconds, until Spark's listener has the number.
        """
        observation: Any = self._seen._jo
        until = time.monotonic() + _WAIT_SECONDS
        while not observation.future().isCompleted():
            if time.monotonic() > until:
                _log.warning("Spark did not say how many rows were late; they are counted as 0")
                return 0
            time.sleep(_POLL_SECONDS)
        return int(observation.getRow().getLong(0))
