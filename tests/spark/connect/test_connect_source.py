"""The data source on a Connect session: the server finds it, and the client needs nothing."""

from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.connect.jobs import ConnectJob
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, workers_get_by_value

from statelog.state.reader import StateReader

workers_get_by_value("tests.spark.processors")


def test_state_and_checkpoints_are_frames(remote: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(remote, tmp_path / "in", INPUT)
    job = ConnectJob(source, tmp_path, ["key"], Totals(), TOTALS, {"tasks": 2})
    source.add([(key, key) for key in range(20)])
    source.add([(3, 4)])
    job.run()
    location = str(tmp_path / "state")
    with StateReader.open(location) as reader:
        wanted = reader.table("total").to_pylist()
    state = remote.read.format("statelog").load(location)
    rows = state.select("key_group", "key.key", "value.total", "value.rows").collect()
    assert sorted(map(tuple, rows)) == sorted(tuple(row.values()) for row in wanted)
    assert len(rows) == 20
    listed = remote.read.format("statelog").option("view", "checkpoints").load(location)
    assert [row.rows for row in listed.orderBy("batch_id").collect()] == [20, 1]
