"""The data source on a Connect session: the server finds it, and the client needs nothing."""

from pyspark.sql import SparkSession
from tests.support.spark.connect.jobs import ConnectJob
from tests.support.spark.streams import in_order

from statelog.state.reader import StateReader


def test_state_and_checkpoints_are_frames(job: ConnectJob, remote: SparkSession) -> None:
    job.source.add([(key, key) for key in range(20)])
    job.source.add([(3, 4)])
    job.run()
    location = str(job.state)
    with StateReader.open(location) as reader:
        expected = reader.table("total").to_pylist()
    state = remote.read.format("statelog").load(location)
    rows = state.select("key_group", "key.key", "value.total", "value.rows").collect()
    assert in_order(rows) == in_order(row.values() for row in expected)
    assert len(rows) == 20
    listed = remote.read.format("statelog").option("view", "checkpoints").load(location)
    assert [row.rows for row in listed.orderBy("batch_id").collect()] == [20, 1]
