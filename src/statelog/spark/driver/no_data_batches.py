"""
Micro-batches without data: which queries have them, and which of them do nothing.

Under `foreachBatch` Spark runs no micro-batch without new input, so that timers would wait for
the next row.  Therefore a query that can have timers gets a source of its own beside the user's,
see `NoDataStream`.  It has no watermark, so it takes no part in the watermark's policy.

Spark counts the sources of a query for life: whether there is such a source is told by its offset
log.  Queries of older versions have the source `rate-micro-batch` in the same place.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.source_position import NOTHING_READ
from statelog.errors import UsageError
from statelog.spark.driver.batch_times import BatchTimes
from statelog.spark.driver.source_position import newest_offsets
from statelog.spark.query.operator_definition import OperatorDefinition

_NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def has_no_data_source(
    asked: bool | None, definition: OperatorDefinition, checkpoint_location: str
) -> bool:
    """
    Return whether the query has a source for micro-batches without data.

    A query that ran before keeps what it has; a new one has it where it may have timers.

    Args:
        asked: What the caller wants; None for no wish.
        definition: The operator; its input is without this source.
        checkpoint_location: Where Spark keeps the query's offset log.

    Raises:
        UsageError: The caller wants another thing than the query began with.
    """
    frame, sources = definition.frame, definition.plan.sources
    if asked is None and frame.sparkSession.conf.get(_NAMED_SOURCES, "false") == "true":
        return False  # Spark refuses a source without a name, and ours has none
    recorded = _recorded_sources(frame, checkpoint_location)
    if recorded not in (sources, sources + 1):  # a new query, or one that Spark will refuse
        return definition.time_mode != "none" if asked is None else asked
    has_source = recorded == sources + 1
    if asked is not None and asked != has_source:
        raise UsageError(
            f"noDataBatches={asked}, but the query in {checkpoint_location} began "
            f"{'with' if has_source else 'without'} them, and Spark cannot change the sources of a "
            "query. Leave noDataBatches out, or go on with a new checkpointLocation, the same "
            "stateLocation and adopt=True"
        )
    return has_source


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


def can_skip_batch(
    definition: OperatorDefinition, record: BatchRecord | None, times: BatchTimes
) -> bool:
    """
    Return whether a micro-batch can be left out, tasks and all.

    Args:
        definition: The operator.
        record: Of the checkpoint to go on from; None for the empty state.
        times: Of the micro-batch.
    """
    if not times.is_idle or not definition.plan.is_stateless:
        return False
    if record is None:
        return times.position == NOTHING_READ
    if definition.time_mode == "none":
        return True
    until = times.watermark_ms if definition.time_mode == "eventtime" else times.now_ms
    return record.next_due_ms is not None and record.next_due_ms > until
