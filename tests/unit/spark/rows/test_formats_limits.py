"""Rows beyond what one Arrow array can hold end with one error: what it is, the limit, the setting."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructType

from statelog.errors import CapacityError
from statelog.extensions.columns.rows import ColumnarInput, ColumnarOutput
from statelog.extensions.recordings import seen_keys
from statelog.extensions.recordings.seen_keys import _numbered
from statelog.format import arrow_limits
from statelog.spark.jvm.frames import _filled
from statelog.spark.rows.key_order import KeptRows
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.pandas_input import FrameInput, PandasSettings
from statelog.spark.rows.pandas_output import FrameOutput
from statelog.spark.rows.spark_row import RowInput, RowOutput
from statelog.spark.worker.large_input import _rebatched
from statelog.state.encoding.values import KeyCodec

SETTINGS = PandasSettings.defaults()
SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string())])
COLUMNS = StructType().add("k", LongType()).add("text", StringType())
TEXT = "x" * 40
LAYOUT, CODEC = InputLayout((1,), 1), KeyCodec(pa.schema([("k", pa.int64())]))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_limits, "ARRAY_BYTES", 100)


def batches(count: int) -> list[pa.RecordBatch]:
    """Return batches of one row each."""
    return [
        pa.RecordBatch.from_arrays(
            [pa.array([0], pa.int32()), pa.array([row]), pa.array([TEXT])],
            names=["__key_group", "k", "text"],
        )
        for row in range(count)
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RowInput(LAYOUT, CODEC),
        lambda: FrameInput(LAYOUT, CODEC, SETTINGS),
        lambda: ColumnarInput(LAYOUT, CODEC),
    ],
)
def test_the_rows_of_a_task_are_refused_by_their_column(make: Callable[[], Any]) -> None:
    make().read(batches(2))
    with pytest.raises(CapacityError, match=r"the input rows, column 'text'.*GiB.*`tasks`"):
        make().read(batches(3))


def _rows(output: RowOutput, count: int) -> None:
    output.extend(Row(k=row, text=TEXT) for row in range(count))


def _frames(output: FrameOutput, count: int) -> None:
    for row in range(count):  # of two forms, which are put in order again
        frame = pd.DataFrame({"k": [row], "text": [TEXT]})
        output.extend([frame if row % 2 else frame[["text", "k"]]])


def _tables(output: ColumnarOutput, count: int) -> None:
    output.extend(pa.table({"k": [row], "text": [TEXT]}) for row in range(count))


@pytest.mark.parametrize(
    ("make", "fill"),
    [
        (lambda: RowOutput(SCHEMA, 0), _rows),
        (lambda: FrameOutput(SCHEMA, COLUMNS, 0, SETTINGS), _frames),
        (lambda: ColumnarOutput(SCHEMA, 0), _tables),
    ],
)
def test_the_output_of_a_task_is_refused_by_its_column(
    make: Callable[[], Any], fill: Callable[[Any, int], None]
) -> None:
    output = make()
    fill(output, 2)
    assert [0, 1] == output.batch().column("k").to_pylist()
    output = make()
    fill(output, 3)
    with pytest.raises(CapacityError, match=r"output,? column 'text'.*GiB.*`tasks`"):
        output.batch()


def test_a_table_of_an_output_is_not_cut() -> None:
    table = pa.table({"k": [0, 1, 2], "text": pa.chunked_array([[TEXT, TEXT], [TEXT]])})
    with pytest.raises(CapacityError, match="the output, field 'text'"):
        ColumnarOutput(SCHEMA, 0).extend([table])


def test_rows_that_are_recorded_may_be_of_a_larger_input() -> None:
    kept_rows = KeptRows()
    kept_rows.batches += batches(9)
    rows = seen_keys._taken(kept_rows, np.array([8, 0, 4]))
    assert [8, 0, 4] == rows.column("k").to_pylist()
    numbered = _numbered([(5, rows)], {5: 1})
    assert [1, 1, 1] == numbered.column(0).to_pylist()
    assert [TEXT] * 3 == numbered.column("text").to_pylist()


def test_input_that_is_cut_again_is_rejected_by_its_column() -> None:
    assert [2, 1] == [batch.num_rows for batch in _rebatched(batches(3), 2)]
    with pytest.raises(CapacityError, match="the input rows, column 'text'"):
        list(_rebatched(batches(3), 3))


def test_a_table_is_sent_to_spark_in_batches_that_fit() -> None:
    table = pa.Table.from_batches(batches(7))
    sent = _filled(arrow_limits.batches_of(table))
    assert all(batch.num_rows <= 2 for batch in sent)
    assert table.equals(pa.Table.from_batches(sent))
    assert [] == _filled(arrow_limits.batches_of(table.slice(0, 0)))
