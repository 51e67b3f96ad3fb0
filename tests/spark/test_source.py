"""State and checkpoints as frames: `spark.read.format("statelog")`."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.processors import INPUT as TOTALS_INPUT
from tests.support.spark.processors import TOTALS, Totals
from tests.support.spark.source_job import everything_job, flat, read, retained, summaries
from tests.support.spark.streams import BatchSource, run_to_end
from tests.support.spark.versions import needs

from statelog.checkpoint.listing import list_checkpoints
from statelog.spark import transform_with_state
from statelog.spark.jvm.gateway import jvm_of
from statelog.state.reader import StateReader
from statelog.store import open_store

VARIABLES = ("total", "seen", "items", "recent", "by_day", "gone")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def test_every_retained_checkpoint_is_read(spark, tmp_path):
    run = everything_job(spark, tmp_path)
    run.run()
    ids = retained(run.state)
    assert len(ids) == 3
    counts = []
    for checkpoint_id in ids:
        with StateReader.open(run.state, checkpoint_id) as reader:
            names = [variable.name for variable in reader.variables()]
            assert {*VARIABLES, "$timers"} == set(names)
            # The older ones differ by their rows only.
            for name in names if checkpoint_id == ids[-1] else ["items"]:
                options = {"variable": name, "checkpoint": checkpoint_id, "partitions": 2}
                rows = rows_of(reader.table(name))
                assert flat(read(spark, run.state, **options)) == rows, name
                assert rows, f"{name} had not expired at the time of the micro-batch"
                counts += [len(rows)] * (name == "items")
    assert counts == [20, 30, 40]
    newest = next(
        checkpoint
        for checkpoint in list_checkpoints(open_store(run.state))
        if checkpoint.is_retained
    )
    by_batch = read(spark, run.state, variable="items", batchId=newest.batch_id)
    assert 20 == by_batch.count()
    with pytest.raises(Exception, match="does not retain a checkpoint of micro-batch 99"):
        read(spark, run.state, variable="items", batchId=99)
    latest = read(spark, run.state, variable="by_day", checkpoint="latest")
    assert latest.schema.simpleString() == (
        "struct<key_group:int,key:struct<customer:string>,user_key:struct<day:date,n:int>,"
        "value:struct<counts:map<string,bigint>,ats:array<timestamp>>>"
    )
    assert latest.select("key.customer", "user_key.day").where("value.ats[0] is not null").count()


def test_checkpoints_are_rows(spark, tmp_path):
    run = everything_job(spark, tmp_path)
    run.run()
    frame = read(spark, run.state, view="checkpoints")
    rows = frame.where("state = 'retained'").orderBy("checkpoint_id").collect()
    listed = {summary.checkpoint_id: summary for summary in summaries(run.state)}
    assert [row.checkpoint_id for row in rows] == retained(run.state)
    assert [(row.batch_id, row.rows, row.keys) for row in rows] == [(n, 10, 7) for n in (1, 2, 3)]
    for row in rows:
        summary = listed[row.checkpoint_id]
        assert row.created_at.timestamp() * 1000 == summary.created_at_ms
        assert (row.size_bytes, row.parent_id) == (summary.size_bytes, summary.parent_id)
        assert (row.operators, row.problem) == (["transform_with_state"], None)
        assert row.object_count == summary.object_count >= 0
        parent = listed.get(row.parent_id)
        if parent is not None:
            assert row.since_parent_ms == summary.created_at_ms - parent.created_at_ms >= 0
        assert row.durations_ms == dict(summary.durations_ms)
    (damaged,) = (tmp_path / "state").rglob(f"chk-{rows[0].checkpoint_id}/_metadata")
    damaged.write_bytes(damaged.read_bytes()[:-7])
    bad = {row.checkpoint_id: row for row in frame.collect()}[rows[0].checkpoint_id]
    assert (bad.state, bad.batch_id, bad.operators) == ("damaged", None, None)
    assert bad.problem


def test_a_frame_keeps_its_checkpoint_during_a_query(spark, tmp_path):
    run = everything_job(spark, tmp_path, retainedCheckpoints=2)
    seen: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = []
    frames: list[DataFrame] = []

    def sink(_: DataFrame, batch: int) -> None:
        frames.append(read(spark, run.state, variable="items"))
        if batch == 1:
            with StateReader.open(run.state) as reader:
                seen.append((flat(frames[1]), rows_of(reader.table("items"))))
        if batch == 2:
            seen.append((flat(frames[1]), seen[0][1]))
            seen.append((flat(frames[2])[:1], seen[0][1][:1]))
            assert frames[2].count() == 30

    run.run(sink)
    assert len(frames) == 4
    assert [len(rows) for rows, _ in seen] == [20, 20, 1]
    assert seen[0][0] == seen[0][1] == seen[1][0]
    # The checkpoint of the first frame is deleted by now; no other is read in its place.
    with pytest.raises(PySparkException, match=r"CheckpointSubsumedError.*retain"):
        frames[0].collect()


def test_of_two_operators_one_is_named(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", TOTALS_INPUT)
    source.add([(key, key) for key in range(20)])
    state = tmp_path / "state"
    first = transform_with_state(
        source.frame().groupBy("key"), Totals(), TOTALS, stateLocation=str(state), operator="a"
    )
    steps = first.selectExpr("key % 3 as key", "total as amount")
    second = transform_with_state(steps.groupBy("key"), Totals(), TOTALS, operator="b")
    run_to_end(second, tmp_path / "query")
    with pytest.raises(PySparkException, match="has several operators; name one of a, b"):
        read(spark, state)
    for operator, rows in (("a", 20), ("b", 3)):
        with StateReader.open(state, operator=operator) as reader:
            expected = rows_of(reader.table("total"))
        frame = read(spark, state, operator=operator)  # its only variable
        assert flat(frame) == expected
        assert len(expected) == rows
        first_row = expected[0]
        session = with_filter_pushdown(spark)
        pushed = read(session, state, operator=operator, partitions=8, filterPushdown=True)
        assert flat(pushed.where(f"key.key = {first_row['key.key']}")) == [first_row]
    (row,) = read(spark, state, view="checkpoints").collect()
    assert (row.operators, row.rows, row.keys) == (["a", "b"], 20, 23)


def partitions_of(frame: DataFrame) -> int:
    """Return the number of partitions; for it Spark reads the settings of the thread's session."""
    session = frame.sparkSession
    jvm_of(session).SparkSession.setActiveSession(session._jsparkSession)
    return frame.rdd.getNumPartitions()


def with_filter_pushdown(spark: SparkSession) -> SparkSession:
    """Return a session of its own with the setting, which Spark reads when it plans."""
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return session


@needs((4, 1), "filters for Python data sources")
def test_key_groups_and_filters_choose_what_is_read(spark, tmp_path):
    run = everything_job(spark, tmp_path)
    run.run()
    with StateReader.open(run.state) as reader:
        expected = rows_of(reader.table("total"))
    some = read(spark, run.state, variable="total", keyGroups="0-3", partitions=99)
    assert partitions_of(some) == 4
    assert flat(some) == [row for row in expected if row["key_group"] <= 3]
    assert 0 < some.count() < 7
    session = with_filter_pushdown(spark)
    pushed = read(session, run.state, variable="total", partitions=8, filterPushdown=True)
    assert partitions_of(pushed) == 8
    for row in expected[:3]:
        by_key = pushed.where(f"key.customer = '{row['key.customer']}'")
        assert partitions_of(by_key) == 1
        assert flat(by_key) == [row]
    none = pushed.where("key.customer = 'c1' and key_group = 99")
    assert (partitions_of(none), none.count()) == (1, 0)
    assert pushed.where("key.customer > 'c1'").count() == 5
    plain = read(spark, run.state, variable="total", partitions=8)
    assert partitions_of(plain.where("key.customer = 'c1'")) == 8
    assert plain.where("key.customer = 'c1'").count() == 1


def test_sql_reads_state_and_errors_say_what_to_do(spark, tmp_path):
    run = everything_job(spark, tmp_path)
    with pytest.raises(PySparkException, match=r"does not exist"):
        read(spark, run.state)
    run.run()
    spark.sql(
        "create temporary view state_of_totals using statelog options "
        f"(path '{run.state}', variable 'total')"
    )
    try:
        assert spark.sql("select sum(value.n) from state_of_totals").collect() == [(40,)]
    finally:
        spark.sql("drop view state_of_totals")
    for options, message in (
        ({}, "has the state variables total, seen, items, recent, by_day, gone"),
        ({"variable": "other"}, "have a state variable 'other'; its variables are 'total'"),
        ({"variable": "total", "checkpoint": 99}, "checkpoint 99"),
        ({"stat": "total"}, "unknown option 'stat'; the options are path, view, variable"),
    ):
        with pytest.raises(PySparkException, match=message) as raised:
            read(spark, run.state, **options)
        assert "Traceback" not in str(raised.value).split(message)[0]
    with_schema = spark.read.format("statelog").option("variable", "total").schema("n int")
    with pytest.raises(PySparkException, match="omit the schema"):
        with_schema.load(str(run.state)).collect()
