"""State from frames: `write_state`, and queries that go on from it."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, struct
from tests.spark import processors, test_source
from tests.spark.processors import INPUT as TOTALS_INPUT
from tests.spark.processors import TOTALS, Totals, TotalsModel
from tests.spark.streams import BatchSource, Job, workers_get_by_value
from tests.spark.test_source import Everything, expected, read
from tests.spark.test_source import job as everything

import statelog
from statelog.errors import CheckpointError, UsageError
from statelog.spark import write_state
from statelog.state.reader import StateReader

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)
workers_get_by_value(test_source.__name__)

ALL = ("total", "seen", "items", "recent", "by_day", "gone", "$timers")


def frames(spark: SparkSession, location: Path) -> dict[str, DataFrame]:
    return {name: read(spark, location, stateVarName=name) for name in ALL}


def tables(location: Path) -> dict[str, list[dict[str, Any]]]:
    with StateReader.open(location) as reader:
        return {one.name: expected(reader.table(one.name)) for one in reader.variables()}


def without_groups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "key_group"} for row in rows]


@pytest.mark.parametrize("key_groups", [8, 5])
def test_what_is_read_and_written_is_the_same_state(
    spark: SparkSession, tmp_path: Path, key_groups: int
) -> None:
    run = everything(spark, tmp_path)
    run.run()
    new = tmp_path / "new"
    done = write_state(
        new,
        Everything(),
        frames(spark, run.state),
        "ProcessingTime",
        maxParallelism=key_groups,
        tasks=3,
    )
    before, after = tables(run.state), tables(new)
    assert set(before) == set(after) == set(ALL)
    for name, rows in before.items():
        if key_groups == 8:
            assert after[name] == rows, name
        else:
            assert sorted(without_groups(after[name]), key=repr) == sorted(
                without_groups(rows), key=repr
            )
    assert (done.keys, done.tasks, done.checkpoint_id) == (7, 3, 1)
    assert done.entries == sum(map(len, after.values()))
    # A query goes on from both alike.
    run.source.add([test_source.order(f"c{n}", "later", n) for n in range(9)])
    run.run()
    other = everything_on(run, new, tmp_path / "again", key_groups)
    other.run()
    assert without_times(tables(run.state)) == without_times(tables(new))


def everything_on(run: Job, state: Path, folder: Path, key_groups: int) -> Job:
    source = BatchSource(run.source.spark, folder / "in", test_source.INPUT)
    source.add([test_source.order(f"c{n}", "later", n) for n in range(9)])
    return Job(
        source,
        folder,
        run.keys,
        Everything(),
        test_source.OUTPUT,
        {**run.options, "stateLocation": str(state), "maxParallelism": key_groups},
    )


def without_times(state: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Leave out what depends on the wall clock, and key groups."""
    hidden = ("key_group", "expires_at_ms", "fires_at_ms")
    return {
        name: sorted(
            ({key: value for key, value in row.items() if key not in hidden} for row in rows),
            key=repr,
        )
        for name, rows in state.items()
    }


def totals(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select(
        struct(col("id").alias("key")).alias("key"),
        struct((col("id") * 3).alias("total"), lit(1).cast("bigint").alias("rows")).alias("value"),
    )


def totals_job(spark: SparkSession, folder: Path, state: Path, **options: Any) -> Job:
    source = BatchSource(spark, folder / "in", TOTALS_INPUT)
    return Job(source, folder, ["key"], Totals(), TOTALS, {"stateLocation": str(state), **options})


def test_a_new_query_goes_on_and_an_old_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    state = tmp_path / "written"
    write_state(state, Totals(), {"total": totals(spark, 1000)})
    job = totals_job(spark, tmp_path / "a", state)
    model = TotalsModel()
    model.totals.update({key: (3 * key, 1) for key in range(1000)})
    for start in (0, 995):
        rows = [(key, 7) for key in range(start, start + 10)]
        job.source.add(rows)
        job.run()
        assert [sorted(map(tuple, part), key=repr) for part in job.take()] == [model.apply(rows)]
    with statelog.open(state) as opened:
        retained = [one.checkpoint_id for one in opened.checkpoints() if one.is_retained]
        assert retained == [1, 3, 5]  # the numbers between are claims
        assert [one.value for one in opened.history("total", 999)] == [
            {"total": 2997, "rows": 1},
            {"total": 2997, "rows": 1},
            {"total": 3004, "rows": 2},
        ]
    # A query that has read input has state of its own.
    second = tmp_path / "second"
    write_state(second, Totals(), {"total": totals(spark, 5)})
    job.source.add([(1, 1)])
    with pytest.raises(Exception, match="belongs to no query yet"):
        job.run(stateLocation=str(second))
    job.run(stateLocation=str(second), adopt=True)
    assert [[tuple(row) for row in part] for part in job.take()] == [[(1, 4, 2)]]


def test_frames_are_checked_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    good = totals(spark, 5)
    cases: list[tuple[Any, str]] = [
        ({}, "a mapping from the names"),
        ({"other": good}, "no state variable 'other'; it has 'total'"),
        ({"total": good.drop("value")}, "no column 'value'"),
        ({"total": good.withColumn("more", lit(1))}, "a column 'more'"),
        ({"total": good.drop("key")}, "no column 'key'"),
        (
            {
                "total": good.withColumn(
                    "value", struct(lit(1).alias("total"), lit(2).alias("rows"))
                )
            },
            "cast it",
        ),
        ({"total": [1]}, "a DataFrame is needed, not list"),
    ]
    for given, message in cases:
        with pytest.raises(UsageError, match=message):
            write_state(tmp_path / "new", Totals(), given)
    assert not (tmp_path / "new").exists()
    # What only the rows show fails the job, and nothing is committed.
    for frame, message in (
        (good.unionAll(good), r"the key \(\d,\) has more than one value"),
        (good.withColumn("value", lit(None).cast(good.schema["value"].dataType)), "the value null"),
    ):
        with pytest.raises(PySparkException, match=message):
            write_state(tmp_path / "new", Totals(), {"total": frame})
    write_state(tmp_path / "new", Totals(), {"total": good})
    with pytest.raises(
        CheckpointError, match=r"holds checkpoint [1-9][0-9]*; write_state needs a new"
    ):
        write_state(tmp_path / "new", Totals(), {"total": good})


class Times(Totals):
    """Has a variable with a time to live, and timers."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total bigint, rows bigint", 3_600_000)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield from ()


def test_expiry_and_timers(spark: SparkSession, tmp_path: Path) -> None:
    frame = totals(spark, 3)
    timers = spark.range(3).selectExpr("struct(id as key) as key", "1000 - id as fires_at_ms")
    begin = int(dt.datetime.now().timestamp() * 1000)
    for name, given in (("now", frame), ("given", frame.withColumn("expires_at_ms", lit(2**50)))):
        state = tmp_path / name
        both = {"total": given, "$timers": timers.unionAll(timers)}
        write_state(state, Times(), both, "ProcessingTime")
        with statelog.open(state) as opened:
            assert opened.get("$timers", 2) == [998]
            expires = opened.table("total").column("expires_at_ms").to_pylist()
            if name == "given":
                assert expires == [2**50] * 3
            else:
                assert all(0 <= one - 3_600_000 - begin < 600_000 for one in expires)
            record = opened.checkpoints()[0].properties
            assert record["next_due_ms"] == 998
