"""The columnar comparison of state against a comparison of Python values, row by row."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.locations.histories import History

from statelog.errors import CapacityError
from statelog.extensions.read import joining
from statelog.extensions.read.changes import Differences
from statelog.extensions.read.joining import (
    comparable,
    equal_rows,
    hash_order,
    matching_rows,
    numbered,
    stable_order,
)
from statelog.extensions.read.location_state import LocationState
from statelog.format import arrow_limits
from statelog.state.reader import StateReader
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
        return kind, often_null(plain)
    if shape == "struct":
        names = rng.sample("abc", rng.randrange(1, 4))
        parts = {name: a_type(rng, depth - 1) for name in names}
        fields = [pa.field(name, kind) for name, (kind, _) in parts.items()]
        return pa.struct(fields), often_null(
            lambda rng: {name: make(rng) for name, (_, make) in parts.items()}
        )
    kind, make = a_type(rng, depth - 1)
    if shape == "list":
        return pa.list_(kind), often_null(lambda rng: [make(rng) for _ in range(rng.randrange(3))])
    return pa.map_(pa.string(), kind), often_null(
        lambda rng: [(rng.choice("xy"), make(rng)) for _ in range(rng.randrange(3))]
    )


def often_null(make: Values) -> Values:
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
    first = a_column(rng, kind, make, rows)
    # The other schema: the same type, or another one; a removed field is the common case.
    if rng.random() < 0.3:
        kind, make = a_type(rng, 3)
    elif pa.types.is_struct(kind) and kind.num_fields > 1 and rng.random() < 0.5:
        whole = make
        others = list(kind)[1:]
        kind = pa.struct(others)

        def make(rng: random.Random) -> Any:
            value = whole(rng)
            return None if value is None else {field.name: value[field.name] for field in others}

    second = a_column(rng, kind, make, rows)
    if rng.random() < 0.5 and first.type == second.type:  # equal in most rows
        chosen = [row if rng.random() < 0.8 else rows + row for row in range(rows)]
        second = pa.concat_arrays([first, second]).take(pa.array(chosen, pa.int64()))
    pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
    expected = [comparable(before) == comparable(after) for before, after in pairs]
    assert expected == equal_rows(first, second).tolist()


def test_what_equality_of_state_means() -> None:
    def same(before: Any, after: Any, kind: pa.DataType, new: pa.DataType | None = None) -> bool:
        (is_same,) = equal_rows(pa.array([before], kind), pa.array([after], new or kind)).tolist()
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
    columns = [
        [pa.array([key[at] for key in side], field.type) for at, field in enumerate(schema)]
        for side in sides
    ]
    expected = [sides[1].index(key) if key in sides[1] else -1 for key in sides[0]]
    assert expected == matching_rows(*columns, schema).tolist()


def reference(
    before: pa.Table, after: pa.Table, width: int, names: list[str]
) -> list[tuple[Any, ...]]:
    """Return (change, key, old cells, new cells), as a comparison of dictionaries finds them."""
    empty = (None,) * len(names)

    def states_by_key(table: pa.Table) -> dict[Any, Any]:
        by_key = {}
        for row in table.to_pylist():
            cells = tuple(row.get(name) for name in names)
            if cells != empty:
                by_key[tuple(map(comparable, [*row.values()][:width]))] = cells
        return by_key

    olds, news = states_by_key(before), states_by_key(after)
    rows = []
    for key in {**olds, **news}:
        old, new = comparable(olds.get(key, empty)), comparable(news.get(key, empty))
        if old == new:
            continue
        change = "insert" if key not in olds else "delete" if key not in news else "update"
        rows.append((change, key, old, new))
    return sorted(rows, key=repr)


@pytest.mark.parametrize("seed", range(4))
def test_differences_are_those_of_a_comparison_of_dictionaries(seed: int) -> None:
    history = History(f"differences {seed}", FaultyStore(), retained=4)
    history.run(8)
    state = LocationState(history.store)
    retained = list(history.expected)[-4:]
    count = 0
    for before, after in ((0, 1), (1, 0), (0, 3), (3, 2), (2, 2)):
        readers = state.reader(retained[before]), state.reader(retained[after])
        times = [as_of_ms(reader.checkpoint) for reader in readers]
        variables = [variable.name for reader in readers for variable in reader.variables()]
        names = list(dict.fromkeys(variables))
        table = Differences(*readers, names).table(*times)
        sides = [
            pa.Table.from_batches(reader.keys(now_ms=now_ms), schema=reader.keys_schema())
            for reader, now_ms in zip(readers, times, strict=True)
        ]
        width = 3  # the key group and the two columns of the key
        got = []
        for row in table.to_pylist():
            values = list(row.values())
            key = tuple(map(comparable, values[1 : 1 + width]))
            cells = values[1 + width :]
            old, new = cells[: len(names)], cells[len(names) :]
            got.append((row["change"], key, comparable(old), comparable(new)))
        assert reference(*sides, width, names) == sorted(got, key=repr)
        count += len(got)
    assert count > 20


@pytest.mark.parametrize("seed", range(4))
def test_state_and_differences_are_the_same_with_small_arrays(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one Arrow array cannot hold is in several, or the error says what is too large."""
    history = History(f"small arrays {seed}", FaultyStore(), retained=4)
    history.run(6)
    ids = list(history.expected)[-4:]

    def readers() -> tuple[StateReader, StateReader]:
        state = LocationState(history.store)
        return state.reader(ids[0]), state.reader(ids[-1])

    oldest, newest = readers()
    names = [variable.name for variable in newest.variables()]
    times = [as_of_ms(reader.checkpoint) for reader in (oldest, newest)]
    tables = [newest.table(name) for name in names]
    differences = Differences(oldest, newest, names).table(*times).sort_by("key_group")
    refused = 0
    for limit in (60, 45, 30):
        monkeypatch.setattr(arrow_limits, "ARRAY_BYTES", limit)
        oldest, newest = readers()
        assert tables == [newest.table(name) for name in names]
        try:
            small = Differences(oldest, newest, names).table(*times)
            assert differences.equals(small.sort_by("key_group"))
        except CapacityError as error:
            assert "the state of one key group, column" in str(error)
            refused += 1
    assert refused < 3


@pytest.mark.parametrize("seed", range(30))
def test_orders_are_those_of_a_stable_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = int(rng.integers(0, 300))
    most = int(rng.choice([1, 5, 1000, 2**62]))
    numbers = rng.integers(0, most, length)
    assert np.argsort(numbers, kind="stable").tolist() == stable_order(numbers).tolist()
    distinct, index = numbered(numbers)
    expected = np.unique(numbers, return_inverse=True)
    assert [order.tolist() for order in expected] == [distinct.tolist(), index.tolist()]
    # Few upper bits, so that many hashes differ only where the position is packed.
    hashes = rng.integers(0, 2, length).astype(np.uint64) << np.uint64(63)
    hashes |= rng.integers(0, 4, length).astype(np.uint64)
    assert np.argsort(hashes, kind="stable").tolist() == hash_order(hashes).tolist()
