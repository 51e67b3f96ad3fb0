"""Each aggregate, combined batch by batch for many keys, is the aggregate of all values of the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import reduce
from statistics import variance
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from statelog.errors import UsageError
from statelog.extensions.columns.aggregation import api
from statelog.extensions.columns.aggregation.api import aggregate
from statelog.extensions.columns.aggregation.kinds import (
    AggregateKind,
    Count,
    DistinctCount,
    Extreme,
    Mean,
    Sum,
    TopK,
    ValueBy,
    Variance,
)
from statelog.extensions.columns.aggregation.processor import Merge, NamedAggregate
from statelog.spark.rows.types import arrow_schema

Rows = Sequence[Any]
Result = tuple[pa.DataType, Callable[[Rows], Any]]
"""A type, and what makes a value of it from rows."""
DECIMAL = pa.decimal128(20, 2)
DECIMAL_MEAN = pa.decimal128(14, 6)
ROW = pa.struct([("by", pa.float64()), ("value", pa.string())])


def by_spark(value: Any) -> tuple[bool, Any]:
    """Return a key by which Python sorts as Spark: NaN is greatest."""
    return (isinstance(value, float) and math.isnan(value), value)


def known(rows: Rows) -> list[Any]:
    return [value for value in rows if value is not None]


def count(rows: Rows) -> int:
    return len(known(rows))


def least(rows: Rows) -> Any:
    return min(known(rows), key=by_spark, default=None)


def greatest(rows: Rows) -> Any:
    return max(known(rows), key=by_spark, default=None)


def total(rows: Rows) -> Any:
    return sum(known(rows), start=type(known(rows)[0])(0)) if known(rows) else None


def mean_of(rows: Rows) -> Any:
    return None if not known(rows) else sum(known(rows)) / len(known(rows))


def decimal_mean(rows: Rows) -> Any:
    if not known(rows):
        return None
    exact = Context(prec=60, rounding=ROUND_HALF_UP)
    return exact.divide(total(rows), len(known(rows))).quantize(Decimal("0.000001"), context=exact)


def sample_variance(rows: Rows) -> Any:
    return variance(known(rows)) if len(known(rows)) > 1 else None


def m2(rows: Rows) -> float:
    middle = mean_of(rows) or 0.0
    return math.fsum((value - middle) ** 2 for value in known(rows))


def first_by(rows: Rows) -> Any:
    rows = [pair for pair in rows if pair[0] is not None]
    return min(rows, key=lambda pair: by_spark(pair[0]), default=(None, None))


def last_by(rows: Rows) -> Any:
    rows = [pair for pair in rows if pair[0] is not None]
    # Of equal ones the last: `max` takes the first, of rows in reverse.
    return max(reversed(rows), key=lambda pair: by_spark(pair[0]), default=(None, None))


def last_row(rows: Rows) -> Any:
    row = last_by(rows)
    return None if row[0] is None else dict(zip(("by", "value"), row, strict=True))


def ranked(rows: Rows, k: int) -> list[dict[str, Any]]:
    def rank(pair: tuple[Any, Any]) -> Any:
        return by_spark(pair[0]), pair[1] is not None, pair[1] or ""

    best = sorted((pair for pair in rows if pair[0] is not None), key=rank, reverse=True)[:k]
    return [{"by": by, "value": value} for by, value in best]


@dataclass
class Case:
    """A kind, what Spark would make of the rows of a micro-batch, and the result by Python."""

    kind: AggregateKind
    rows: st.SearchStrategy[Any]
    parts: dict[str, Result]
    result: Result
    is_close: bool = False


LONGS = st.none() | st.integers(-(2**40), 2**40)
# Sums of these are exact in any order.
DOUBLES = st.none() | st.integers(-1000, 1000).map(lambda number: number / 8)
TEXTS = st.none() | st.text(max_size=3)
DECIMALS = st.none() | st.decimals(-(10**6), 10**6, places=2)
ANY_DOUBLES = DOUBLES | st.sampled_from([math.nan, math.inf, -math.inf])
PAIRS = st.tuples(ANY_DOUBLES, TEXTS)

LONG, DOUBLE, TEXT = pa.int64(), pa.float64(), pa.string()
COUNT, TOTAL = (LONG, count), (DOUBLE, total)
FIRST = (TEXT, lambda rows: first_by(rows)[1])
LAST = (ROW, last_row)


def whole(kind: AggregateKind, rows: st.SearchStrategy[Any], result: Result) -> Case:
    """Return the case of a kind whose only partial result is what its result is."""
    return Case(kind, rows, {"": result}, result)


CASES = {
    "count": whole(Count(), LONGS, COUNT),
    "sum of longs": whole(Sum(), LONGS, (LONG, total)),
    "sum of doubles": whole(Sum(), DOUBLES, TOTAL),
    "sum of decimals": Case(
        Sum(is_decimal=True), DECIMALS,
        {"sum": (DECIMAL, total), "some": (pa.bool_(), lambda rows: bool(known(rows)))},
        (DECIMAL, total),
    ),
    "least double": whole(Extreme(True), ANY_DOUBLES, (DOUBLE, least)),
    "greatest double": whole(Extreme(False), ANY_DOUBLES, (DOUBLE, greatest)),
    "least text": whole(Extreme(True), TEXTS, (TEXT, least)),
    "greatest decimal": whole(Extreme(False), DECIMALS, (DECIMAL, greatest)),
    "mean": Case(Mean(), DOUBLES, {"sum": TOTAL, "count": COUNT}, (DOUBLE, mean_of)),
    "mean of decimals": Case(
        Mean(is_decimal=True), DECIMALS, {"sum": (DECIMAL, total), "count": COUNT},
        (DECIMAL_MEAN, decimal_mean),
    ),
    "variance": Case(
        Variance(), DOUBLES,
        {"count": COUNT, "mean": (DOUBLE, lambda rows: mean_of(rows) or 0.0), "m2": (DOUBLE, m2)},
        (DOUBLE, sample_variance), is_close=True,
    ),
    "first": Case(
        ValueBy("first", True), PAIRS,
        {"value": FIRST, "by": (DOUBLE, lambda rows: first_by(rows)[0])}, FIRST,
    ),
    "latest row": Case(
        ValueBy("latest_row", False, ("by", "value")), PAIRS,
        {"value": LAST, "by": (DOUBLE, lambda rows: last_by(rows)[0])}, LAST,
    ),
    "top_k": Case(
        TopK(3), PAIRS, {"": (pa.list_(ROW), lambda rows: ranked(rows, 3))},
        (pa.list_(TEXT), lambda rows: [row["value"] for row in ranked(rows, 3)]),
    ),
}  # fmt: skip


def merge_of(case: Case) -> Merge:
    names = tuple((part, f"v_{part}", f"v_{part}") for part in case.parts)
    output = pa.schema([("key", LONG), ("v", case.result[0])])
    return Merge((NamedAggregate("v", case.kind, names),), output)


def partial_results(case: Case, rows_of_keys: Sequence[Rows]) -> pa.Table:
    """Return what Spark would make of the rows of a micro-batch, a row for each key."""
    return pa.table(
        {
            f"v_{part}": pa.array([make(rows) for rows in rows_of_keys], kind)
            for part, (kind, make) in case.parts.items()
        }
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@given(data=st.data())
def test_batches_combine_to_the_aggregate_of_all_rows(case: Case, data: st.DataObject) -> None:
    keys = data.draw(st.integers(0, 5))
    rows_of_key = st.lists(case.rows, min_size=1, max_size=5)
    batch = st.lists(rows_of_key, min_size=keys, max_size=keys)
    batches = data.draw(st.lists(batch, min_size=1, max_size=4))
    merge = merge_of(case)
    partials = [partial_results(case, rows_of_keys) for rows_of_keys in batches]
    schema = partials[0].schema
    absent = pa.table([pa.nulls(keys, kind) for kind in schema.types], names=schema.names)
    state = reduce(merge.combined, partials, absent)
    assert state.schema.types == schema.types
    combined = merge.results(pa.table({"key": pa.array(range(keys), pa.int64())}), state)
    result_type, aggregate = case.result
    expected = [
        aggregate([row for rows_of_keys in batches for row in rows_of_keys[key]])
        for key in range(keys)
    ]
    got = combined.column("v").to_pylist()
    assert combined.column("key").to_pylist() == list(range(keys))
    if case.is_close:
        assert [value is None for value in got] == [value is None for value in expected]
        assert known(got) == pytest.approx(known(expected), rel=1e-9, abs=1e-9)
    else:
        assert repr(got) == repr(pa.array(expected, result_type).to_pylist())


def sketches(*values: Sequence[int]) -> pa.Array:
    datasketches = pytest.importorskip("datasketches")
    stored = []
    for numbers in values:
        sketch = datasketches.hll_sketch(9, datasketches.tgt_hll_type.HLL_8)
        for value in numbers:
            sketch.update(value)
        stored.append(sketch.serialize_updatable())
    return pa.array(stored, pa.binary())


def test_sketches_are_united() -> None:
    kind = DistinctCount(9)
    state = {"": pa.nulls(2, pa.binary())}
    for start in range(0, 10_000, 1000):
        # The second key sees the same values again.
        batch = sketches(range(start, start + 2000), range(500))
        state = dict(kind.combine(state, {"": batch}))
    many, few = kind.result(state, pa.int64()).to_pylist()
    assert many == pytest.approx(11_000, rel=0.15)
    assert few == pytest.approx(500, rel=0.15)
    assert all(len(stored) < 600 for stored in state[""].to_pylist())
    assert kind.result({"": sketches([])}, pa.int64()).to_pylist() == [0]


def test_a_sum_of_longs_that_overflows_is_an_error_or_wraps() -> None:
    most = {"": pa.array([2**63 - 1])}
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        Sum().combine(most, {"": pa.array([1])})
    wrapped = Sum(is_ansi=False).combine(most, {"": pa.array([1])})
    assert wrapped[""].to_pylist() == [-(2**63)]


def test_a_sum_of_decimals_that_overflows_is_an_error_or_null_for_ever() -> None:
    kind = pa.decimal128(38, 0)
    most = {"sum": pa.array([Decimal(10**38 - 1)], kind), "some": pa.array([True])}
    addend = {"sum": pa.array([Decimal(1)], kind), "some": pa.array([True])}
    nothing = {"sum": pa.array([None], kind), "some": pa.array([False])}
    with pytest.raises(ArithmeticError, match="does not fit"):
        Sum(is_decimal=True).combine(most, addend)
    quiet = Sum(is_decimal=True, is_ansi=False)
    assert quiet.combine(most, nothing)["sum"].to_pylist() == [Decimal(10**38 - 1)]
    state = quiet.combine(quiet.combine(most, addend), addend)
    assert state["sum"].to_pylist() == [None]
    assert state["some"].to_pylist() == [True]


PAIR = StructType([StructField("a", IntegerType(), nullable=False)])
VALUES: dict[str, tuple[DataType, list[Any]]] = {
    "struct": (PAIR, [{"a": 1}, None, {"a": 3}]),
    "array": (ArrayType(IntegerType()), [[1], None, [3, None]]),
    "map": (MapType(StringType(), PAIR), [[("x", {"a": 1})], None, [("y", {"a": 2})]]),
    "variant": (VariantType(), [{"value": b"1", "metadata": b"m"}, None, None]),
    "text": (StringType("UTF8_LCASE"), ["a", None, "B"]),
}


def column(kind: DataType, by: list[list[float]], values: list[list[Any]]) -> pa.Array:
    fields = [StructField("by", DoubleType()), StructField("value", kind)]
    (field,) = arrow_schema(
        StructType([StructField("x", ArrayType(StructType(fields), containsNull=False))])
    )
    rows = [
        [{"by": by, "value": value} for by, value in zip(*pair, strict=True)]
        for pair in zip(by, values, strict=True)
    ]
    return pa.array(rows, field.type)


@pytest.mark.parametrize("name", VALUES)
def test_values_of_any_type_are_kept_by_another_column(name: str) -> None:
    kind, (first, second, third) = VALUES[name]
    function = TopK(2).bind([DoubleType(), kind], is_ansi=True)
    older = column(kind, [[5.0, 1.0], []], [[first, second], []])
    newer = column(kind, [[float("nan"), 5.0], [2.0]], [[third, third], [first]])
    state = function.combine({"": older}, {"": newer})
    (field,) = arrow_schema(StructType([StructField("x", ArrayType(kind))]))
    result = function.result(state, field.type)
    assert field.type == result.type
    # Of equal rows that of an earlier micro-batch is kept.
    assert pa.array([[third, first], [first]], field.type).to_pylist() == result.to_pylist()


def test_equal_rows_are_ordered_by_a_value_that_has_an_order() -> None:
    function = TopK(2).bind([DoubleType(), IntegerType()], is_ansi=True)
    older = column(IntegerType(), [[5.0, 1.0]], [[1, 9]])
    newer = column(IntegerType(), [[5.0, 5.0]], [[7, 2]])
    state = function.combine({"": older}, {"": newer})
    assert [[7, 2]] == function.result(state, pa.list_(pa.int32())).to_pylist()
    assert "sort_array" in function.partials(["b", "v"])[""]


def test_ordered_aggregates_need_an_order() -> None:
    with pytest.raises(UsageError, match=r"top_k, in its column `by`, orders .* not struct"):
        TopK(2).bind([PAIR, PAIR], is_ansi=True)
    with pytest.raises(UsageError, match=r"max orders .* not map"):
        Extreme(is_least=False).bind([VALUES["map"][0]], is_ansi=True)
    pytest.importorskip("datasketches")
    with pytest.raises(UsageError, match=r"approx_count_distinct counts .* not struct"):
        DistinctCount(12).bind([PAIR], is_ansi=True)


class Expression:
    """An expression of Spark, by its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Column<'{self.text}'>"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("count(1)", r"Use F\.count\(\)"),
        ("count(*)", r"Use F\.count\(\)"),
        ("count(amount)", r"Use F\.count\('amount'\)"),
        ("sum((amount * 2))", r"Use F\.sum\(column\)"),
        ("avg(amount)", r"Use F\.mean\('amount'\)"),
        ("max_by(amount, at)", r"Use F\.last\(column, by=column\)"),
        ("amount", r"The aggregates of statelog\.spark\.functions are count, sum, min, max"),
        ("collect_list(amount)", r"The aggregates of statelog\.spark\.functions are count, sum"),
    ],
)
def test_the_equivalent_of_an_expression_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str, advice: str
) -> None:
    monkeypatch.setattr(api, "Column", Expression)
    grouped: object = None  # the arguments are checked before the frame is looked at
    with pytest.raises(UsageError, match=f"Column<.* is a Spark expression.*{advice}"):
        aggregate(grouped, Expression(text))  # type: ignore[arg-type]
