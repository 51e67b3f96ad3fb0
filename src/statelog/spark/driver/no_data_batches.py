"""
Decide which queries have no-data batches, and which batches to skip.

Under `foreachBatch` Spark runs no micro-batch without new input, so that timers would wait for the
next row.  Therefore a query that can have timers gets one more source beside the user's, see
`NoDataStream`.  It has no watermark, so it does not change the query's watermark.

The number of sources of a query never changes, and its offset log records it.  Queries of older
versions have the source `rate-micro-batch` in the same position.
"""

from __future__ import annotations

from collections.abc import Sequence

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.offset_log import newest_offsets
from statelog.checkpoint.source_logs import QueryFiles
from statelog.core.source_position import NOTHING_READ
from statelog.errors import UsageError
from statelog.spark.driver.batch_times import BatchTimes
from statelog.spark.query.operator_definition import OperatorDefinition
from statelog.spark.query.query import time_mode_of

_NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def has_no_data_source(
    asked: bool | None, operators: Sequence[OperatorDefinition], files: QueryFiles
) -> bool:
    """
    Return whether the query has a source for no-data batches.

    A query that ran before stays as it is; a new one has the source where it may have timers.

    Args:
        asked: The setting `noDataBatches`; None if it is not set.
        operators: The operators of the query; the input of the first is without this source.
        files: The query's checkpointLocation.

    Raises:
        CheckpointError: The newest entry of the query's offset log is damaged (`reason` "damaged").
        UsageError: The setting contradicts how the query began.

    Blocks: On the files.
    """
    frame, sources = operators[0].frame, operators[0].plan.sources
    if asked is None and frame.sparkSession.conf.get(_NAMED_SOURCES, "false") == "true":
        return False  # Spark rejects a source without a name, which this one is
    newest = newest_offsets(files)
    recorded = None if newest is None else newest.sources
    if recorded not in (sources, sources + 1):  # a new query, or one that Spark will reject
        return time_mode_of(operators) != "none" if asked is None else asked
    has_source = recorded == sources + 1
    if asked is not None and asked != has_source:
        raise UsageError(
            f"noDataBatches={asked}, but the query in {files.url} began "
            f"{'with' if has_source else 'without'} them, and Spark cannot change the sources of a "
            "query. Remove noDataBatches, or continue with a new checkpointLocation, the same "
            "stateLocation and adopt=True"
        )
    return has_source


def can_skip_batch(
    operators: Sequence[OperatorDefinition], record: BatchRecord | None, times: BatchTimes
) -> bool:
    """
    Return whether a micro-batch needs no Spark job and no commit.

    Args:
        operators: The operators of the query.
        record: The record of the base checkpoint; None for the empty state.
        times: The times of the micro-batch.
    """
    if not times.is_idle or not all(one.plan.is_stateless for one in operators):
        return False
    if record is None:
        return times.position == NOTHING_READ
    return not any(
        has_due_timer(operator, stored.next_due_ms, times)
        for operator, stored in zip(operators, record.operators, strict=True)
    )


def has_due_timer(operator: OperatorDefinition, next_due_ms: int | None, times: BatchTimes) -> bool:
    """
    Return whether a timer of an operator may be due in a micro-batch.

    Args:
        operator: The operator.
        next_due_ms: When its next timer is due; None if unknown.
        times: The times of the micro-batch.
    """
    if operator.time_mode == "none":
        return False
    until = times.watermark_ms if operator.time_mode == "eventtime" else times.now_ms
    return next_due_ms is None or next_due_ms <= until
