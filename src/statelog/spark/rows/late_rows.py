"""
Rows that come later than the watermark: dropped in the task before the processor, and counted.

Not by Spark, before the shuffle: there the watermark would be part of the plan, which Spark would
analyse and compile anew for each micro-batch, and a count would take another operator in it.
Source: Spark's WatermarkSupport; the count is its `numRowsDroppedByWatermark`, Flink's
`numLateRecordsDropped`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class LateRows:
    """
    Which rows of a micro-batch are late.

    Args:
        position: The column of a task's input that holds the event time; of a window its end counts.
        late_ms: Rows whose event time is at or before it are late; those without one are not.
    """

    position: int
    late_ms: int

    def left_out(
        self, batches: Iterable[pa.RecordBatch], seen: LateCount
    ) -> Iterator[pa.RecordBatch]:
        """Yield *batches* without the late rows, which are counted in *seen*."""
        for batch in batches:
            at = batch.column(self.position)
            if pa.types.is_struct(at.type):
                at = pc.struct_field(at, "end")
            moments = at.cast(pa.timestamp("us", tz=at.type.tz)).cast(pa.int64())
            in_time = pc.fill_null(pc.greater(moments, self.late_ms * 1000), True)
            late = batch.num_rows - in_time.true_count
            seen.rows += late
            yield batch.filter(in_time) if late else batch


@dataclass(slots=True)
class LateCount:
    """
    The late rows of one task.

    Args:
        rows: How many there were so far.
    """

    rows: int = 0
