"""Keys set and deleted by frames, beside a query that goes on."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit, struct
from tests.spark import processors, test_source
from tests.spark.processors import INPUT as TOTALS_INPUT
from tests.spark.processors import TOTALS, Totals, TotalsModel
from tests.spark.streams import BatchSource, Job, workers_get_by_value
from tests.spark.test_source import expected, read
from tests.spark.test_source import job as everything

import statelog
from statelog.errors import CheckpointError, UsageError
from statelog.spark import edit_state
from statelog.state.reader import StateReader

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)
workers_get_by_value(test_source.__name__)


def tables(location: Path) -> dict[str, list[dict[str, Any]]]:
    with StateReader.open(location) as reader:
        return {one.name: expected(reader.table(one.name)) for one in reader.variables()}


def test_the_query_goes_on_at_its_position_from_the_edited_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = BatchSource(spark, tmp_path / "in", TOTALS_INPUT)
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS, {"retainedCheckpoints": 2})
    model = TotalsModel()
    rows = [(key, 1) for key in range(300)]
    source.add(rows)
    job.run()
    model.apply(rows)
    job.take()
    frame = read(spark, job.state)
    odd = frame.where("key.key % 2 = 1").withColumn(
        "value", struct(lit(1000).cast("bigint").alias("total"), col("value.rows").alias("rows"))
    )
    new = spark.range(300, 310).selectExpr(
        "struct(id as key) as key", "struct(id as total, 0L as rows) as value"
    )
    gone = spark.range(0, 400, 10).selectExpr("struct(id as key) as key")
    edits = {"set": {"total": odd.unionByName(new, allowMissingColumns=True)}, "delete": gone}
    before = tables(job.state)
    planned = edit_state(job.state, **edits, apply=False)
    assert tables(job.state) == before
    counts = planned.counts
    # 30 keys are deleted; 300 is set and deleted: what is set counts.
    assert (counts.inserted, counts.updated, counts.deleted, counts.unchanged) == (10, 150, 30, 9)
    report = edit_state(job.state, **edits, apply=True)
    assert report.counts == counts
    for key in range(300):
        if key % 2:
            model.totals[key] = 1000, 1
        if not key % 10:
            del model.totals[key]
    for key in range(300, 310):
        model.totals[key] = key, 0
    found = {row["key.key"]: row["value.total"] for row in tables(job.state)["total"]}
    assert found == {key: total for key, (total, _) in model.totals.items()}
    assert edit_state(job.state, **edits, apply=True).counts.changed == 0
    more = [(key, 5) for key in range(290, 312)]
    source.add(more)
    job.run()
    assert [sorted(map(tuple, part), key=repr) for part in job.take()] == [model.apply(more)]
    with statelog.open(job.state) as state:
        values = [one.value for one in state.history("total", 301)]
        assert values == [{"total": 301, "rows": 0}, {"total": 306, "rows": 1}]


def test_all_kinds_of_state_are_replaced_whole(spark: SparkSession, tmp_path: Path) -> None:
    run = everything(spark, tmp_path)
    run.run()
    start = tables(run.state)
    frames = {
        name: read(spark, run.state, stateVarName=name).where("key.customer <= 'c3'").cache()
        for name in start
    }
    kept = {name: frame.count() for name, frame in frames.items()}
    keys = spark.sql("select struct(concat('c', id) as customer) as key from range(9)")
    done = edit_state(run.state, delete=keys.where("key.customer >= 'c3'"), apply=True)
    assert (done.counts.deleted, done.counts.unchanged) == (4, 2)
    part = tables(run.state)
    edit_state(run.state, delete={"items": keys, "$timers": keys}, apply=True)
    assert tables(run.state)["items"] == tables(run.state)["$timers"] == []
    assert tables(run.state)["by_day"] == part["by_day"]
    put = edit_state(run.state, set=frames, apply=True)
    assert (put.counts.inserted, put.counts.updated, put.counts.unchanged) == (1, 3, 0)
    after = tables(run.state)
    for name, rows in after.items():
        assert rows == [row for row in start[name] if row["key.customer"] <= "c3"], name
        assert len(rows) == kept[name]


def test_a_running_query_is_fenced_and_mistakes_change_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = BatchSource(spark, tmp_path / "in", TOTALS_INPUT)
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS)
    source.add([(1, 1)])
    source.add([(1, 1)])
    keys = spark.range(5).selectExpr("struct(id as key) as key")

    def sink(_: Any, batch: int) -> None:
        if batch == 0:
            edit_state(job.state, delete=keys, apply=True)

    with pytest.raises(Exception, match="is fenced"):
        job.run(sink)
    job.run()
    assert [[tuple(row) for row in part] for part in job.take()][-1] == [(1, 1, 1)]
    frame = read(spark, job.state)
    for arguments, message in (
        ({}, "needs frames"),
        ({"delete": keys.withColumnRenamed("key", "k")}, "the column 'key' must be a struct"),
        ({"delete": {"other": keys}}, "no state variable 'other'"),
        ({"set": {"total": frame.drop("value")}}, "no column 'value'"),
        ({"delete": keys, "operator": "x"}, "has no operator 'x'"),
    ):
        with pytest.raises(UsageError, match=message):
            edit_state(job.state, **arguments, apply=True)
    newest = read(spark, job.state, view="checkpoints").count()
    with pytest.raises(PySparkException, match="more than one value"):
        edit_state(job.state, set={"total": frame.unionAll(frame)}, apply=True)
    assert read(spark, job.state, view="checkpoints").count() == newest
    with pytest.raises((CheckpointError, UsageError), match=r"no such directory|no checkpoint"):
        edit_state(tmp_path / "none", delete=keys, apply=True)
