"""Empty batches, odd sinks, replays, and everything else at the edge of a micro-batch."""

import random
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col
from tests.support.spark.processors import TOTALS, Totals, totals_of
from tests.support.spark.streams import Job, in_order

from statelog.spark import transform_with_state

BOTH = pytest.mark.parametrize("delivery", ["staged", "direct"])


def some_rows(seed: int, keys: int = 5) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(rng.randrange(keys), rng.randrange(-9, 9)) for _ in range(20)]


def fill(job: Job, *batches: list[tuple[int, int]]) -> list[Any]:
    """Add the first batches of the input and return the output that is due for them."""
    job.source.add_all(batches)
    return totals_of(batches)


@BOTH
def test_an_empty_micro_batch_changes_nothing(job, delivery):
    expected = fill(job, [], some_rows(1), [], some_rows(2))
    job.run(delivery=delivery, tasks=2)
    assert expected == job.take_in_order()
    assert [0, 20, 0, 20] == [progress.rows for progress in job.progress]
    empty = job.progress[2]
    assert (0, 0, 0) == (empty.keys, empty.delta_bytes, empty.output_rows)


@BOTH
def test_tasks_without_keys_do_no_harm(job, delivery):
    expected = fill(job, [(1, 1)], [(2, 5)], some_rows(3, keys=3))
    job.run(delivery=delivery, tasks=7)
    assert expected == job.take_in_order()
    assert [1, 1, 3] == [progress.keys for progress in job.progress]


class Sink:
    """Treats a frame as *how* says, and then collects it or not."""

    def __init__(self, job: Job, how: str) -> None:
        self.job = job
        self.how = how

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if self.how == "twice":
            assert frame.count() == len(frame.collect())
            self.job.collect(frame, batch_id)
        elif self.how == "first row":
            frame.limit(1).collect()
        elif self.how == "half":
            frame.filter("key % 2 = 0").collect()


@pytest.mark.parametrize(
    ("delivery", "how"),
    [("staged", "first row")]
    + [("direct", how) for how in ("twice", "not at all", "first row", "half")],
)
def test_state_counts_rows_once_for_any_sink(job, delivery, how):
    expected = fill(job, some_rows(4), some_rows(5))
    job.run(Sink(job, how), delivery=delivery, tasks=2)
    if how == "twice":
        assert expected == job.take_in_order()
    job.source.add(some_rows(6))
    expected = totals_of([some_rows(4), some_rows(5), some_rows(6)])[2:]
    job.run(delivery=delivery, tasks=3)
    assert expected == job.take_in_order()


class Failing:
    """A sink that takes the rows and then raises, at one batch."""

    def __init__(self, job: Job, at: int) -> None:
        self.job = job
        self.at = at

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.job.collect(frame, batch_id)
        if batch_id == self.at:
            raise OSError("the sink is full")


@pytest.mark.parametrize("at", [0, 1])
def test_a_failed_sink_gets_the_same_rows_and_state_counts_once(job, at):
    expected = fill(job, some_rows(7), some_rows(8), some_rows(9))
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        job.run(Failing(job, at), **{"stream.data-inline-threshold": 64 if at else 1024 * 1024})
    first = job.delivered[at]
    job.delivered = job.delivered[:at]
    job.run(tasks=3)
    assert (at, expected[at]) == (first[0], in_order(first[1]))
    assert first == job.delivered[at]
    assert [0, 1, 2] == [batch_id for batch_id, _ in job.delivered]
    assert expected == job.take_in_order()
    assert [at] == [progress.batch_id for progress in job.progress if progress.replayed]


def test_a_direct_sink_that_failed_sees_the_batch_again_and_state_counts_once(job):
    expected = fill(job, some_rows(10), some_rows(11))
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        job.run(Failing(job, 1), delivery="direct")
    job.run(delivery="direct", tasks=3)
    assert [0, 1, 1] == [batch_id for batch_id, _ in job.delivered]
    assert [expected[0], expected[1], expected[1]] == job.take_in_order()


def test_keys_may_be_computed_and_have_other_names(job):
    batches = [some_rows(12, keys=50), some_rows(13, keys=50)]
    job.source.add_all(batches)
    expected = totals_of([(key % 3, amount) for key, amount in rows] for rows in batches)
    job.run(keys=[(col("key") % 3).alias("rest")])
    assert expected == job.take_in_order()


def test_a_field_of_a_struct_is_no_column_of_its_name(spark):
    rows = [((1,), 10, 5), ((1,), 20, 7), ((2,), 10, 1)]
    frame = spark.createDataFrame(rows, "key struct<id: bigint>, id bigint, amount bigint")
    expected = [(1, 12, 2), (2, 1, 1)]
    for grouped in (frame.groupBy("key.id"), frame.alias("f").groupBy("f.key.id")):
        totals = transform_with_state(grouped, Totals(), TOTALS, tasks=1)
        assert expected == in_order(totals.collect())
    by_column = transform_with_state(frame.alias("f").groupBy("f.id"), Totals(), TOTALS, tasks=1)
    assert [(10, 6, 2), (20, 7, 1)] == in_order(by_column.collect())
