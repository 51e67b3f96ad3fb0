"""Committed rows that wait for their sink are delivered by the names of their columns, or refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.spark.streams import BatchSource, wait

from statelog.errors import UsageError
from statelog.format.arrow_data import to_stream
from statelog.spark import StatefulProcessor, exactly_once, transform_with_state
from statelog.spark.driver.delivery import committed_rows

pytestmark = pytest.mark.timeout(600)

BEFORE = "k long, n long"


class BothOutputs(StatefulProcessor):
    """Returns the sum of each key, and emits it to a side output."""

    def __init__(self, side_columns: str) -> None:
        self.side_columns = side_columns

    def init(self, handle):
        self.side = handle.sideOutput("side", self.side_columns)

    def handleInputRows(self, key, rows, timerValues):
        n = sum(row.v for row in rows)
        self.side.emit(Row(k=key[0], n=n))
        yield Row(k=key[0], n=n)


class FailedJob:
    """A query whose sink failed after the commit of its batch; each start may have other columns."""

    def __init__(self, spark: SparkSession, folder: Path, keys: int) -> None:
        self.folder = folder
        self.source = BatchSource(spark, folder / "in", "k long, v long")
        self.source.add([(100 + number, 7) for number in range(keys)])
        self.rows = [{"k": 100 + number, "n": 7} for number in range(keys)]
        self.output: list[Any] = []
        self.side_output: list[Any] = []
        with pytest.raises(Exception, match="the sink is down"):
            self.start(BEFORE, BEFORE, fails=True)

    def start(self, columns: str, side_columns: str, *, fails: bool = False) -> None:
        self.output, self.side_output = [], []

        def sink(frame: DataFrame, batch_id: int) -> None:
            if fails:
                raise RuntimeError("the sink is down")
            self.output += [row.asDict() for row in frame.sort("k").collect()]

        def side_sink(frame: DataFrame, batch_id: int) -> None:
            self.side_output += [row.asDict() for row in frame.sort("k").collect()]

        frame = transform_with_state(
            self.source.frame().groupBy("k"),
            BothOutputs(side_columns),
            columns,
            "Update",
            "None",
            delivery="staged",
        )
        writer: Any = frame.writeStream.option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        writer = writer.foreachBatch(sink).sideOutput("side", side_sink)
        wait(writer.trigger(availableNow=True).start())


@pytest.mark.parametrize(
    ("keys", "columns", "row"),
    [
        (1, "n long, k long", {"n": 7, "k": 100}),
        (12_000, "n long, k long", {"n": 7, "k": 100}),
        (1, "x string, k long, n long", {"x": None, "k": 100, "n": 7}),  # added
        (1, "k long", {"k": 100}),  # removed
    ],
)
def test_rows_are_delivered_by_the_names_of_their_columns(spark, tmp_path, keys, columns, row):
    job = FailedJob(spark, tmp_path, keys)
    job.start(columns, columns)
    assert [row | {"k": 100 + number} for number in range(keys)] == job.output
    assert job.output == job.side_output
    assert list(row) == list(job.output[0])


def test_a_renamed_column_is_refused_until_delivery(spark, tmp_path):
    job = FailedJob(spark, tmp_path, 1)
    lists = r"k int64, n int64\).* now has \(.*k int64, m int64\)\. Start the query once"
    with pytest.raises(Exception, match=rf"UsageError: the output of micro-batch 0 .*{lists}"):
        job.start("k long, m long", BEFORE)
    assert [] == job.output
    side = "UsageError: side output 'side' of micro-batch 0"
    with pytest.raises(Exception, match=rf"{side} .*{lists}"):
        job.start(BEFORE, "k long, m long")
    assert [] == job.side_output
    job.start(BEFORE, BEFORE)
    assert job.rows == job.output == job.side_output


def test_two_columns_of_one_name_are_not_written(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", "k long, v long")
    source.add([(1, 7)])
    frame = transform_with_state(
        source.frame().groupBy("k"), BothOutputs(BEFORE), BEFORE, "Update", "None"
    )
    sink = exactly_once(_NoTarget())
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.foreachBatch(
        lambda frame, batch_id: sink(frame.selectExpr("k", "n AS K"), batch_id)
    )
    with pytest.raises(Exception, match="several columns with the same name: k, K"):
        wait(writer.trigger(availableNow=True).start())


class _NoTarget:
    """A sink that must not be written to."""

    def last_committed(self, writer: str) -> int | None:
        return None

    def write(self, batch: Any) -> None:
        raise AssertionError("it was written")

    def close(self) -> None:
        pass


def test_nested_fields_are_found_by_name_too():
    inner = pa.struct([("a", pa.int64()), ("b", pa.string())])
    table = pa.table({"k": [1], "s": pa.array([{"a": 2, "b": "x"}], inner)})
    data = to_stream(table)
    other = pa.struct([("b", pa.string()), ("a", pa.int64())])
    rows = committed_rows(data, pa.schema([("s", other), ("k", pa.int32())]), "the output")
    assert [{"s": {"b": "x", "a": 2}, "k": 1}] == rows.to_pylist()
    for changed in (
        pa.struct([("a", pa.int64())]),
        pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())]),
        pa.struct([("a", pa.int64()), ("c", pa.string())]),
        pa.int64(),
    ):
        with pytest.raises(UsageError, match=r"the output was committed .*struct"):
            committed_rows(data, pa.schema([("k", pa.int64()), ("s", changed)]), "the output")
    for columns in (["k", "m"], ["k", "k", "s"]):
        renamed = pa.schema([(name, pa.int64()) for name in columns])
        with pytest.raises(UsageError, match="now has"):
            committed_rows(data, renamed, "the output")
    not_null = pa.schema([*table.schema, pa.field("x", pa.int64(), nullable=False)])
    with pytest.raises(UsageError, match="x int64"):
        committed_rows(data, not_null, "the output")
    with pytest.raises(UsageError, match="k int8"):
        big = to_stream(pa.table({"k": [1000]}))
        committed_rows(big, pa.schema([("k", pa.int8())]), "the output")
