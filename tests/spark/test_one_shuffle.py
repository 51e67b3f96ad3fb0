"""A micro-batch is aggregated with one shuffle, which puts each key into the partition of its task."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.support.spark.processors import TOTALS, Totals
from tests.support.spark.streams import until, wait
from tests.support.spark.versions import table_of

from statelog.extensions.columns.aggregation import pre_aggregation as pre_aggregation_module
from statelog.extensions.columns.aggregation.pre_aggregation import PreAggregation, PreAggregator
from statelog.model import KeyGroupRange
from statelog.spark import aggregate, transform_with_state
from statelog.spark import functions as F
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN

GROUPS = KeyGroupRange(128, 255)
COUNT = PreAggregation(
    ("key", "name"), (("count(1)", "n"), ("sum(value)", "total"), ("collect_list(value)", "values"))
)


@pytest.fixture
def session(spark):
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def rows(session: SparkSession) -> DataFrame:
    return session.range(0, 1000, 1, 3).selectExpr(
        "id % 37 AS key", "CASE WHEN id % 5 < 4 THEN concat('n', id % 5) END AS name", "id AS value"
    )


def by_partition(frame: DataFrame) -> list[dict[str, object]]:
    def number(batches: object) -> object:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:  # type: ignore[attr-defined]
            places = pa.array([context.partitionId()] * batch.num_rows)
            yield batch.append_column("place", places)

    names = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema)
    numbered = frame.mapInArrow(number, f"{names}, place long")  # type: ignore[arg-type]
    return table_of(numbered).to_pylist()


def shuffles(frame: DataFrame) -> int:
    return str(frame._jdf.queryExecution().executedPlan().toString()).count("Exchange ")


def check(frame: DataFrame, rows_before: DataFrame, tasks: int) -> None:
    """Check that each key is aggregated once, in the partition of its task."""
    columns = [sf.expr(sql).alias(name) for sql, name in COUNT.partials]
    grouped = rows_before.groupBy("key", "name").agg(*columns)
    with_group = grouped.selectExpr("*", "cast(pmod(xxhash64(key, name), 128) as int) + 128 AS g")
    expected = {(row.key, row.name): row for row in with_group.collect()}
    aggregated = by_partition(frame)
    assert len(aggregated) == len(expected)
    for row in aggregated:
        of_spark = expected[row["key"], row["name"]]
        assert (row["n"], row["total"]) == (of_spark.n, of_spark.total)
        assert sorted(row["values"]) == sorted(of_spark["values"])
        assert row[INPUT_KEY_GROUP_COLUMN] == of_spark.g
        assert row["place"] == (of_spark.g - 128) * tasks // 128
    assert {row["place"] for row in aggregated} == set(range(tasks))


@pytest.mark.parametrize(("tasks", "is_small"), [(1, True), (1, False), (2, False), (5, True)])
def test_each_key_is_in_its_partition(session, tasks, is_small):
    frame = shuffled(rows(session), tasks, is_small=is_small)
    # That of the aggregation is inside the rows it reads, or there is none.
    assert shuffles(frame) == 0
    check(frame, rows(session), tasks)


def one_shuffle(frame: DataFrame, tasks: int) -> DataFrame | None:
    return PreAggregator(COUNT, GROUPS)._with_one_shuffle(frame, tasks)


def shuffled(frame: DataFrame, tasks: int, *, is_small: bool = False) -> DataFrame:
    aggregator = PreAggregator(COUNT, GROUPS)
    aggregator.partitioned(frame, tasks, is_small=is_small)  # its columns are used again
    return aggregator.partitioned(frame, tasks, is_small=is_small)


def test_a_micro_batch_of_a_query_has_one_shuffle(spark, tmp_path):
    session = spark.newSession()  # with the settings that users have
    rows(session).write.parquet(str(tmp_path / "in"))
    has_one_shuffle = []

    def batch(frame: DataFrame, batch_id: int) -> None:
        has_one_shuffle.append(one_shuffle(frame, 2) is not None)
        check(shuffled(frame, 2), rows(session), 2)

    stream = session.readStream.schema(rows(session).schema).parquet(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(batch).trigger(availableNow=True).start()
    wait(query)
    assert [True] == has_one_shuffle


@pytest.mark.parametrize(("tasks", "is_small"), [(2, False), (1, True)])
def test_spark_plans_the_aggregation_once_for_all_micro_batches(
    spark, tmp_path, monkeypatch, *, tasks, is_small
):
    session = spark.newSession()  # with the settings that users have
    parts = [rows(session).where(f"value % 3 = {rest}") for rest in range(3)]
    for part in parts:
        part.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    planned: list[object] = []
    plan = pre_aggregation_module.executed_plan
    monkeypatch.setattr(
        pre_aggregation_module,
        "executed_plan",
        lambda *of: planned.append(of) or plan(*of),  # type: ignore[func-returns-value]
    )
    aggregator = PreAggregator(COUNT, GROUPS)

    def batch(frame: DataFrame, batch_id: int) -> None:
        check(aggregator.partitioned(frame, tasks, is_small=is_small), frame, tasks)

    stream = session.readStream.schema(parts[0].schema).option("maxFilesPerTrigger", 1)
    writer = stream.parquet(str(tmp_path / "in")).writeStream.foreachBatch(batch)
    query = writer.trigger(availableNow=True).start()
    wait(query)
    assert len(query.recentProgress) == 3
    assert len(planned) == 1


@pytest.mark.parametrize(("tasks", "is_small"), [(2, False), (1, True)])
def test_other_columns_are_planned_anew(session, *, tasks, is_small):
    aggregator = PreAggregator(COUNT, GROUPS)
    first = as_one_rdd(rows(session))
    wider = as_one_rdd(rows(session).selectExpr("'x' AS other", "value", "name", "key"))
    for frame in (first, first, wider, wider, as_one_rdd(rows(session).where("key < 30"))):
        check(aggregator.partitioned(frame, tasks, is_small=is_small), frame, tasks)


def as_one_rdd(frame: DataFrame) -> DataFrame:
    """Return the frame as `foreachBatch` gives it."""
    session = frame.sparkSession
    one_rdd = session._jsparkSession.internalCreateDataFrame(  # type: ignore[attr-defined]
        frame._jdf.queryExecution().toRdd(), frame._jdf.schema(), False
    )
    return DataFrame(one_rdd, session)


def test_a_shuffle_of_the_user_stays_where_it_is(session):
    partitioned = rows(session).repartition(4, "key")
    # Partitioned by a part of the key, so that the aggregation needs no shuffle of its own.
    grouped = COUNT.grouped(partitioned, GROUPS)
    assert shuffles(grouped) == 1
    assert one_shuffle(partitioned, 2) is None
    check(shuffled(partitioned, 2), rows(session), 2)


def test_a_join_below_the_aggregation(session):
    names = session.range(37).selectExpr("id AS key", "id * 2 AS twice")
    joined = rows(session).join(names, "key").selectExpr("key", "name", "twice AS value")
    check(shuffled(joined, 2), joined, 2)


@pytest.mark.parametrize("aggregated", [True, False])
def test_the_shuffle_begins_before_the_sink_is_called(spark, tmp_path, *, aggregated):
    rows(spark).write.parquet(str(tmp_path / "in"))
    events = spark.readStream.schema(rows(spark).schema).parquet(str(tmp_path / "in"))
    begun: list[list[int]] = []

    def sink(frame: DataFrame, batch_id: int) -> None:
        context = spark.sparkContext
        # Jobs of the query's own group, which end with the query.
        group = context.getLocalProperty("spark.jobGroup.id")
        # The tracker hears of a job some time after it begins.
        begun.append(until(lambda: context.statusTracker().getJobIdsForGroup(group), "a job"))
        assert frame.count() == 37

    grouped = events.selectExpr("key", "value AS amount").groupBy("key")
    if aggregated:
        stream = aggregate(grouped, F.count().alias("n"), tasks=2, delivery="direct")
    else:
        stream = transform_with_state(
            grouped, Totals(), TOTALS, "Update", "None", tasks=2, delivery="direct"
        )
    writer = stream.writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "to")).start()
    query.processAllAvailable()
    query.stop()
    assert [1] == [len(jobs) for jobs in begun]
