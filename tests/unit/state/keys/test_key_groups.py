"""The key group of a key, computed in Python: fixed vectors, no Spark."""

import datetime as dt
import decimal
import math
import re
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.values.key_group_vectors import TYPES, VECTORS, key_of

from statelog.errors import UsageError
from statelog.state.keys.key_groups import hash_of, key_group_of, xxhash64_bytes

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
