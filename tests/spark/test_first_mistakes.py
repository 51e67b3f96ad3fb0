"""Mistakes of the first day that only a query on Spark shows: each error says what to type."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from tests.spark import processors
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, Job, workers_get_by_value

import statelog as sl

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    job = Job(BatchSource(spark, tmp_path / "in", INPUT), tmp_path, ["key"], Totals(), TOTALS)
    job.source.add([(1, 1), (2, 2)])
    return job


class Mistaken(Totals):
    """Does to its state or its handle what a test says."""

    def __init__(self, mistake: Callable[["Mistaken"], object]) -> None:
        super().__init__()
        self.mistake = mistake

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.mistake(self)
        yield Row(key=key[0], total=1, rows=1)


MISTAKES: dict[str, tuple[Callable[[Mistaken], object], str]] = {
    "state that is no tuple": (
        lambda processor: processor.total.update(3),
        r"state 'total': takes a tuple of \(total, rows\), not int 3",
    ),
    "state outside of init": (
        lambda processor: processor.handle.getValueState("total", "n bigint"),
        r"state 'total': state variables can be created only in init\(\): move the call there",
    ),
    "timer without a time mode": (
        lambda processor: processor.handle.registerTimer(1),
        r'but this query uses None: pass timeMode="ProcessingTime" to transform_with_state',
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_error_of_a_processor_says_what_to_type(job: Job, name: str) -> None:
    mistake, sentence = MISTAKES[name]
    with pytest.raises(Exception, match=sentence):
        job.run(processor=Mistaken(mistake))


def test_the_error_of_an_argument_says_what_to_type(job: Job) -> None:
    job.output = "key bigint, total lnog"
    with pytest.raises(Exception, match=r"is not a schema: .*LNOG.* such as .customer string, "):
        job.start()
    job.output = TOTALS
    with pytest.raises(
        Exception, match=r"'s3:/bucket/job' does not contain a bucket; use s3://bucket/"
    ):
        job.start(stateLocation="s3:/bucket/job")


def test_closed_state_says_to_open_it_again(job: Job) -> None:
    job.run()
    with sl.open(job.state) as state:
        pass
    with pytest.raises(Exception, match=r"the state of .* is closed; open it again"):
        state.get("total", 1)
