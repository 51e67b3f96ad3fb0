"""
Decide which queries need no-data batches, when one is due, and which batches to skip.

Under `foreachBatch` Spark runs no micro-batch without new input, so that timers would wait for the
next row.  Therefore a query that can have timers gets one more source besides the user's, see
`jvm/no_data_source`.  It has no watermark, so it does not change the query's watermark.

The number of sources of a query never changes, and its offset log records it.  Queries of older
versions have the source `rate-micro-batch` in the same position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.query_files import QueryFiles, newest_offsets
from statelog.core.source_position import NOTHING_READ
from statelog.errors import UsageError
from statelog.runtime.clock import wall_clock_ms
from statelog.spark.driver.batch_times import BatchTimes
from statelog.spark.jvm.queries import RunningQuery
from statelog.spark.query.progress import source_metrics
from statelog.spark.query.query import OperatorDefinition, time_mode_of

if TYPE_CHECKING:
    from statelog.spark.driver.engine import MicroBatchEngine

_ENABLED = "spark.sql.streaming.noDataMicroBatches.enabled"
_NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def has_no_data_source(
    setting: bool | None, operators: Sequence[OperatorDefinition], files: QueryFiles
) -> bool:
    """
    Return whether the query needs a source for no-data batches.

    A query that ran before stays as it is; a new one has the source where it may have timers.
    """
    frame = operators[0].frame
    sources = operators[0].plan.sources
    if setting is None and frame.sparkSession.conf.get(_NAMED_SOURCES, "false") == "true":
        return False  # Spark rejects a source without a name, which this one is
    # Spark fixes the sources of a query at its first start: the offset log tells what was chosen.
    newest = newest_offsets(files)
    recorded = None if newest is None else newest.sources
    if recorded not in (sources, sources + 1):  # a new query, or one that Spark will reject
        return time_mode_of(operators) != "none" if setting is None else setting
    has_source = recorded == sources + 1
    if setting is not None and setting != has_source:
        raise UsageError(
            f"noDataBatches={setting}, but the query in {files.url} started "
            f"{'with' if has_source else 'without'} them. Spark cannot change the sources of a "
            "query: remove noDataBatches, or continue with a new checkpointLocation, the same "
            "stateLocation and adopt=True"
        )
    return has_source


def can_skip_batch(
    operators: Sequence[OperatorDefinition], record: BatchRecord | None, times: BatchTimes
) -> bool:
    """Return whether a micro-batch requires neither a Spark job nor a commit."""
    if not times.is_idle or not all(operator.plan.is_stateless for operator in operators):
        return False
    # Before the first commit a no-data batch matters only if it begins with state to write.
    if record is None:
        return times.position == NOTHING_READ
    return not any(
        has_due_timer(operator, stored.next_due_ms, times)
        for operator, stored in zip(operators, record.operators, strict=True)
    )


def has_due_timer(operator: OperatorDefinition, next_due_ms: int | None, times: BatchTimes) -> bool:
    """Return whether one of an operator's timers may be due in a micro-batch."""
    if operator.time_mode == "none":
        return False
    until = times.watermark_ms if operator.time_mode == "eventtime" else times.now_ms
    return next_due_ms is None or next_due_ms <= until


class NoDataDecision:
    """Decides at each trigger whether a no-data batch is due."""

    def __init__(self, time_mode: str, watermark_ms: int, *, run_ends: bool = False) -> None:
        self._time_mode = time_mode
        self._watermark_ms = watermark_ms
        self._run_ends = run_ends

    def handle(
        self,
        *,
        now_ms: int,
        watermark_ms: int,
        next_due_ms: int | None,
        is_first: bool = True,
    ) -> bool:
        """
        Return whether this trigger's micro-batch is due even without data.

        In event time it is due as on Spark, once for each advance of the watermark: this batch's
        watermark decides which rows of the next one are late, whether or not a timer fires.
        In processing time a run with Trigger.AvailableNow has one at its beginning only: a timer
        that registers itself repeatedly would keep the run from ending, as on Spark.
        """
        if self._time_mode == "eventtime":
            has_advanced = watermark_ms > self._watermark_ms
            self._watermark_ms = max(self._watermark_ms, watermark_ms)
            return has_advanced
        if self._time_mode == "processingtime":
            if self._run_ends and not is_first:
                return False
            return next_due_ms is None or next_due_ms <= now_ms
        return False


class QueryTriggers:
    """
    Decides at each trigger of a query whether a no-data batch is due.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self, session: SparkSession, time_mode: str, timers: MicroBatchEngine, query: RunningQuery
    ) -> None:
        self._time_mode = time_mode
        self._timers = timers
        self._query = query
        self._is_enabled = (session.conf.get(_ENABLED, "true") or "").strip().lower() == "true"
        self._decision: NoDataDecision | None = None

    def is_due(self, *, run_ends: bool) -> bool:
        """See `NoDataTriggers.is_due`; the first call sets *run_ends*."""
        if not self._is_enabled:
            return False
        has_event_time = self._time_mode == "eventtime"
        if self._decision is None:
            last_ms = self._query.last_watermark_ms() if has_event_time else -1
            self._decision = NoDataDecision(self._time_mode, last_ms, run_ends=run_ends)
        return self._decision.handle(
            now_ms=wall_clock_ms(),
            watermark_ms=self._query.watermark_ms() if has_event_time else -1,
            next_due_ms=self._timers.next_due_ms(),
            is_first=not self._timers.has_run(),
        )

    def figures(self) -> Mapping[str, str]:
        """See `NoDataTriggers.figures`."""
        progress = self._timers.progress()
        return {} if progress is None else source_metrics(progress)

    def stopped(self) -> None:
        """Drop the reference to the query."""
        self._query.forget()
