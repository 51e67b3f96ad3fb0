"""The values of the greatest rows, of types with an order and without."""

from typing import Any

import pyarrow as pa
import pytest
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
from statelog.extensions.columns.aggregation.kinds import DistinctCount, Extreme, TopK
from statelog.spark.rows.types import arrow_schema

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
