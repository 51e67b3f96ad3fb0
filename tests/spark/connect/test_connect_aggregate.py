"""`aggregate` on a Connect session: the same functions, with two shuffles."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, window
from tests.spark.connect.jobs import Deliveries
from tests.spark.streams import BatchSource, wait

from statelog.spark import aggregate, count, sum_, top_k

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


def test_windows_are_aggregated_and_dropped(remote: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(remote, tmp_path / "in", "name string, at timestamp, value int")
    source.add([("a", NOON, 1), ("a", NOON, 2), ("b", NOON, 3)])
    source.add([("a", NOON + timedelta(minutes=1), 4), ("b", NOON + timedelta(hours=1), 5)])
    source.add([("a", NOON, 6), ("b", NOON + timedelta(hours=2), 7)])
    sink = Deliveries(tmp_path / "out")
    out = aggregate(
        source.frame().withWatermark("at", "1 minute").groupBy(window("at", "10 minutes"), "name"),
        n=count(),
        total=sum_(col("value") * 2),
        top=top_k("value", 2),
        outputMode="append",
        tasks=2,
        stateLocation=str(tmp_path / "state"),
    )
    writer = out.drop("window").writeStream.option("checkpointLocation", str(tmp_path / "query"))
    wait(writer.foreachBatch(sink).trigger(availableNow=True).start())
    found = [row for batch in sink.batches() for row in batch]
    assert sorted(found, key=repr) == [
        {"name": "a", "n": 3, "total": 14, "top": [4, 2]},
        {"name": "b", "n": 1, "total": 10, "top": [5]},
        {"name": "b", "n": 1, "total": 6, "top": [3]},
    ]
