"""Check that output rows are not older than the watermark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import ProcessorError


def check_event_times(batch: pa.RecordBatch, column: str, watermark_ms: int, batch_id: int) -> None:
    """
    Check that no output row is older than the watermark.

    Raises:
        ProcessorError: A row is older.
    """
    times = batch.column(column).cast(pa.timestamp("us", tz="UTC"))
    oldest = pc.min(times.cast(pa.int64())).as_py()
    if oldest is not None and oldest < watermark_ms * 1000:
        raise ProcessorError(
            f"the output of batch {batch_id}: {column} = {pc.min(times).as_py()} is older than the "
            f"watermark, {watermark_ms} ms since 1970. With eventTimeColumnName a processor must not "
            "yield such rows. Nothing of this batch was committed; the last checkpoint is valid",
            batch_id=batch_id,
        )
