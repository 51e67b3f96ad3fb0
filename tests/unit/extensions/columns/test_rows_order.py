"""Rows sorted by the hash of their key are those of each key, in the order of arrival."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from statelog.extensions.columns import rows as module
from statelog.extensions.columns.rows import ColumnarInput, hash_order
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


def read(column: pa.Array) -> ColumnarInput:
    columns = [pa.array(np.zeros(len(column), np.int32)), column, pa.array(np.arange(len(column)))]
    batch = pa.RecordBatch.from_arrays(columns, names=["group", "key", "number"])
    keyed_input = ColumnarInput(InputLayout((1,), 1), KeyCodec(schema_of(column)))
    keyed_input.read([batch.slice(0, 7000), batch.slice(7000)])
    return keyed_input


def rows_by_key(column: pa.Array) -> dict[str, list[int]]:
    expected: dict[str, list[int]] = {}
    for number, key in enumerate(column.to_pylist()):
        expected.setdefault(repr(key + 0.0) if isinstance(key, float) else repr(key), []).append(
            number
        )
    return expected


@pytest.mark.parametrize("name", COLUMNS)
def test_the_rows_of_a_key_are_together_in_the_order_of_arrival(name: str) -> None:
    column = COLUMNS[name]
    assert hash_order([column], schema_of(column)) is not None
    keyed = read(column).keyed("UTC")
    assert keyed is not None
    keys, rows = keyed
    numbers = rows["number"].to_numpy()
    got = {}
    for key, start, end in zip(keys["key"].to_pylist(), keys.starts, keys.ends, strict=True):
        got[repr(key + 0.0) if isinstance(key, float) else repr(key)] = numbers[start:end].tolist()
    assert rows_by_key(column) == got
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
    keyed = read(column).keyed("UTC")
    assert keyed is not None
    assert sorted(keyed[0].counts.tolist()) == sorted(map(len, rows_by_key(column).values()))
    # Rows that arrive by key are in order as they are.
    ordered = pa.array(np.sort(column.to_numpy()))
    order = hash_order([ordered], schema_of(ordered))
    assert order is not None
    assert order.rows.tolist() == list(range(ROWS))
    assert len(order.starts) == 2
