"""
Drop rows that are later than the watermark, and count them.

Tasks do it, before the processor.  A filter of Spark's before the shuffle would have the watermark in
its plan, which Spark would analyse and compile again for each micro-batch, and a count would need
one more operator.
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
    The rule for late rows of a micro-batch.

    Args:
        position: Position of the event time in a task's input; of a window the end counts.
        late_ms: Rows with an event time up to this are late; rows without one are not.
    """

    position: int
    late_ms: int

    def without_late(
        self, batches: Iterable[pa.RecordBatch], seen: LateCount
    ) -> Iterator[pa.RecordBatch]:
        """Yield *batches* without the late rows, and count these in *seen*."""
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
        rows: Their number so far.
    """

    rows: int = 0
