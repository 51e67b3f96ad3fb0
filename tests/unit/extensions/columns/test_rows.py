"""Rows of which each has its own key are taken as they are."""

import numpy as np
import pyarrow as pa

from statelog.extensions.columns.rows import ColumnarInput
from statelog.spark.rows.layout import InputLayout
from statelog.state.encoding.values import KeyCodec

WINDOW = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])
KEY = pa.schema([("window", WINDOW), ("name", pa.string())])


def batch(numbers: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "group": pa.array([number % 128 for number in numbers], pa.int32()),
            "window": pa.array(
                [{"start": number, "end": number + 1} for number in numbers], WINDOW
            ),
            "name": pa.array([f"k{number}" for number in numbers]),
            "part": pa.array([number * 2 for number in numbers]),
        }
    )


def test_distinct_keys_are_one_row_each_in_the_order_of_arrival() -> None:
    numbers = [[5, 3], [], [9]]
    read = ColumnarInput(InputLayout((1, 2), 3), KeyCodec(KEY), is_distinct=True)
    read.read(map(batch, numbers))
    keyed = read.keyed("UTC")
    assert keyed is not None
    keys, rows = keyed
    assert keys["name"].to_pylist() == ["k5", "k3", "k9"]
    assert rows.column_names == ["part"]
    assert rows["part"].to_pylist() == [10, 6, 18]
    assert keys.key_groups.tolist() == [5, 3, 9]
    assert np.array_equal(keys.counts, [1, 1, 1])
    # The same as when the keys are looked for.
    other = ColumnarInput(InputLayout((1, 2), 3), KeyCodec(KEY))
    other.read(map(batch, numbers))
    searched = other.keyed("UTC")
    assert searched is not None
    assert searched[0].table.equals(keys.table)
    assert searched[1].equals(rows)
