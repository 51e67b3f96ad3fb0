"""Rows are grouped by their key, each in order of arrival."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from statelog.extensions.columns import rows as module
from statelog.extensions.columns.rows import ColumnarInput, hash_order
from statelog.extensions.columns.slots import Keys
from statelog.spark.rows.layout import InputLayout
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.key_hash import hash_columns

ROWS = 20_000
RNG = np.random.default_rng(5)
COLUMNS = {
    "long": pa.array(RNG.integers(-50_000, 50_000, ROWS)),
    "int": pa.array(RNG.integers(0, 300, ROWS), pa.int32()),
    "one key": pa.array(np.zeros(ROWS, np.int64)),
    "distinct keys": pa.array(RNG.permutation(ROWS)),
    "boolean": pa.array(RNG.random(ROWS) < 0.5),
    "time": pa.array(RNG.integers(0, 999, ROWS), pa.timestamp("us")),
    "double": pa.array(RNG.choice([0.0, -0.0, 1.5, float("nan"), -2.0], ROWS)),
}


def schema_of(column: pa.Array) -> pa.Schema:
    return pa.schema([("key", column.type)])


def keyed(
    batches: Iterable[pa.RecordBatch], key: pa.Schema, *, is_distinct: bool = False
) -> tuple[Keys, pa.Table]:
    """Return the keys of an input and its rows, sorted by key."""
    layout = InputLayout(tuple(range(1, 1 + len(key))), 1 + len(key))
    columns = ColumnarInput(layout, KeyCodec(key), is_distinct=is_distinct)
    columns.read(batches)
    keys_and_rows = columns.keyed("UTC")
    assert keys_and_rows is not None
    return keys_and_rows


def read(column: pa.Array) -> tuple[Keys, pa.Table]:
    columns = [pa.array(np.zeros(len(column), np.int32)), column, pa.array(np.arange(len(column)))]
    batch = pa.RecordBatch.from_arrays(columns, names=["group", "key", "number"])
    return keyed([batch.slice(0, 7000), batch.slice(7000)], schema_of(column))


def text_of(key: Any) -> str:
    return repr(key + 0.0 if isinstance(key, float) else key)  # 0.0 and -0.0 are one key


def rows_by_key(column: pa.Array) -> dict[str, list[int]]:
    expected: dict[str, list[int]] = {}
    for number, key in enumerate(column.to_pylist()):
        expected.setdefault(text_of(key), []).append(number)
    return expected


@pytest.mark.parametrize("name", COLUMNS)
def test_the_rows_of_a_key_are_together_in_the_order_of_arrival(name: str) -> None:
    column = COLUMNS[name]
    assert hash_order([column], schema_of(column)) is not None
    keys, rows = read(column)
    numbers = rows["number"].to_numpy()
    assert rows_by_key(column) == {
        text_of(key): numbers[start:end].tolist()
        for key, start, end in zip(keys["key"].to_pylist(), keys.starts, keys.ends, strict=True)
    }
    assert keys.hashes.tolist() == hash_columns(keys.columns, keys.schema).tolist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, *range(ROWS)]),  # the hash of a null is that of a number, too
        pa.array([str(number) for number in range(ROWS)]),
        pa.array(range(100)),
    ],
    ids=["null", "text", "few"],
)
def test_where_the_hash_does_not_decide_there_is_no_order(column: pa.Array) -> None:
    assert hash_order([column], schema_of(column)) is None


def test_keys_with_similar_hashes_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array(RNG.integers(0, 2, ROWS))

    def alike(columns: list[pa.Array], _schema: pa.Schema) -> npt.NDArray[np.uint64]:
        hashes: npt.NDArray[np.uint64] = columns[0].to_numpy().astype(np.uint64)
        return hashes + np.uint64(1 << 40)

    monkeypatch.setattr(module, "hash_columns", alike)
    assert hash_order([column], schema_of(column)) is None
    keys, _ = read(column)
    assert sorted(keys.counts.tolist()) == sorted(map(len, rows_by_key(column).values()))
    # Rows that arrive by key are in order as they are.
    ordered = pa.array(np.sort(column.to_numpy()))
    order = hash_order([ordered], schema_of(ordered))
    assert order is not None
    assert order.rows.tolist() == list(range(ROWS))
    assert len(order.starts) == 2


WINDOW = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])


def batch_of_windows(numbers: list[int]) -> pa.RecordBatch:
    windows = [{"start": number, "end": number + 1} for number in numbers]
    columns = {
        "group": pa.array([number % 128 for number in numbers], pa.int32()),
        "window": pa.array(windows, WINDOW),
        "name": pa.array([f"k{number}" for number in numbers]),
        "part": pa.array([number * 2 for number in numbers]),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_distinct_keys_are_one_row_each_in_the_order_of_arrival() -> None:
    key = pa.schema([("window", WINDOW), ("name", pa.string())])
    batches = [batch_of_windows(numbers) for numbers in ([5, 3], [], [9])]
    keys, rows = keyed(batches, key, is_distinct=True)
    assert keys["name"].to_pylist() == ["k5", "k3", "k9"]
    assert rows.to_pydict() == {"part": [10, 6, 18]}
    assert keys.key_groups.tolist() == [5, 3, 9]
    assert keys.counts.tolist() == [1, 1, 1]
    # The same as when the keys are looked for.
    searched_keys, searched_rows = keyed(batches, key)
    assert searched_keys.table.equals(keys.table)
    assert searched_rows.equals(rows)
