"""What Spark's own progress and listeners have of our figures."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql.functions import count, lit
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.spark import processors
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import TIMEOUT_SECONDS, BatchSource, Job, wait, workers_get_by_value
from tests.spark.test_time import SCHEMA, EventTimes, at

from statelog.spark.driver.progress import source_metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

workers_get_by_value(processors.__name__)
workers_get_by_value(__name__)


class Rows(StatefulProcessor):
    """Counts the rows of a key in one micro-batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("seen", "rows bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
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
        return [one for one in self._seen if str(one.runId) == query.runId]

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
def listener(spark: "SparkSession") -> Iterator[Progresses]:
    heard = Progresses()
    spark.streams.addListener(heard)
    yield heard
    spark.streams.removeListener(heard)


@pytest.fixture
def job(spark: "SparkSession", tmp_path: Path) -> Job:
    job = Job(BatchSource(spark, tmp_path / "in", INPUT), tmp_path, ["key"], Totals(), TOTALS)
    job.source.add([(1, 1), (2, 2), (2, 3)])
    job.source.add([(1, 1)])
    return job


def figures(progress: Any) -> dict[str, str]:
    """Return the metrics of statelog's source, which is the last one."""
    last = progress["sources"][-1]
    assert "statelog" in last["description"]
    return dict(last["metrics"])


@pytest.mark.parametrize("time_mode", ["ProcessingTime", "None"])
def test_the_progress_of_a_query_has_the_figures_of_each_batch(
    job: Job, listener: Progresses, time_mode: str
) -> None:
    query = job.start(timeMode=time_mode, noDataBatches=True)
    wait(query)
    ours = [source_metrics(progress) for progress in job.progress]
    assert [("0", "3", "2"), ("1", "1", "1")] == [
        (one["batchId"], one["rows"], one["keys"]) for one in ours
    ]
    assert ("2", "false", "1") == (ours[1]["stateEntries"], ours[1]["replayed"], ours[1]["objects"])
    assert {"planMs", "runMs", "commitMs", "deliverMs", "cleanUpMs", "totalMs"} <= ours[0].keys()
    recent = [one for one in query.recentProgress if figures(one)]
    assert ours == [figures(one) for one in recent]
    assert [0, 1] == [one["batchId"] for one in recent]
    assert [[], []] == [one["stateOperators"] for one in recent]
    heard = [dict(one.sources[-1].metrics) for one in listener.of(query)]
    assert ours == [one for one in heard if one]


def test_a_query_without_the_source_has_them_in_on_progress_only(job: Job) -> None:
    query = job.start()
    wait(query)
    assert 2 == len(job.progress)
    assert [1, 1] == [len(one["sources"]) for one in query.recentProgress]


def test_a_batch_that_is_skipped_repeats_no_figures(spark: "SparkSession", tmp_path: Path) -> None:
    source = EventTimes(spark, tmp_path / "in", SCHEMA)
    source.add([(1, at(1000))])
    options = {"timeMode": "EventTime"}
    job = Job(source, tmp_path, ["key"], Rows(), "key bigint, rows bigint", options)
    query = job.start()
    wait(query)
    found = [figures(one) for one in query.recentProgress]
    assert [source_metrics(one) for one in job.progress] == [one for one in found if one]
    assert [True, False] == [bool(one) for one in found]  # the watermark moved, no timer was due


def test_a_batch_that_is_delivered_again_says_so(job: Job) -> None:
    def fail_once(frame: Any, batch_id: int) -> None:
        if batch_id == 1:
            raise OSError("the sink failed")

    with pytest.raises(Exception, match="the sink failed"):
        job.run(fail_once, timeMode="ProcessingTime")
    job.progress.clear()
    query = job.start(timeMode="ProcessingTime")
    wait(query)
    again = next(figures(one) for one in query.recentProgress if figures(one))
    assert ("1", "true", "1") == (again["batchId"], again["replayed"], again["outputRows"])


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_an_observation_on_the_input_counts_each_row_once(job: Job, delivery: str) -> None:
    observed = job.source.frame().observe("seen", count(lit(1)).alias("rows"))
    job.source.frame = lambda: observed  # type: ignore[method-assign]
    query = job.start(delivery=delivery, tasks=2)
    wait(query)
    assert [3, 1] == [one["observedMetrics"]["seen"]["rows"] for one in query.recentProgress]
