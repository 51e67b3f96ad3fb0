"""
The scenarios of Spark's parity classes on a Connect session: `enable(spark)` is all that differs.

Each runs the same code twice, on Spark's operator and enabled, with the state in the checkpointLocation.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.connect.jobs import Deliveries
from tests.spark.scenarios import EVERYTHING, INPUT, Everything, WithTimers
from tests.spark.streams import ROCKSDB, TIMEOUT_SECONDS, BatchSource
from tests.spark.versions import needs, row_operator
from tests.support.locations.sequence_entries import committed

from statelog.spark import disable, enable

pytestmark = needs((4, 1), "transformWithState on Spark Connect")

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
LOCATION = "spark.statelog.baseLocation"


def on_both(
    session: SparkSession, folder: Path, build: Callable[[], DataFrame]
) -> list[list[dict[str, Any]]]:
    """Run a query on Spark's operator and enabled; return the rows of each micro-batch, if equal."""
    settings = {**SETTINGS, LOCATION: "checkpoint"}
    for name, value in settings.items():
        session.conf.set(name, value)
    results = []
    try:
        for ours in (False, True):
            if ours:
                enable(session)
            location = folder / str(ours) / "query"
            sink = Deliveries(folder / str(ours) / "out")
            query = (
                build()
                .writeStream.outputMode("update")
                .option("checkpointLocation", str(location))
                .foreachBatch(sink)
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(TIMEOUT_SECONDS)
            assert ours == bool(committed(location / "statelog"))
            results.append(sink.batches())
    finally:
        disable(session)
        for name in settings:
            session.conf.unset(name)
    sparks, enabled = results
    assert enabled == sparks
    return enabled


@pytest.mark.parametrize("pandas", [False, True])
def test_every_kind_with_initial_state(remote: SparkSession, tmp_path: Path, pandas: bool) -> None:
    source = BatchSource(remote, tmp_path / "in", INPUT)
    source.add([("0", 123, "1"), ("0", 46, "1"), ("1", 146, "2"), ("1", 346, "2")])
    source.add([("0", 67, "1"), ("3", 12, "2")])

    def build() -> DataFrame:
        rows = [(789, "0", "1"), (1, "0", "1"), (987, "3", "2"), (5, "9", "9")]
        initial = remote.createDataFrame(rows, "begin int, first string, second string")
        grouped = source.frame().groupBy("first", "second")
        call = grouped.transformWithStateInPandas if pandas else row_operator(grouped)
        return call(
            Everything(pandas),
            EVERYTHING,
            "Update",
            "None",
            initialState=initial.groupBy("first", "second"),
        )

    batches = on_both(remote, tmp_path, build)
    assert [2, 2] == [len(rows) for rows in batches]


def test_timers_wait_without_batches_without_data(remote: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(remote, tmp_path / "in", INPUT)
    source.add([("0", 123, "x"), ("0", 46, "x"), ("1", 146, "x")])
    source.add([("0", 67, "x"), ("3", 12, "x")])

    def build() -> DataFrame:
        initial = remote.createDataFrame([("0", 789), ("3", 987)], "first string, begin int")
        return row_operator(source.frame().groupBy("first"))(
            WithTimers(),
            "first string, n int",
            "Update",
            "ProcessingTime",
            initialState=initial.groupBy("first"),
        )

    batches = on_both(remote, tmp_path, build)
    assert 2 == len(batches)
    assert {"0 expired", "3 expired"} <= {row["first"] for row in batches[0]}
