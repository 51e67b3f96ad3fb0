"""The width of a row bounds its bytes in an Arrow batch; types without one have no bound."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

from statelog.spark.rows.types import MAX_BYTES, MAX_RECORDS, NO_LIMIT, ArrowLimits, row_bytes

FIXED: list[tuple[pa.DataType, Any]] = [
    (pa.null(), None), (pa.bool_(), True), (pa.int8(), 1), (pa.int64(), 1), (pa.float64(), 1.0),
    (pa.decimal128(38, 2), decimal.Decimal("1.00")), (pa.date32(), dt.date(2020, 1, 1)),
    (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    (
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.bool_())]))]),
        {"a": 1, "b": {"c": True}},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), FIXED, ids=lambda part: str(part)[:20])
def test_a_batch_has_at_most_that_many_bytes(kind: pa.DataType, value: Any) -> None:
    rows = 1000
    schema = pa.schema([("x", kind)])
    size = row_bytes(schema)
    assert size is not None
    for values in ([value] * rows, [None] * rows, [value, None] * (rows // 2)):
        table = pa.table({"x": pa.array(values, kind)}, schema)
        assert table.nbytes <= rows * size
        assert rows * size <= 3 * rows * kind_bytes(kind)


def kind_bytes(kind: pa.DataType) -> int:
    """Return the bytes of the values alone, at least 1."""
    if pa.types.is_struct(kind):
        return sum(kind_bytes(field.type) for field in kind)
    return 1 if pa.types.is_null(kind) else max(1, kind.bit_width // 8)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.list_(pa.int64()),
        pa.map_(pa.int64(), pa.int64()),
        pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
    ],
    ids=str,
)
def test_rows_that_differ_in_size(kind: pa.DataType) -> None:
    assert row_bytes(pa.schema([("n", pa.int64()), ("x", kind)])) is None


def test_the_columns_of_a_row_are_added() -> None:
    assert row_bytes(pa.schema([("a", pa.int64()), ("b", pa.bool_())])) == 9 + 2
    assert row_bytes(pa.schema([])) == 0


class Settings:
    """A session that has these settings."""

    def __init__(self, **settings: str) -> None:
        self.conf = {MAX_RECORDS: settings["records"], MAX_BYTES: settings["size"]}


@pytest.mark.parametrize(
    ("records", "size", "expected"),
    [
        ("10000", "67108864b", ArrowLimits(10_000, 1 << 26)),
        ("5", "2k", ArrowLimits(5, 2048)),
        ("0", "1", ArrowLimits(NO_LIMIT, 1)),
        ("-1", "-1", ArrowLimits(NO_LIMIT, NO_LIMIT)),
    ],
)
def test_limits_of_a_session(records: str, size: str, expected: ArrowLimits) -> None:
    assert ArrowLimits.of(Settings(records=records, size=size)) == expected  # type: ignore[arg-type]
