"""An index of slots is a dict from keys to numbers, whatever the types and the hashes."""

import datetime as dt
import decimal
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.state.encoding.values import KeyCodec
from statelog.state.keys import entry_heap, slot_index
from statelog.state.keys.key_groups import hash_of
from statelog.state.keys.key_hash import Hashes, hash_columns, is_one_to_one
from statelog.state.keys.slot_index import SlotIndex

Key = tuple[Any, ...]
Hasher = Callable[[list[pa.Array], pa.Schema], Hashes]

_NANS = [
    struct.unpack("<d", bits)[0] for bits in (b"\1\0\0\0\0\0\xf8\x7f", b"\0\0\0\0\0\0\xf8\xff")
]
_FLOATS = st.one_of(st.sampled_from([0.0, -0.0, math.nan, math.inf, *_NANS]), st.floats(width=32))
_FEW = st.integers(-4, 4)
_PAIR = pa.struct([("a", pa.int32()), ("b", pa.float64())])

COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.one_of(_FEW, st.integers(-(2**63), 2**63 - 1))),
    (pa.int8(), _FEW),
    (pa.bool_(), st.booleans()),
    (pa.float64(), _FLOATS),
    (pa.float32(), _FLOATS),
    (pa.string(), st.text("aé", max_size=3)),
    (pa.large_string(), st.text("ab", max_size=2)),
    (pa.binary(), st.binary(max_size=2)),
    (pa.date32(), st.dates(min_value=dt.date(2026, 1, 1), max_value=dt.date(2026, 1, 9))),
    (pa.timestamp("us"), st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 0, 1))),
    (pa.decimal128(6, 2), _FEW.map(decimal.Decimal)),
    (pa.decimal128(30, 2), _FEW.map(decimal.Decimal)),
    (pa.null(), st.none()),
    (_PAIR, st.fixed_dictionaries({"a": _FEW, "b": _FLOATS})),
    (pa.list_(pa.float64()), st.lists(st.one_of(st.none(), _FLOATS), max_size=2)),
]


def one_hash(columns: list[pa.Array], _schema: pa.Schema) -> Hashes:
    return np.full(len(columns[0]), 0xFFFF_0000_0000_002A, np.uint64)


def few_hashes(columns: list[pa.Array], schema: pa.Schema) -> Hashes:
    """Three hashes in neighbouring cells, the last of them at the end of the table."""
    return hash_columns(columns, schema) % np.uint64(3) - np.uint64(2)


def crowded(columns: list[pa.Array], schema: pa.Schema) -> Hashes:
    """Different hashes for different keys as far as possible, with the same upper bits."""
    return hash_columns(columns, schema) | np.uint64(0xFFFF << 48)


class Model:
    """A dict of the keys as tables hold them, beside the index."""

    def __init__(self, schema: pa.Schema, hasher: Hasher = hash_columns, capacity: int = 0) -> None:
        self.schema = schema
        self.codec = KeyCodec(schema)
        self.hasher = hasher
        self.index = SlotIndex(schema, capacity)
        self.slots: dict[Key, int] = {}
        self.entries: list[tuple[Key, int, int]] = []  # by slot: key as given, hash, key group

    def columns(self, keys: list[Key]) -> list[pa.Array]:
        # Behind a row that is sliced off: arrays of a task begin anywhere in their buffers.
        filler = [(None,) * len(self.schema)]
        rows = list(zip(*(filler + keys), strict=True))
        return [pa.array(row, field.type)[1:] for row, field in zip(rows, self.schema, strict=True)]

    def decoded(self, keys: list[Key]) -> list[Key]:
        return self.codec.decode(self.columns(keys))

    def find(self, keys: list[Key]) -> None:
        columns = self.columns(keys)
        slots = self.index.find(columns, self.hasher(columns, self.schema))
        assert slots.dtype == np.int64
        assert [self.slots.get(key, -1) for key in self.decoded(keys)] == slots.tolist()

    def add(self, keys: list[Key]) -> None:
        distinct = dict(zip(reversed(self.decoded(keys)), reversed(keys), strict=True))
        keys = list(distinct.values())
        columns = self.columns(keys)
        hashes = self.hasher(columns, self.schema)
        groups = np.array([(7 * index + len(keys)) % 32768 for index in range(len(keys))], np.int32)
        added = self.index.add(columns, hashes, groups)
        for index, key in enumerate(distinct):
            if self.slots.setdefault(key, len(self.slots)) == len(self.entries):
                self.entries.append((key, int(hashes[index]), int(groups[index])))
        assert [self.slots[key] for key in distinct] == added.tolist()
        assert len(self.slots) == len(self.index)

    def keep(self, slots: list[int]) -> None:
        before = self.index
        self.index = before.keep(np.array(slots, np.int64))
        assert len(self.slots) == len(before)
        self.entries = [self.entries[slot] for slot in slots]
        self.slots = {key: slot for slot, (key, _, _) in enumerate(self.entries)}

    def check(self, slots: list[int]) -> None:
        rows = np.array(slots, np.int64)
        columns = self.index.keys(rows)
        assert [field.type for field in self.schema] == [column.type for column in columns]
        assert [self.entries[slot][0] for slot in slots] == self.codec.decode(columns)
        assert [self.entries[slot][1] for slot in slots] == self.index.hashes(rows).tolist()
        groups = self.index.key_groups(rows)
        assert groups.dtype == np.int32
        assert [self.entries[slot][2] for slot in slots] == groups.tolist()


@st.composite
def schemas(draw: st.DrawFn) -> tuple[pa.Schema, st.SearchStrategy[Key]]:
    chosen = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3))
    schema = pa.schema([(f"c{index}", kind) for index, (kind, _) in enumerate(chosen)])
    return schema, st.tuples(*(st.one_of(st.none(), values) for _, values in chosen))


def run(data: st.DataObject, model: Model, keys: st.SearchStrategy[Key]) -> None:
    batches = st.lists(keys, max_size=30)
    for step in data.draw(st.lists(st.sampled_from(["find", "add", "add", "keep"]), max_size=8)):
        if step == "keep":
            order = data.draw(st.permutations(range(len(model.entries))))
            model.keep(order[: data.draw(st.integers(0, len(order)))])
        else:
            getattr(model, step)(data.draw(batches))
    every = list(range(len(model.entries)))
    model.check(every)
    if every:
        model.check(data.draw(st.lists(st.sampled_from(every), max_size=9)))
    assert (
        every
        == model.index.find(
            model.index.keys(np.array(every, np.int64)),
            model.index.hashes(np.array(every, np.int64)),
        ).tolist()
    )


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_an_index_is_a_dict(data):
    schema, keys = data.draw(schemas())
    run(data, Model(schema, capacity=data.draw(st.sampled_from([0, 1, 1000]))), keys)


@pytest.mark.parametrize("hasher", [one_hash, few_hashes, crowded])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_keys_that_share_hashes_are_told_apart(data, hasher):
    schema, keys = data.draw(schemas().filter(lambda drawn: not is_one_to_one(drawn[0])))
    run(data, Model(schema, hasher), keys)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_chunks_that_may_not_be_merged_are_read_as_one(data):
    schema, keys = data.draw(schemas())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_heap, "_CHUNK_BYTES", 0)
        patch.setattr(slot_index, "_BLOCK", 3)
        run(data, Model(schema), keys)


def batch(kind: str, numbers: np.ndarray[Any, Any]) -> tuple[list[pa.Array], pa.Schema]:
    number = pa.array(numbers)
    text = number.cast(pa.string())
    columns = {"int": [number], "text": [text], "both": [text, number]}[kind]
    return columns, pa.schema([(f"c{index}", column.type) for index, column in enumerate(columns)])


@pytest.mark.parametrize("kind", ["int", "text", "both"])
def test_many_batches_grow_an_index_over_many_doublings(kind):
    rng = np.random.default_rng(7)
    _, schema = batch(kind, np.arange(0))
    index = SlotIndex(schema)
    slot_of = np.full(300_000, -1)
    for _ in range(40):
        numbers = rng.choice(len(slot_of), rng.integers(1, 20_000), replace=False)
        columns, _ = batch(kind, numbers)
        hashes = hash_columns(columns, schema)
        assert slot_of[numbers].tolist() == index.find(columns, hashes).tolist()
        new = slot_of[numbers] < 0
        slot_of[numbers[new]] = len(index) + np.arange(np.count_nonzero(new))
        slots = index.add(columns, hashes, (numbers % 128).astype(np.int32))
        assert slot_of[numbers].tolist() == slots.tolist()
    assert len(index) == np.count_nonzero(slot_of >= 0) > 100_000
    present = np.flatnonzero(slot_of >= 0)
    assert present.tolist() == index.keys(slot_of[present])[0].cast(pa.int64()).to_pylist()
    assert (present % 128).tolist() == index.key_groups(slot_of[present]).tolist()
    assert index.nbytes < 100 * len(index)


def test_keys_of_one_key_group_are_spread_over_the_table():
    schema = pa.schema([("c", pa.int64())])
    column = pa.array(np.arange(400_000))
    hashes = hash_columns([column], schema)
    of_group = np.flatnonzero(hashes % np.uint64(128) == 3)
    index = SlotIndex(schema)
    keys = [column.take(pa.array(of_group))]
    index.add(keys, hashes[of_group], np.full(len(of_group), 3, np.int32))
    # Each key is close to the cell where its search starts.
    _, cells = index._search(keys, hashes[of_group])
    assert np.mean(cells - index._home(hashes[of_group])) < 1


def test_a_null_and_the_number_with_its_hash_are_two_keys():
    schema = pa.schema([("c", pa.int64())])
    number = 7_997_738_013_315_500_161  # by undoing the hash of a long step by step
    assert 42 == hash_of((number,), schema) == hash_of((None,), schema)
    column = pa.array([None, number], pa.int64())
    index = SlotIndex(schema)
    hashes = hash_columns([column], schema)
    assert [-1, -1] == index.find([column], hashes).tolist()
    assert [0] == index.add([column[1:]], hashes[1:], np.zeros(1, np.int32)).tolist()
    assert [-1, 0] == index.find([column], hashes).tolist()
    assert [1, 0] == index.add([column], hashes, np.zeros(2, np.int32)).tolist()
    assert [number, None] == index.keys(np.arange(2))[0].to_pylist()


@pytest.mark.parametrize("kind", [kind for kind, _ in COLUMNS], ids=str)
def test_only_hashes_of_one_column_of_up_to_64_bits_stand_for_the_key(kind):
    long = pa.types.is_nested(kind) or (pa.types.is_decimal(kind) and kind.precision > 18)
    long = long or str(kind).removeprefix("large_") in ("string", "binary")
    assert is_one_to_one(pa.schema([("c", kind)])) is not long
    assert not is_one_to_one(pa.schema([("c", kind), ("d", pa.int8())]))


def test_a_key_of_another_type_leaves_the_index_as_it_was():
    schema = pa.schema([("c", pa.int64())])
    index = SlotIndex(schema)
    column = pa.array(["x"])
    with pytest.raises(pa.ArrowInvalid):
        index.add([column], np.array([5], np.uint64), np.zeros(1, np.int32))
    assert 0 == len(index)
    assert [-1] == index.find([pa.array([1])], np.array([5], np.uint64)).tolist()


def test_the_size_covers_table_hashes_and_keys():
    columns, schema = batch("text", np.arange(100_000))
    empty = SlotIndex(schema).nbytes
    index = SlotIndex(schema)
    index.add(columns, hash_columns(columns, schema), np.zeros(100_000, np.int32))
    assert empty < 5_000
    assert columns[0].nbytes + 100_000 * (8 + 2 + 8) <= index.nbytes < 100_000 * 50
