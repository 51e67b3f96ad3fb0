"""What Spark's own progress and listeners have of our figures."""

import json
import threading
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql.functions import col, count, lit
from pyspark.sql.functions import max as max_of
from pyspark.sql.functions import sum as total_of
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.event_times import at, event_job
from tests.support.spark.processors import TOTALS, Totals
from tests.support.spark.streams import TIMEOUT_SECONDS

from statelog.errors import UsageError
from statelog.spark import transform_with_state
from statelog.spark.query.progress import BatchProgress, source_metrics

NO_VARIABLES = [
    "numDeletedStateVars",
    *(f"num{kind}State{ttl}Vars" for kind in ("Value", "List", "Map") for ttl in ("", "WithTTL")),
]


class Rows(StatefulProcessor):
    """Counts the rows of a key in one micro-batch."""

    def init(self, handle):
        self.seen = handle.getValueState("seen", "rows bigint")

    def handleInputRows(self, key, rows, timerValues):
        count = sum(1 for _ in rows)
        self.seen.update((count,))
        yield Row(key=key[0], rows=count)


class Progresses(StreamingQueryListener):
    """Keeps the progress of each micro-batch that Spark reports, of all queries of the session."""

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._ended: set[str] = set()
        self._changed = threading.Condition()

    def of(self, query: Any) -> list[Any]:
        """Wait for the end of a query, and return its progress."""
        with self._changed:
            ended = self._changed.wait_for(lambda: query.runId in self._ended, TIMEOUT_SECONDS)
        assert ended, "no event says that the query has ended"
        return [progress for progress in self._seen if str(progress.runId) == query.runId]

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self._seen.append(event.progress)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        with self._changed:
            self._ended.add(str(event.runId))
            self._changed.notify_all()


@pytest.fixture
def listener(spark):
    heard = Progresses()
    spark.streams.addListener(heard)
    yield heard
    spark.streams.removeListener(heard)


@pytest.fixture
def job(job):
    """A job with two micro-batches."""
    job.source.add_all([[(1, 1), (2, 2), (2, 3)], [(1, 1)]])
    return job


def figures(progress: Any) -> dict[str, str]:
    """Return the metrics of statelog's source, which is the last one."""
    last = progress["sources"][-1]
    assert "statelog" in last["description"]
    return dict(last["metrics"])


@pytest.mark.parametrize("time_mode", ["ProcessingTime", "None"])
def test_progress_has_each_batchs_figures(job, listener, time_mode):
    query = job.run(timeMode=time_mode, noDataBatches=True)
    ours = [source_metrics(progress) for progress in job.progress]
    assert [("0", "3", "2"), ("1", "1", "1")] == [
        (batch["batchId"], batch["rows"], batch["keys"]) for batch in ours
    ]
    assert ("2", "false", "1") == (ours[1]["stateEntries"], ours[1]["replayed"], ours[1]["objects"])
    assert {"planMs", "runMs", "commitMs", "deliverMs", "cleanUpMs", "totalMs"} <= ours[0].keys()
    recent = [progress for progress in query.recentProgress if figures(progress)]
    assert ours == [figures(progress) for progress in recent]
    assert [0, 1] == [progress["batchId"] for progress in recent]
    assert operators_of(job.progress) == [progress["stateOperators"] for progress in recent]
    heard = [dict(progress.sources[-1].metrics) for progress in listener.of(query)]
    assert ours == [metrics for metrics in heard if metrics]


def operators_of(batches: list[BatchProgress]) -> list[list[dict[str, Any]]]:
    """Return what `stateOperators` has for micro-batches of `Totals`."""
    return [
        [
            {
                "operatorName": "transform_with_state",
                "numRowsTotal": batch.state_entries,
                "numRowsUpdated": batch.keys,
                "numRowsRemoved": 0,
                "allUpdatesTimeMs": round(batch.milliseconds["run"]),
                "allRemovalsTimeMs": 0,
                "commitTimeMs": round(batch.milliseconds["commit"]),
                "memoryUsedBytes": 0,
                "numRowsDroppedByWatermark": batch.late_rows,
                "numShufflePartitions": batch.tasks,
                "numStateStoreInstances": batch.tasks,
                "customMetrics": {
                    name: int(figure)
                    for name, figure in source_metrics(batch).items()
                    if name != "replayed"
                }
                | dict.fromkeys(NO_VARIABLES, 0)
                | {"numValueStateVars": 1},
            }
        ]
        for batch in batches
    ]


def test_a_query_without_the_source_has_its_own_progress(job, listener):
    query = job.run()
    assert [(3, 2), (1, 1)] == [(batch.rows, batch.keys) for batch in job.progress]
    recent = query.recentProgress
    assert [1, 1] == [len(progress["sources"]) for progress in recent]
    assert operators_of(job.progress) == [progress["stateOperators"] for progress in recent]
    last = query.lastProgress
    assert last == recent[-1]
    assert last is not None
    assert last.stateOperators[0].customMetrics["rows"] == 1
    assert json.loads(last.json)["stateOperators"] == last["stateOperators"]
    assert [[], []] == [
        progress.stateOperators for progress in listener.of(query)
    ]  # made by Spark alone


def test_a_batch_that_is_skipped_repeats_no_figures(spark, tmp_path):
    job = event_job(spark, tmp_path)
    job.source.add([(1, at(1000))])
    query = job.run(processor=Rows(), output="key bigint, rows bigint")
    reported = [figures(progress) for progress in query.recentProgress]
    expected = [source_metrics(report) for report in job.progress]
    assert expected == [metrics for metrics in reported if metrics]
    assert [True, False] == [
        bool(metrics) for metrics in reported
    ]  # the watermark moved, no timer was due


def test_a_redelivered_batch_is_marked(job):
    def fail_once(frame: Any, batch_id: int) -> None:
        if batch_id == 1:
            raise OSError("the sink failed")

    with pytest.raises(Exception, match="the sink failed"):
        job.run(fail_once, timeMode="ProcessingTime")
    job.progress.clear()
    query = job.run(timeMode="ProcessingTime")
    again = next(filter(None, map(figures, query.recentProgress)))
    assert ("1", "true", "1") == (again["batchId"], again["replayed"], again["outputRows"])


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_an_observation_on_the_input_counts_each_row_once(job, delivery):
    observed = job.source.frame().observe("seen", count(lit(1)).alias("rows"))
    job.source.frame = lambda: observed  # type: ignore[method-assign]
    query = job.run(delivery=delivery, tasks=2)
    assert [3, 1] == [
        progress["observedMetrics"]["seen"]["rows"] for progress in query.recentProgress
    ]


def observed(grouped: Any, processor: Any, output: str, **settings: Any) -> DataFrame:
    """Two operators, with an observation between them and two behind the second."""
    first = transform_with_state(grouped, processor, output, **settings)
    between = first.observe("between", count(lit(1)).alias("n"))
    amounts = between.select("key", first.total.alias("amount"))
    out = transform_with_state(amounts.groupBy("key"), Totals(), TOTALS)
    seen = out.observe("seen", count(lit(1)).alias("n"), total_of(out.total).alias("sum"))
    return seen.where(out.total > 4).observe("large", max_of("key").alias("key"))


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_an_observation_after_an_operator_has_each_batch(job, delivery):
    job.source.add([(1, 4)])

    def sink(frame: DataFrame, batch_id: int) -> None:
        for _ in range(2 if batch_id < 2 else 0):  # the second action changes no value
            job.collect(frame, batch_id)

    query = job.run(sink, transform=observed, delivery=delivery, tasks=2)
    metrics = [progress["observedMetrics"] for progress in query.recentProgress]
    assert [2, 1, 1] == [metric["between"].n for metric in metrics]
    assert [(2, 6), (1, 3)] == [(metric["seen"].n, metric["seen"]["sum"]) for metric in metrics[:2]]
    assert [2, None] == [metric["large"].key for metric in metrics[:2]]
    assert {"between"} == set(metrics[2])  # no action read the rows behind the second operator


def test_an_observation_behind_the_operator_has_a_name(job):
    stream = transform_with_state(job.source.frame().groupBy("key"), Totals(), TOTALS)
    with pytest.raises(UsageError, match=r"requires a name.*observedMetrics"):
        stream.observe(Observation("seen"), count(lit(1)).alias("n"))  # type: ignore[arg-type]
    with pytest.raises(AnalysisException):
        stream.observe("seen", col("no_such_column"))
