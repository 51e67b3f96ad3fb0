"""The pandas flavour, initial state and the sinks on a Connect session."""

import contextlib
import functools
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.support.spark.columnar_totals import ColumnarTotals
from tests.support.spark.connect.jobs import ConnectJob, connect_job, deliver
from tests.support.spark.delta_stand_in import DeltaStandIn
from tests.support.spark.pandas_processors import (
    BATCHES,
    INITIAL,
    INITIAL_ROWS,
    OUTPUT,
    Describing,
)
from tests.support.spark.pandas_processors import INPUT as FRAMES
from tests.support.spark.processors import TotalsModel, totals_of
from tests.support.spark.streams import ON_ROCKSDB, BatchSource, configured, in_order, wait
from tests.support.spark.versions import needs

from statelog.core.delivered_batch import DeliveredBatch
from statelog.spark import (
    DatabaseSink,
    exactly_once,
    idempotent,
    transform_with_state_in_pandas,
    writer_id,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = [[(1, 1), (2, 2), (1, 3)], [(2, 5)], [(3, 7), (1, -4)]]


@needs((4, 1), "transformWithStateInPandas on Connect")
def test_frames_and_initial_state_are_sparks(remote, tmp_path):
    settings = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    }
    with configured(remote, settings | ON_ROCKSDB):
        source = BatchSource(remote, tmp_path / "in", FRAMES)
        initial = remote.createDataFrame(INITIAL_ROWS, INITIAL).groupBy("who")
        options = {"transform": transform_with_state_in_pandas, "initialState": initial}
        job = ConnectJob(source, tmp_path, ["key"], Describing(), OUTPUT, options)
        source.add(BATCHES[0])
        job.run()
        source.add(BATCHES[1])
        job.run(tasks=3)
        operator = source.frame().groupBy(*job.keys).transformWithStateInPandas
        frame = operator(Describing(), OUTPUT, "Update", "None", initial)
        theirs = deliver(frame, tmp_path / "spark").batches()
    ours = job.sink.batches()
    assert 2 == len(ours) == len(theirs)
    assert ours == theirs


def test_columns_are_processed_as_rows_are(remote, tmp_path):
    job = connect_job(remote, tmp_path, ColumnarTotals())
    for batch in ROWS:
        job.source.add(batch)
        job.run()
    assert job.sink.in_order() == totals_of(ROWS)


class EachRow:
    """A writer for `foreach` with one file for each row."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.epoch = epoch_id
        return True

    def process(self, row):
        (Path(self.folder) / f"{self.epoch}-{row.key}").write_text(str(row.total))

    def close(self, error):
        assert error is None


def written_by_id(frame: DataFrame, batch_id: int, folder: str) -> None:
    assert writer_id(frame), "the query has no id"
    frame.write.mode("append").parquet(f"{folder}/{writer_id(frame)}")


def run(job: ConnectJob, writer: Any, *start: Any) -> Any:
    ready = writer.option("checkpointLocation", str(job.query))
    query = ready.trigger(availableNow=True).start(*start)
    wait(query)
    return query


def test_each_sink_gets_all_rows(job, remote, tmp_path):
    remote.dataSource.register(DeltaStandIn)
    (tmp_path / "rows").mkdir()
    folder = str(tmp_path / "files")
    records = str(tmp_path / "records")
    database = functools.partial(sqlite3.connect, tmp_path / "d", check_same_thread=False)
    with contextlib.closing(database()) as connection:
        connection.execute('create table totals ("key", total, "rows")')
    writers: list[tuple[Any, tuple[Any, ...]]] = [
        (lambda w: w.foreach(EachRow(tmp_path / "rows")), ()),
        (lambda w: w.format("parquet").option("statelog.fileSink", "append"), (folder,)),
        (lambda w: w.format("memory").queryName("seen"), ()),
        (lambda w: w.format("console"), ()),
        (lambda w: w.format("delta"), (str(tmp_path / "delta"),)),
        (
            lambda w: w.foreachBatch(
                idempotent(lambda frame, batch: written_by_id(frame, batch, folder), records)
            ),
            (),
        ),
        (lambda w: w.foreachBatch(exactly_once(DatabaseSink(database, "totals"))), ()),
    ]
    model, expected = TotalsModel(), {}
    query = None
    for batch, (prepare, start) in enumerate(writers):
        rows = [(key, batch * 10 + key) for key in (1, 2, 3)]
        expected[batch] = model.apply(rows)
        job.source.add(rows)
        query = run(job, prepare(job.stream().writeStream), *start)
        assert query.lastBatch.batch_id == batch
    assert query is not None
    assert {path.name: int(path.read_text()) for path in (tmp_path / "rows").iterdir()} == {
        f"0-{key}": total for key, total, _ in expected[0]
    }
    assert in_order(remote.read.parquet(folder).collect()) == expected[1]
    assert in_order(remote.table("seen").collect()) == expected[2]
    from deltalake import DeltaTable

    table = DeltaTable(str(tmp_path / "delta"))
    assert (
        sorted(tuple(row.values()) for row in table.to_pyarrow_table().to_pylist()) == expected[4]
    )
    location = table.history()[0]["userMetadata"].partition("/")[0]
    assert table.transaction_version(f"{query.id}/{location}") == 4
    assert in_order(remote.read.parquet(f"{folder}/{query.id}").collect()) == expected[5]
    (record,) = (tmp_path / "records" / query.id).iterdir()
    assert DeliveredBatch.from_text(record.read_text(), where="").batch_id == 5
    with contextlib.closing(database()) as connection:
        assert sorted(connection.execute("select * from totals")) == expected[6]
        records = connection.execute("select writer, batch from statelog_batches").fetchall()
        assert [(query.id, 6)] == [
            (writer, DeliveredBatch.from_text(text, where="").batch_id) for writer, text in records
        ]
