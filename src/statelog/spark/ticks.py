"""
Idle ticks: a micro-batch at every trigger, also when no data comes.

Under `foreachBatch` Spark runs no micro-batch without new input, so that timers would wait for
the next row.  A tick is a second source beside the user's, which is new at each trigger and whose
rows are filtered away.  It has no watermark, so it takes no part in the watermark's policy, and
with Trigger.AvailableNow it is new once.

Spark counts the sources of a query for life: whether there are ticks is told by its offset log.
Source: Spark's source `rate-micro-batch`.
"""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from statelog.errors import UsageError
from statelog.spark.config import EngineConfig
from statelog.spark.record import BatchRecord
from statelog.spark.source_position import newest_offsets
from statelog.spark.watermark import NOTHING_READ, BatchTimes

IDLE_PAUSE_SECONDS = 0.2
"""Shortest time between two ticks without anything to do, for a query without a trigger."""


_NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def with_ticks(frame: DataFrame) -> DataFrame:
    """Return *frame* with a source beside it that is new at every trigger and gives no rows."""
    source = frame.sparkSession.readStream.format("rate-micro-batch")
    rate = source.option("rowsPerBatch", 1).option("numPartitions", 1).load().where(lit(False))
    nothing = [lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return frame.unionAll(rate.select(*nothing))


def wants_ticks(
    asked: bool | None, time_mode: str, frame: DataFrame, sources: int, checkpoint_location: str
) -> bool:
    """
    Return whether the query runs with idle ticks.

    A query that ran before keeps what it has; a new one has ticks where it may have timers.

    Args:
        asked: What the caller wants; None for no wish.
        time_mode: "none", "processingtime" or "eventtime".
        frame: The input, without ticks.
        sources: Number of its streaming sources.
        checkpoint_location: Where Spark keeps the query's offset log.

    Raises:
        UsageError: The caller wants another thing than the query began with.
    """
    if asked is None and frame.sparkSession.conf.get(_NAMED_SOURCES, "false") == "true":
        return False  # Spark refuses a source without a name, and ours has none
    recorded = _recorded_sources(frame, checkpoint_location)
    if recorded not in (sources, sources + 1):  # a new query, or one that Spark will refuse
        return time_mode != "none" if asked is None else asked
    has_ticks = recorded == sources + 1
    if asked is not None and asked != has_ticks:
        raise UsageError(
            f"idleTicks={asked}, but the query in {checkpoint_location} began "
            f"{'with' if has_ticks else 'without'} idle ticks, and Spark cannot change the sources "
            "of a query. Leave idleTicks out, or go on with a new checkpointLocation, the same "
            "stateLocation and adopt=True"
        )
    return has_ticks


def _recorded_sources(frame: DataFrame, checkpoint_location: str) -> int | None:
    """Return the number of sources in the newest entry of the offset log; None for no entry."""
    session = frame.sparkSession
    jvm: Any = session._jvm
    log = jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog
    folder = f"{checkpoint_location.rstrip('/')}/offsets"
    latest = newest_offsets(log(session._jsparkSession, folder, True), checkpoint_location)
    if not latest.isDefined():
        return None
    entry = latest.get()._2()
    named = entry.getClass().getSimpleName() == "OffsetMap"
    size: int = (entry.offsetsMap() if named else entry.offsets()).size()
    return size


def nothing_due(config: EngineConfig, record: BatchRecord | None, times: BatchTimes) -> bool:
    """
    Return whether a micro-batch can be left out, tasks and all.

    Args:
        config: The query.
        record: Of the checkpoint to go on from; None for the empty state.
        times: Of the micro-batch.
    """
    if not times.is_idle or not config.plan.is_stateless:
        return False
    if record is None:
        return times.position == NOTHING_READ
    if config.time_mode == "none":
        return True
    until = times.watermark_ms if config.time_mode == "eventtime" else times.now_ms
    return record.next_due_ms is not None and record.next_due_ms > until


class Pace:
    """
    Keeps ticks without anything to do apart.

    Args:
        seconds: Shortest time between two of them.
    """

    def __init__(self, seconds: float = IDLE_PAUSE_SECONDS) -> None:
        self._seconds = seconds
        self._last = float("-inf")

    def keep(self) -> bool:
        """
        Wait as long as the last idle tick is too near; not at all with slower triggers.

        Returns:
            Whether it waited.

        Blocks: For less than the time between two ticks.
        """
        rest = self._last + self._seconds - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        self._last = time.monotonic()
        return rest > 0
