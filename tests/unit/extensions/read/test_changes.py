"""The columnar comparison of state against a comparison of Python values, row by row."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.locations.histories import History

from statelog.extensions.read import joining
from statelog.extensions.read.changes import Differences
from statelog.extensions.read.joining import comparable, equal_rows, matching_rows
from statelog.extensions.read.location_state import LocationState
from statelog.state.reader.checkpoint_chain import as_of_ms
from statelog.testing.faulty_store import FaultyStore

Values = Callable[[random.Random], Any]
"""Makes a value of a type."""

FLOATS = [0.0, -0.0, math.nan, 1.5, math.inf, -math.nan]
LEAVES: list[tuple[pa.DataType, Values]] = [
    (pa.int32(), lambda rng: rng.randrange(3)), (pa.int64(), lambda rng: rng.randrange(3)),
    (pa.float32(), lambda rng: rng.choice(FLOATS)), (pa.float64(), lambda rng: rng.choice(FLOATS)),
    (pa.string(), lambda rng: rng.choice(["", "a", "ä"])),
    (pa.binary(), lambda rng: rng.choice([b"", b"a"])),
    (pa.bool_(), lambda rng: rng.random() < 0.5), (pa.date32(), lambda rng: rng.randrange(3)),
    (pa.timestamp("us", "UTC"), lambda rng: rng.randrange(3)),
    (pa.decimal128(20, 2), lambda rng: rng.randrange(3)), (pa.null(), lambda rng: None),
]  # fmt: skip


def a_type(rng: random.Random, depth: int) -> tuple[pa.DataType, Values]:
    """Return a random type and a maker of its values."""
    shape = rng.choice(["leaf", "struct", "list", "map"]) if depth else "leaf"
    if shape == "leaf":
        kind, plain = rng.choice(LEAVES)
        return kind, _often_null(plain)
    if shape == "struct":
        names = rng.sample("abc", rng.randrange(1, 4))
        parts = {name: a_type(rng, depth - 1) for name in names}
        fields = [pa.field(name, kind) for name, (kind, _) in parts.items()]
        return pa.struct(fields), _often_null(
            lambda rng: {name: make(rng) for name, (_, make) in parts.items()}
        )
    kind, make = a_type(rng, depth - 1)
    if shape == "list":
        return pa.list_(kind), _often_null(lambda rng: [make(rng) for _ in range(rng.randrange(3))])
    return pa.map_(pa.string(), kind), _often_null(
        lambda rng: [(rng.choice("xy"), make(rng)) for _ in range(rng.randrange(3))]
    )


def _often_null(make: Values) -> Values:
    return lambda rng: None if rng.random() < 0.25 else make(rng)


def a_column(rng: random.Random, kind: pa.DataType, make: Values, rows: int) -> pa.Array:
    """Return a column, sometimes a slice of a longer one."""
    before = rng.randrange(3)
    column = pa.array([make(rng) for _ in range(rows + before + 1)], kind)
    return column.slice(before, rows)


@pytest.mark.parametrize("seed", range(150))
def test_columns_are_equal_where_their_python_values_are(seed: int) -> None:
    rng = random.Random(f"equal {seed}")
    rows = rng.choice([0, 1, 40])
    kind, make = a_type(rng, 3)
    left = a_column(rng, kind, make, rows)
    # The other schema: the same type, or another one; a removed field is the common case.
    if rng.random() < 0.3:
        kind, make = a_type(rng, 3)
    elif pa.types.is_struct(kind) and kind.num_fields > 1 and rng.random() < 0.5:
        whole = make
        kept = list(kind)[1:]
        kind = pa.struct(kept)

        def make(rng: random.Random) -> Any:
            value = whole(rng)
            return None if value is None else {field.name: value[field.name] for field in kept}

    right = a_column(rng, kind, make, rows)
    if rng.random() < 0.5 and left.type == right.type:  # equal in most rows
        at = [row if rng.random() < 0.8 else rows + row for row in range(rows)]
        right = pa.concat_arrays([left, right]).take(pa.array(at, pa.int64()))
    pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
    wanted = [comparable(before) == comparable(after) for before, after in pairs]
    assert wanted == equal_rows(left, right).tolist()


def test_what_equality_of_state_means() -> None:
    def same(one: Any, other: Any, kind: pa.DataType, second: pa.DataType | None = None) -> bool:
        (is_same,) = equal_rows(pa.array([one], kind), pa.array([other], second or kind)).tolist()
        return bool(is_same)

    struct = pa.struct([("a", pa.int64()), ("b", pa.float64())])
    assert same({"a": 1, "b": None}, {"a": 1}, struct, pa.struct([("a", pa.int64())]))
    assert not same({"a": 1, "b": 0.0}, {"a": 1}, struct, pa.struct([("a", pa.int64())]))
    assert same({"a": 1, "b": math.nan}, {"a": 1, "b": math.nan}, struct)
    assert not same({"a": 1, "b": 0.0}, {"a": 1, "b": -0.0}, struct)
    assert not same({"a": None, "b": None}, None, struct)
    assert same(1, 1, pa.int32(), pa.int64())
    assert not same([1, 2], [2, 1], pa.list_(pa.int64()))
    assert not same([], None, pa.list_(pa.int64()))


@pytest.mark.parametrize("seed", range(40))
def test_keys_are_matched_if_hashes_collide(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"join {seed}")
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    if seed % 2:
        monkeypatch.setattr(
            joining, "hash_columns", lambda columns, _: np.zeros(len(columns[0]), np.uint64)
        )
    every = [(number, text) for number in (None, 1, 2, 3) for text in (None, "", "x")]
    sides = [rng.sample(every, rng.randrange(len(every) + 1)) for _ in range(2)]
    left, right = (
        [pa.array([key[at] for key in side], field.type) for at, field in enumerate(schema)]
        for side in sides
    )
    wanted = [sides[1].index(key) if key in sides[1] else -1 for key in sides[0]]
    assert wanted == matching_rows(left, right, schema).tolist()


def reference(
    before: pa.Table, after: pa.Table, width: int, names: list[str]
) -> list[tuple[Any, ...]]:
    """Return (change, key, old cells, new cells), as a comparison of dictionaries finds them."""

    def cells(table: pa.Table) -> dict[Any, Any]:
        keys = zip(
            *(map(comparable, table.column(at).to_pylist()) for at in range(width)), strict=True
        )
        states = [
            table.column(name).to_pylist()
            if name in table.column_names
            else [None] * table.num_rows
            for name in names
        ]
        by_key = dict(zip(keys, zip(*states, strict=True), strict=True))
        return {
            key: cells for key, cells in by_key.items() if any(cell is not None for cell in cells)
        }

    olds, news = cells(before), cells(after)
    rows = []
    for key in {**olds, **news}:
        old, new = olds.get(key), news.get(key)
        if old is not None and new is not None and comparable(old) == comparable(new):
            continue
        change = "insert" if old is None else "delete" if new is None else "update"
        empty = (None,) * len(names)
        rows.append((change, key, comparable(old or empty), comparable(new or empty)))
    return sorted(rows, key=repr)


@pytest.mark.parametrize("seed", range(4))
def test_differences_are_those_of_a_comparison_of_dictionaries(seed: int) -> None:
    history = History(f"differences {seed}", FaultyStore(), retained=4)
    history.run(8)
    state = LocationState(history.store)
    retained = list(history.expected)[-4:]
    count = 0
    for one, other in ((0, 1), (1, 0), (0, 3), (3, 2), (2, 2)):
        readers = state.reader(retained[one]), state.reader(retained[other])
        times = [as_of_ms(reader.checkpoint) for reader in readers]
        names = [variable.name for reader in readers for variable in reader.variables()]
        names = list(dict.fromkeys(names))
        table = Differences(*readers, names).table(*times)
        sides = [
            pa.Table.from_batches(reader.keys(now_ms=now_ms), schema=reader.keys_schema())
            for reader, now_ms in zip(readers, times, strict=True)
        ]
        width = 3  # the key group and the two columns of the key
        wanted = reference(*sides, width, names)
        got = []
        for row in table.to_pylist():
            values = list(row.values())
            key = tuple(map(comparable, values[1 : 1 + width]))
            cells = values[1 + width :]
            old, new = cells[: len(names)], cells[len(names) :]
            got.append((row["change"], key, comparable(old), comparable(new)))
        assert wanted == sorted(got, key=repr)
        count += len(got)
    assert count > 20
