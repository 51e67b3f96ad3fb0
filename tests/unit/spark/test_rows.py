"""The width of a row bounds an Arrow batch; the classes for Spark 3.5 have what those of Spark 4 have."""

import datetime as dt
import decimal
import inspect
from typing import Any

import pyarrow as pa
import pytest
from tests.support.spark import versions

import statelog.spark
from statelog.spark.rows import stateful_processor
from statelog.spark.rows.types import MAX_BYTES, MAX_RECORDS, NO_LIMIT, ArrowLimits, row_bytes

FIXED: list[tuple[pa.DataType, Any]] = [
    (pa.null(), None), (pa.bool_(), True), (pa.int8(), 1), (pa.int64(), 1), (pa.float64(), 1.0),
    (pa.decimal128(38, 2), decimal.Decimal("1.00")), (pa.date32(), dt.date(2020, 1, 1)),
    (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    (pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.bool_())]))]), {"a": 1, "b": {"c": True}}),
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


NESTED = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
LISTS = (pa.list_(pa.int64()), pa.map_(pa.int64(), pa.int64()))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), *LISTS, NESTED], ids=str
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


NAMES = [
    name
    for name, kind in vars(stateful_processor).items()
    if inspect.isclass(kind) and kind.__module__ == stateful_processor.__name__
]
STATES = {"ValueState", "ListState", "MapState", "StatefulProcessorHandle"}
"""Their constructors are Spark's own business."""


def of_spark(name: str) -> Any:
    return versions.of_spark("pyspark.sql.streaming.stateful_processor", name)


def methods(kind: type) -> dict[str, list[tuple[str, Any]]]:
    """Return the arguments of the methods of a class, with their defaults."""
    return {
        name: [
            (parameter.name, parameter.default)
            for parameter in inspect.signature(method).parameters.values()
        ]
        for name, method in vars(kind).items()
        if inspect.isfunction(method)
        and (not name.startswith("_") or (name == "__init__" and kind.__name__ not in STATES))
    }


def test_all_of_the_interface_is_there() -> None:
    others = {"ExpiredTimerInfo", "StatefulProcessor", "TimerValues"}
    assert STATES | others == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_methods_and_arguments_are_sparks(name: str) -> None:
    assert methods(of_spark(name)) == methods(getattr(stateful_processor, name))


@pytest.mark.parametrize("name", NAMES)
def test_statelog_gives_out_sparks_own_class_where_there_is_one(name: str) -> None:
    assert getattr(statelog.spark, name) is of_spark(name)


def test_abstract_methods_are_sparks() -> None:
    abstract = of_spark("StatefulProcessor").__abstractmethods__
    assert abstract == stateful_processor.StatefulProcessor.__abstractmethods__


def test_a_processor_needs_two_methods_only() -> None:
    class Least(stateful_processor.StatefulProcessor):
        def init(self, handle: Any) -> None:
            """Do nothing."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return iter(())

    least, times = Least(), stateful_processor.TimerValues(3, 4)
    assert (3, 4) == (times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs())
    timer = stateful_processor.ExpiredTimerInfo(5)
    assert 5 == timer.getExpiryTimeInMs()
    assert [] == list(least.handleExpiredTimer(("k",), times, timer))
    assert least.handleInitialState(("k",), None, times) is least.close() is None  # type: ignore[func-returns-value]
    with pytest.raises(TypeError, match="abstract"):
        stateful_processor.StatefulProcessor()  # type: ignore[abstract]
