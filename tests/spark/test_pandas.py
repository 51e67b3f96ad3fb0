"""The pandas flavour and initial state against Spark's own, over restarts and a crash."""

import pytest
from pyspark.sql import DataFrame, Row
from tests.support.spark.pandas_processors import (
    BATCHES,
    INITIAL,
    INITIAL_ROWS,
    INPUT,
    OPENINGS,
    OUTPUT,
    ROW_OUTPUT,
    Describing,
    Opening,
)
from tests.support.spark.streams import BatchSource, Job, configured, run_on_spark
from tests.support.spark.versions import needs

from statelog.errors import UsageError
from statelog.spark import transform_with_state, transform_with_state_in_pandas


@needs((4, 2), "frames that are cut by their limit alone")
def test_frames_and_initial_state_beside_spark(spark, tmp_path):
    settings = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    }
    with configured(spark, settings):
        source = BatchSource(spark, tmp_path / "input", INPUT)
        initial = spark.createDataFrame(INITIAL_ROWS, INITIAL).groupBy("who")
        options = {"transform": transform_with_state_in_pandas, "initialState": initial}
        job = Job(source, tmp_path, ["key"], Describing(), OUTPUT, options)
        source.add(BATCHES[0])
        job.run()
        source.add(BATCHES[1])
        job.run(tasks=3, delivery="direct")
        theirs = run_on_spark(job, initial=initial)
    ours = job.take()
    assert len(theirs) == 2
    assert [sorted(rows) for rows in ours] == [sorted(rows) for rows in theirs]
    assert job.progress[0].keys == 5  # z has initial state only
    assert {row.key: row.n for row in ours[1]} == {"a": 45, "b": 2, "d": 41}


def test_initial_state_of_rows_is_seen_once_over_crash_and_replay(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "input", "key int, amount bigint")
    openings = spark.createDataFrame(OPENINGS, "id int, n bigint, note string")
    # Computed keys on one side only: both sides have their own layout.
    initial = openings.groupBy((openings.id + 0).alias("k"))
    options = {"initialState": initial, "timeMode": "ProcessingTime"}
    job = Job(source, tmp_path, ["key"], Opening(), ROW_OUTPUT, options)
    source.add([(1, -5), (2, 1), (4, 4), (1, -6)])
    with pytest.raises(Exception, match="out of order"):
        job.run(processor=Opening(fails=True))
    assert not job.take()

    def crash(frame: DataFrame, batch_id: int) -> None:
        job.collect(frame, batch_id)
        raise OSError("the sink is gone")

    with pytest.raises(Exception, match="the sink is gone"):
        job.run(crash)
    job.run()  # the same batch, replayed
    first, replayed = job.take()
    assert sorted(first, key=repr) == sorted(replayed, key=repr)
    calls = ["(1,) Row(id=1, n=100, note='a')", "(1,) Row(id=1, n=11, note='timer')"]
    assert sorted(first, key=repr) == [
        Row(key=1, balance=100, calls=calls),
        Row(key=1, balance=100, calls=["timer"]),
        Row(key=2, balance=6, calls=["(2,) Row(id=2, n=5, note=None)"]),
        Row(key=3, balance=7, calls=["timer"]),
        Row(key=4, balance=4, calls=[]),
    ]
    source.add([(3, 1), (1, 1)])
    job.run(tasks=1)
    ((key_1, key_3),) = map(sorted, job.take())
    assert (key_1.balance, key_3.balance) == (101, 8)

    theirs = run_on_spark(job, "ProcessingTime", openings.groupBy("id"))
    assert sorted(theirs[0], key=repr) == sorted(first, key=repr)

    frame = spark.createDataFrame([(1, -5), (2, 1), (4, 4), (1, -6)], "key int, amount bigint")
    whole = transform_with_state(
        frame.groupBy("key"), Opening(), ROW_OUTPUT, "Update", "ProcessingTime", initial, tasks=2
    )
    assert sorted(whole.collect(), key=repr) == sorted(first, key=repr)


def test_wrong_initial_state_is_refused(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "input", "key int, amount bigint")
    job = Job(source, tmp_path, ["key"], Opening(), ROW_OUTPUT)
    with pytest.raises(
        UsageError, match=r"grouped by \(string\), but the stream is grouped by \(int\)"
    ):
        job.start(initialState=spark.createDataFrame([("a",)], "k string").groupBy("k"))
    with pytest.raises(UsageError, match="not of a stream"):
        job.start(initialState=source.frame().groupBy("key"))
