"""The hash of whole key columns is the hash of each key, and that is Spark's."""

import datetime as dt
import decimal
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.values.key_group_vectors import TYPES, VECTORS, key_of

from statelog.errors import UsageError
from statelog.state.keys.key_groups import hash_of, key_group_of, xxhash64_bytes
from statelog.state.keys.key_hash import hash_columns


def hashes(keys: list[tuple[Any, ...]], schema: pa.Schema) -> list[int]:
    columns = [
        pa.array([key[index] for key in keys], field.type) for index, field in enumerate(schema)
    ]
    return hash_columns(columns, schema).view(np.int64).tolist()


_DECIMAL = decimal.Decimal
COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text(max_size=70)),
    (pa.binary(), st.binary(max_size=100)),
    (pa.date32(), st.dates()),
    (
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(dt.UTC), min_value=dt.datetime(2, 1, 1)),
    ),
    (pa.decimal128(10, 2), st.integers(-(10**9), 10**9).map(lambda n: _DECIMAL(n).scaleb(-2))),
    (pa.decimal128(38, 4), st.integers(-(10**30), 10**30).map(lambda n: _DECIMAL(n).scaleb(-4))),
]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_columns_hash_as_their_keys_do(data):
    chosen = data.draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3))
    schema = pa.schema([(f"c{index}", kind) for index, (kind, _) in enumerate(chosen)])
    keys = data.draw(st.lists(st.tuples(*(st.none() | values for _, values in chosen)), max_size=8))
    assert [hash_of(key, schema) for key in keys] == hashes(keys, schema)


def test_a_slice_hashes_as_its_rows_do():
    for kind, values in (
        (pa.decimal128(10, 2), [_DECIMAL(n) for n in range(9)]),
        (pa.string(), [str(n) * n for n in range(9)]),
        (pa.int32(), [None, *range(8)]),
    ):
        schema = pa.schema([("c", kind)])
        column = pa.array(values, kind).slice(3, 4)
        expected = [hash_of((value,), schema) for value in values[3:7]]
        assert expected == hash_columns([column], schema).view(np.int64).tolist()


def test_rows_of_several_blocks_hash_as_their_keys_do():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    keys = [(number, str(number)) for number in range(150_000)]
    all_hashes = hashes(keys, schema)
    for row in (0, 65_535, 65_536, 149_999):
        assert hash_of(keys[row], schema) == all_hashes[row]


def test_nested_keys_that_are_equal_hash_alike_and_others_do_not():
    kind = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))])
    schema = pa.schema([("c", kind)])
    rows = [{"x": 0.0, "y": ["a"]}, {"x": -0.0, "y": ["a"]}, {"x": 0.0, "y": ["b"]}, None]
    first, second, third, fourth = hashes([(row,) for row in rows], schema)
    assert first == second
    assert len({first, third, fourth}) == 3


def test_a_struct_is_hashed_as_its_fields_one_after_the_other():
    kind = pa.struct([("start", pa.timestamp("us", "UTC")), ("name", pa.string())])
    rows = [
        {"start": 1, "name": "a"},
        {"start": None, "name": "a"},
        None,
        {"start": 3, "name": None},
        {"start": None, "name": None},
    ]
    column = pa.array([None, *rows], kind).slice(1)
    schema = pa.schema([("window", kind), ("key", pa.int64())])
    keys = pa.array(range(len(rows)), pa.int64())
    nested = hash_columns([column, keys], schema)
    flat = [*column.flatten(), keys]
    plain = pa.schema([*kind, ("key", pa.int64())])
    assert nested.tolist() == hash_columns(flat, plain).tolist()


DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "formats" / "key-groups.md"
DECIMAL = decimal.Decimal


def schema(*types: pa.DataType) -> pa.Schema:
    return pa.schema([(f"c{index}", kind) for index, kind in enumerate(types)])


@pytest.mark.parametrize(("columns", "expected", "key_group"), VECTORS, ids=lambda x: str(x)[:40])
def test_a_key_has_the_hash_that_is_written_down(columns, expected, key_group):
    key, types = key_of(columns)
    assert expected == hash_of(key, types)
    assert key_group == key_group_of(key, types, 128)


def test_the_document_holds_all_vectors_and_no_others():
    pattern = re.compile(r"^\| `(.+)` \| `(-?\d+)` \| (\d+) \|$", re.M)
    written = pattern.findall(DOCUMENT.read_text(encoding="utf-8"))
    expected = [
        (", ".join(f"{kind} {text}" for kind, text in columns), str(value), str(key_group))
        for columns, value, key_group in VECTORS
    ]
    assert expected == written


def test_every_documented_type_has_a_vector():
    assert set(TYPES) == {kind for columns, _, _ in VECTORS for kind, _ in columns}


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [  # of the reference implementation of XXH64
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_bytes_hash_as_the_reference_says(data, seed, expected):
    assert expected == xxhash64_bytes(data, seed)


def test_both_zeros_and_all_nans_are_the_same_key():
    for kind in (pa.float32(), pa.float64()):
        assert hash_of((0.0,), schema(kind)) == hash_of((-0.0,), schema(kind))
        assert hash_of((math.nan,), schema(kind)) == hash_of((-math.nan,), schema(kind))


def test_a_moment_is_the_same_key_in_every_zone():
    kinds = schema(pa.timestamp("us", "UTC"))
    moment = dt.datetime(2011, 12, 9, 12, 50, tzinfo=dt.UTC)
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))
    local = moment.astimezone().replace(tzinfo=None)
    assert hash_of((moment,), kinds) == hash_of((elsewhere,), kinds)
    assert hash_of((moment,), kinds) == hash_of((local,), kinds)


@pytest.mark.parametrize(
    ("key", "types"),
    [
        ((), [pa.int64()]),
        ((1, 2), [pa.int64()]),
        (("1",), [pa.int64()]),
        ((2**63,), [pa.int64()]),
        ((1,), [pa.string()]),
        ((DECIMAL("1.234"),), [pa.decimal128(10, 2)]),
        ((DECIMAL("123456789.00"),), [pa.decimal128(10, 2)]),
        (([1],), [pa.list_(pa.int64())]),
    ],
)
def test_a_key_that_does_not_fit_is_refused(key, types):
    with pytest.raises(UsageError, match="key"):
        key_group_of(key, schema(*types), 128)
