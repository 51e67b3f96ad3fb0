"""Changes, and the options of `spark.read.format("statelog")` that choose state."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.processors import totals_job
from tests.support.spark.source_job import everything_job, flat, read, retained, summaries
from tests.support.spark.streams import Job, wait
from tests.support.spark.versions import needs

import statelog as sl
from statelog.checkpoint.retained import TagKind, list_tags
from statelog.store import open_store


def totals(spark: SparkSession, folder: Path, batches: int = 4, **options: Any) -> Job:
    settings = {"maxParallelism": 8, "retainedCheckpoints": 9, **options}
    job = totals_job(spark, folder, **settings)
    for batch in range(batches):
        job.source.add([(key, batch + 1) for key in range(batch, batch + 5)])
    return job


def applied(rows: list[Any], state: dict[int, Any] | None = None) -> dict[int, Any]:
    """Return the totals after the rows of a feed were applied to those before."""
    totals = dict(state or {})
    for row in sorted(rows, key=lambda row: row.checkpoint_id):
        assert totals.get(row.key.key) == row.before.total
        assert row.change == (
            "insert" if row.before.total is None else "update" if row.after.total else "delete"
        )
        totals[row.key.key] = row.after.total
    return {key: total for key, total in totals.items() if total is not None}


def state_at(spark: SparkSession, location: Path, checkpoint_id: int) -> dict[int, Any]:
    return {
        row.key.key: row.value for row in read(spark, location, checkpoint=checkpoint_id).collect()
    }


def test_changes_add_up_to_every_checkpoint(spark, tmp_path):
    run = totals(spark, tmp_path)
    run.run()
    ids = retained(run.state)
    assert len(ids) == 4
    states = [state_at(spark, run.state, number) for number in ids]
    for after, start in ((None, {}), (ids[0], states[0]), (ids[2], states[2])):
        for upto, expected in zip(ids, states, strict=True):
            if after is not None and upto < after:
                continue
            options = {"view": "changes", "checkpoint": upto, "partitions": 3}
            if after is not None:
                options["since"] = after
            rows = read(spark, run.state, **options).collect()
            assert applied(rows, start) == expected
            begun = -1 if after is None else after
            assert {row.checkpoint_id for row in rows} <= set(range(begun + 1, upto + 1)) & {*ids}
    with pytest.raises(PySparkException, match="the option checkpoint requires"):
        options = {"view": "changes", "checkpoint": 1}
        spark.readStream.format("statelog").options(**options).load(
            str(run.state)
        ).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "x")
        ).start().processAllAvailable()


class Follower:
    """A query that reads the changes of a location as a stream."""

    def __init__(self, spark: SparkSession, location: Path, folder: Path, **options: Any) -> None:
        self.spark, self.location, self.folder = spark, location, folder
        self.options = {"view": "changes", **{name: str(value) for name, value in options.items()}}
        self.batches: list[list[Any]] = []

    def run(self) -> list[list[Any]]:
        """Run until all that is there was read; return the rows of each micro-batch."""
        first = len(self.batches)
        frame = self.spark.readStream.format("statelog").options(**self.options)
        writer = frame.load(str(self.location)).writeStream.foreachBatch(self._sink)
        writer = writer.option("checkpointLocation", str(self.folder)).trigger(availableNow=True)
        wait(writer.start())
        return self.batches[first:]

    def _sink(self, frame: DataFrame, _batch: int) -> None:
        self.batches.append(frame.collect())


def reader_tags(location: Path) -> list[tuple[str, int]]:
    tags = list_tags(open_store(location))
    return [(tag.name, tag.checkpoint_id) for tag in tags if tag.kind is TagKind.READER]


@needs((4, 2), "limits of a stream of a Python data source")
def test_a_stream_reads_in_limited_micro_batches(spark, tmp_path):
    run = totals(spark, tmp_path, 5)
    run.run()
    ids = retained(run.state)
    follower = Follower(spark, run.state, tmp_path / "a", since=ids[0], maxCheckpointsPerTrigger=2)
    batches = follower.run()
    assert [sorted({row.checkpoint_id for row in rows}) for rows in batches] == [ids[1:3], ids[3:]]
    state = state_at(spark, run.state, ids[0])
    for rows in batches:
        state = applied(rows, state)
    assert state == state_at(spark, run.state, ids[-1])
    assert follower.run() == []
    # The whole state first, then what is new since.
    whole = Follower(spark, run.state, tmp_path / "b", partitions=2)
    (first,) = whole.run()
    assert applied(first) == state
    run.source.add([(99, 7), (4, 1)])
    run.run()
    (more,) = whole.run()
    assert {row.key.key for row in more} == {99, 4}
    assert applied(more, state) == state_at(spark, run.state, retained(run.state)[-1])


def test_a_named_reader_keeps_what_it_has_not_read(spark, tmp_path):
    run = totals(spark, tmp_path, 2, retainedCheckpoints=1)
    run.run()
    follower = Follower(spark, run.state, tmp_path / "a", reader="copy", readerMaxCheckpoints=5)
    (first,) = follower.run()
    state = applied(first)
    assert reader_tags(run.state)
    position = max(checkpoint_id for _, checkpoint_id in reader_tags(run.state))
    run.source.add_all([(batch, 10)] for batch in range(3))
    run.run()
    ids = [summary.checkpoint_id for summary in summaries(run.state) if summary.is_retained]
    # The second run has taken a number for its claim.
    assert ids == [position, position + 2, position + 3, position + 4]
    rows = [row for batch in follower.run() for row in batch]
    assert applied(rows, state) == state_at(spark, run.state, ids[-1])
    # Without the reader, more checkpoints than the bound: they are gone, and the error says so.
    run.source.add_all([(batch, 10)] for batch in range(8))
    run.run()
    assert len([summary for summary in summaries(run.state) if summary.is_retained]) <= 5
    with pytest.raises(PySparkException, match=r"reader 'copy' has read up to checkpoint \d+ .*"):
        follower.run()


def test_columns_collections_and_times_choose_state(spark, tmp_path):
    run = everything_job(spark, tmp_path)
    run.run()
    some = read(spark, run.state, variable="total", columns="key, value.n")
    assert some.schema.simpleString() == (
        "struct<key:struct<customer:string>,value:struct<n:bigint>>"
    )
    whole = read(spark, run.state, variable="total").select("key", "value.n")
    assert sorted((row.key.customer, row.value.n) for row in some.collect()) == sorted(
        (row.key.customer, row.n) for row in whole.collect()
    )
    with pytest.raises(PySparkException, match=r"column value\.x does not exist; the columns are"):
        read(spark, run.state, variable="total", columns="value.x")
    for name in ("items", "recent", "by_day", "$timers", "total"):
        rows = flat(read(spark, run.state, variable=name))
        nested = read(spark, run.state, variable=name, flattenCollectionTypes="false").collect()
        assert len(nested) == len({row["key.customer"] for row in rows}) == 7
        if name == "by_day":
            sizes = sum(len(row.value) for row in nested)
            for row in nested:
                for day, value in row.value.items():
                    assert isinstance(day.day, dt.date)
                    assert value.counts
        elif name == "$timers":
            sizes = sum(len(row.fires_at_ms) for row in nested)
        else:
            sizes = 7 if name == "total" else sum(len(row.value) for row in nested)
        assert sizes == len(rows)
    created = {summary.checkpoint_id: summary.created_at_ms for summary in summaries(run.state)}
    ids = retained(run.state)
    for place, checkpoint_id in enumerate(ids):
        time = dt.datetime.fromtimestamp(created[checkpoint_id] / 1000, dt.UTC)
        frame = read(spark, run.state, variable="items", checkpoint=time.isoformat())
        assert (
            frame.count()
            == read(spark, run.state, variable="items", checkpoint=checkpoint_id).count()
        )
        assert frame.count() == 10 * (place + 2)
        bare = time.replace(tzinfo=None).isoformat()
        assert read(spark, run.state, variable="items", checkpoint=bare).count() == frame.count()
    with pytest.raises(PySparkException, match="retains no checkpoint that was created at or"):
        read(spark, run.state, variable="items", checkpoint="2001-01-01")
    assert sl.open(run.state).get("total", "c1") is not None
