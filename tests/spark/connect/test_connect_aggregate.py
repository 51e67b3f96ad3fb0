"""`aggregate` on a Connect session: the same functions, with two shuffles."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, window
from tests.support.spark.connect.jobs import deliver
from tests.support.spark.streams import BatchSource

from statelog.spark import aggregate
from statelog.spark import functions as F

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


def test_windows_are_aggregated_and_dropped(remote: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(remote, tmp_path / "in", "name string, at timestamp, value int")
    source.add([("a", NOON, 1), ("a", NOON, 2), ("b", NOON, 3)])
    source.add([("a", NOON + timedelta(minutes=1), 4), ("b", NOON + timedelta(hours=1), 5)])
    windows = aggregate(
        source.frame().withWatermark("at", "1 minute").groupBy(window("at", "10 minutes"), "name"),
        F.count().alias("n"),
        F.sum(col("value") * 2).alias("total"),
        F.top_k("value", 2).alias("top"),
        outputMode="append",
        tasks=2,
        stateLocation=str(tmp_path / "state"),
    )
    # A run is one micro-batch.  Its watermark ends windows in the next, and makes rows late in the one after.
    for hours, late in ((2, 6), (3, 8), (None, 0)):
        sink = deliver(windows.drop("window"), tmp_path, "append")
        if hours is not None:
            source.add([("a", NOON, late), ("b", NOON + timedelta(hours=hours), 7)])
    rows = [row for batch in sink.batches() for row in batch]
    assert sorted(rows, key=repr) == [
        {"name": "a", "n": 4, "total": 26, "top": [6, 4]},
        {"name": "b", "n": 1, "total": 10, "top": [5]},
        {"name": "b", "n": 1, "total": 6, "top": [3]},
    ]
