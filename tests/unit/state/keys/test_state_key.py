"""Keys as a caller gives them: of other types of Python, as text, and in rows."""

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.support.locations.histories import KEY

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.state.keys.state_key import StateKey, key_from_text

TYPES = pa.schema([("k", pa.int32()), ("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(9, 2))])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((), r"a key requires a value for each of \(k int64, name string\); got 0"),
        (5, "got 1"),
        ((5, "key 5", None), "got 3"),
        (("5", "key 5"), "key column 'k' takes int64, not str '5'"),
        ((5.5, "key 5"), "key column 'k' takes int64, not float 5.5"),
        ((True, "key 5"), "key column 'k' takes int64, not bool True"),
        ((2**70, "key 5"), "key column 'k' takes int64, not int"),
        ((5, 5), "key column 'name' takes string, not int 5"),
    ],
)
def test_a_key_of_other_columns_is_refused(key: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StateKey(key, KEY)


def test_a_key_in_a_different_type_of_python_is_the_same_key() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    time = dt.datetime(2024, 5, 1, 12, tzinfo=zone)
    key = StateKey((7, time, 3), TYPES).values
    assert key == (7, dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC), Decimal("3.00"))
    assert key == StateKey((7, time.astimezone().replace(tzinfo=None), Decimal(3)), TYPES).values
    assert key == key_from_text(["7", "2024-05-01T10:00:00Z", "3.00"], TYPES)


@pytest.mark.parametrize("texts", [["x", "2024-05-01T10:00:00Z", "3"], ["7"], ["7", "noon", "3"]])
def test_text_that_is_not_a_key_is_rejected(texts: list[str]) -> None:
    with pytest.raises(UsageError, match=r"key column|a key requires"):
        key_from_text(texts, TYPES)


@pytest.mark.parametrize("value", [math.nan, -0.0, 1.5, None])
def test_special_numbers_are_found(value: float | None) -> None:
    schema = pa.schema([("x", pa.float64())])
    column = pa.array([1.5, math.nan, 0.0, None], pa.float64())
    batch = pa.RecordBatch.from_arrays([column], names=["key.x"])
    (selected,) = StateKey(value, schema).select(batch).column(0).to_pylist()
    assert repr(selected) == repr(value).replace("-0.0", "0.0")


def test_a_type_that_only_spark_hashes_is_refused_and_says_so() -> None:
    schema = pa.schema([("s", pa.struct([("a", pa.int64())]))])
    with pytest.raises(UsageError, match="only Spark can compute key groups"):
        StateKey({"a": 1}, schema).key_groups(KeyGroupRange(0, 5))
