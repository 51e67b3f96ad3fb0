"""Several stateful operators in one query of a Connect session."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import col
from tests.support.spark.chained_changes import BATCHES, BUCKETS, CHANGES, ChainModel, Changes
from tests.support.spark.connect.jobs import Deliveries
from tests.support.spark.processors import Totals
from tests.support.spark.side_job import Sides, expected
from tests.support.spark.streams import enabled, wait

import statelog as sl
from statelog.errors import UsageError
from statelog.spark import transform_with_state
from statelog.state.reader import StateReader


class Rated(Totals):
    """Yields the factor of its rules."""

    def init(self, handle):
        super().init(handle)
        self.rules = handle.broadcast("rules")

    def handleInputRows(self, key, rows, timerValues):
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(key=row.key, total=row.total, factor=self.rules.rows[0].factor)


def by_bucket(out: DataFrame, **settings: Any) -> DataFrame:
    steps = out.where(out.total >= 0).withColumn("bucket", col("key") % BUCKETS)
    return transform_with_state(steps.groupBy("bucket"), Changes(), CHANGES, **settings)


def test_two_operators_commit_one_object_together(job, remote):
    initial = remote.createDataFrame([(0, 0, 0)], CHANGES).groupBy("bucket")
    job.steps = lambda out: by_bucket(out, initialState=initial)
    model = ChainModel()
    job.source.add_all(BATCHES[:3])
    job.run()
    job.source.add_all(BATCHES[3:])
    last = job.run()
    assert [1] * len(BATCHES) == [batch.objects for batch in last.recentBatches]
    assert [rows for rows in map(model.apply, BATCHES) if rows] == job.sink.in_order()
    with StateReader.open(job.state, operator="transform_with_state_2") as reader:
        assert len(model.seen) == reader.table("seen").num_rows


def test_an_enabled_session_chains_only_its_calls(job, remote):
    grouped = job.stream().groupBy("key")
    with pytest.raises(UsageError, match="cannot be grouped for a Spark operator"):
        grouped.count()
    with pytest.raises(UsageError, match="cannot be grouped for a Spark operator"):
        grouped.transformWithState(Changes(), CHANGES, "Update", "None")
    with enabled(remote):
        steps = job.stream().withColumn("bucket", col("key") % BUCKETS).groupBy("bucket")
        chained = steps.transformWithState(Changes(), CHANGES, "Update", "None")
        assert ["bucket", "changes", "sum"] == chained.columns


def test_a_broadcast_table_is_read_in_the_server(job, remote):
    job.source.add([(1, 1), (2, 1)])
    job.processor, job.output = Rated(), "key long, total long, factor long"
    file = str(job.folder / "factor")
    (job.folder / "factor").write_text("3")

    def rules() -> list[dict[str, int]]:
        with open(file, encoding="utf-8") as opened:
            return [{"factor": int(opened.read())}]

    job.options["broadcast"] = {"rules": rules}
    job.run()
    (job.folder / "factor").write_text("4")
    job.source.add([(1, 1)])
    job.run()
    assert [[3, 3], [4]] == [[row["factor"] for row in rows] for rows in job.sink.batches()]
    job.options["broadcast"] = {"rules": remote.range(1)}
    with pytest.raises(UsageError, match="pass a function that runs on the server"):
        job.stream()


def test_side_outputs_are_kept_and_delivered(job):
    job.source.add_all(BATCHES[:3])
    job.processor = Sides()
    sides = {name: Deliveries(job.folder / name) for name in ("sevens", "first")}
    writer: Any = job.stream().writeStream.foreachBatch(job.sink)
    for name, sink in sides.items():
        writer = writer.sideOutput(name, sink)
    writer = writer.option("checkpointLocation", str(job.query))
    wait(writer.trigger(availableNow=True).start())
    for name, batches in expected(BATCHES[:3]).items():
        assert [rows for rows in batches if rows] == sides[name].in_order()
        with sl.open(job.state) as state:
            assert sum(map(len, batches)) == state.side_output(name).num_rows
