"""
Counts, sums, means and variances, and the approximate number of distinct values: aggregates of a fixed size.

Spark's `hll_sketch_agg` and the package `datasketches` are the same library in two languages with one
format: Spark makes the HyperLogLog sketches of a micro-batch, and the tasks unite them with the
state's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from types import ModuleType
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, DecimalType, IntegerType, LongType, NumericType, StringType

from statelog.errors import UsageError
from statelog.extensions.columns.aggregation.extremes import check_ordered
from statelog.extensions.columns.aggregation.kind import Parts, added, counts, doubles
from statelog.extras import load, require

_EXACT: Final = Context(prec=100, rounding=ROUND_HALF_UP)


def _check_numbers(title: str, kind: DataType) -> None:
    """Raise `UsageError` for values that Spark cannot add, or adds as intervals."""
    if not isinstance(kind, NumericType | StringType):
        raise UsageError(f"{title} takes numbers, not {kind.simpleString()}: cast the column")


@dataclass(frozen=True, slots=True)
class Count:
    """The number of rows, or of those in which an argument is not null."""

    title: str = "count"

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        return self

    def whole(self, arguments: Sequence[str]) -> str:
        return f"count({arguments[0] if arguments else 1})"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        return {"": self.whole(arguments)}

    def combine(self, left: Parts, right: Parts) -> Parts:
        return {"": added(left[""], right[""], is_ansi=False)}

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        return pc.fill_null(state[""], 0)


@dataclass(frozen=True, slots=True)
class _OfNumbers:
    """An aggregate of numbers."""

    title: str
    is_decimal: bool = False
    is_ansi: bool = True

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        _check_numbers(self.title, types[0])
        return replace(self, is_decimal=isinstance(types[0], DecimalType), is_ansi=is_ansi)


@dataclass(frozen=True, slots=True)
class Sum(_OfNumbers):
    """
    The sum of the values that are not null.

    A sum of decimals also has whether there were any, as Spark's has: without a value it is null, and
    so is a sum that overflowed.
    """

    title: str = "sum"

    def whole(self, arguments: Sequence[str]) -> str:
        return f"sum({arguments[0]})"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        whole = self.whole(arguments)
        if not self.is_decimal:
            return {"": whole}
        return {"sum": whole, "some": f"count({arguments[0]}) > 0"}

    def combine(self, left: Parts, right: Parts) -> Parts:
        if not self.is_decimal:
            return {"": added(left[""], right[""], is_ansi=self.is_ansi)}
        return _decimal_sums(left, right, self.title, is_ansi=self.is_ansi)

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        return state["sum" if self.is_decimal else ""]


def _decimal_sums(left: Parts, right: Parts, title: str, *, is_ansi: bool) -> Parts:
    """Return the sums of decimals, always null after an overflow; an error in ANSI mode."""
    before = pc.fill_null(left["some"], False)
    some = pc.or_(before, right["some"])
    sums = added(left["sum"], right["sum"], is_ansi=is_ansi)
    overflowed = pc.or_(
        pc.and_(before, pc.is_null(left["sum"])),
        pc.and_(right["some"], pc.is_null(right["sum"])),
    )
    sums = pc.if_else(overflowed, pa.scalar(None, sums.type), sums)
    if is_ansi and pc.any(pc.and_(some, pc.is_null(sums)), min_count=0).as_py():
        raise ArithmeticError(
            f"{title}: a sum does not fit into {sums.type}; cast the column to a narrower decimal, "
            "or set spark.sql.ansi.enabled to false for null instead"
        )
    return {"sum": sums, "some": some}


@dataclass(frozen=True, slots=True)
class Mean(_OfNumbers):
    """The mean of the values that are not null."""

    title: str = "mean"

    def whole(self, arguments: Sequence[str]) -> str:
        return f"avg({arguments[0]})"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        (value,) = arguments
        total = f"sum({value})" if self.is_decimal else f"sum(cast({value} as double))"
        return {"sum": total, "count": f"count({value})"}

    def combine(self, left: Parts, right: Parts) -> Parts:
        count = added(left["count"], right["count"], is_ansi=False)
        if not self.is_decimal:
            return {"sum": added(left["sum"], right["sum"], is_ansi=False), "count": count}
        before, more = (
            {"sum": part["sum"], "some": pc.greater(pc.fill_null(part["count"], 0), 0)}
            for part in (left, right)
        )
        sums = _decimal_sums(before, more, self.title, is_ansi=self.is_ansi)
        return {"sum": sums["sum"], "count": count}

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        number = counts(state["count"])
        if self.is_decimal:
            return _decimal_means(state["sum"], number.tolist(), kind)
        with np.errstate(all="ignore"):
            means = doubles(state["sum"]) / number
        return pa.array(means, kind, mask=number == 0)


def _decimal_means(sums: pa.Array, number: Sequence[int], kind: pa.DataType) -> pa.Array:
    unit = Decimal(1).scaleb(-kind.scale)
    means = [
        None
        if total is None or not count
        else _EXACT.divide(total, count).quantize(unit, context=_EXACT)
        for total, count in zip(sums.to_pylist(), number, strict=True)
    ]
    return pa.array(means, kind)


@dataclass(frozen=True, slots=True)
class Variance:
    """The sample variance; its state is combined by Chan's formula, as in Spark."""

    title: str = "variance"

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        _check_numbers(self.title, types[0])
        return self

    def whole(self, arguments: Sequence[str]) -> str:
        return f"var_samp({arguments[0]})"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        value = f"cast({arguments[0]} as double)"
        return {
            "count": f"count({value})",
            "mean": f"coalesce(avg({value}), 0D)",
            "m2": f"coalesce(var_pop({value}) * count({value}), 0D)",
        }

    def combine(self, left: Parts, right: Parts) -> Parts:
        before, more = counts(left["count"]), counts(right["count"])
        number = before + more
        mean, delta = doubles(left["mean"]), doubles(right["mean"])
        with np.errstate(all="ignore"):
            delta = delta - mean
            step = np.where(number == 0, 0.0, delta / number)
            mean = mean + step * more
            m2 = doubles(left["m2"]) + doubles(right["m2"]) + delta * step * before * more
        return {"count": pa.array(number), "mean": pa.array(mean), "m2": pa.array(m2)}

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        number = counts(state["count"])
        with np.errstate(all="ignore"):
            variances = doubles(state["m2"]) / (number - 1)
        return pa.array(variances, kind, mask=number < 2)


_LEAST, _MOST = 4, 21  # of Spark's hll_sketch_agg
_HASHED = "CASE WHEN {0} IS NOT NULL THEN xxhash64({0}) END"


def log_of_buckets(rsd: float) -> int:
    """Return log2 of the number of buckets for a relative standard deviation, if a sketch has it."""
    log_buckets = math.ceil(2 * math.log2(1.04 / rsd)) if 0 < rsd < 1 else 0
    if rsd >= 1 or rsd <= 0 or log_buckets > _MOST:
        raise UsageError(
            f"approx_count_distinct: rsd={rsd!r}; the relative standard deviation is a number from "
            f"{1.04 / 2 ** (_MOST / 2):.4f} to below 1"
        )
    return max(log_buckets, _LEAST)


@dataclass(frozen=True, slots=True)
class DistinctCount:
    """
    The approximate number of distinct values that are not null.

    Args:
        log_buckets: Base 2 logarithm of the number of buckets.
        conversion: SQL that makes of the argument, `{0}`, a type that Spark's sketch takes.
    """

    log_buckets: int
    title: str = "approx_count_distinct"
    conversion: str = "{0}"

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        require(self.title, "sketches", "datasketches")
        (kind,) = types
        check_ordered(self.title, kind, "counts")
        # Sketches take whole numbers and text, and leave out the empty text; a hash stands for all else.
        is_whole = isinstance(kind, IntegerType | LongType)
        return replace(self, conversion="{0}" if is_whole else _HASHED)

    def whole(self, arguments: Sequence[str]) -> str:
        return f"hll_sketch_estimate({self.partials(arguments)['']})"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        value = self.conversion.format(arguments[0])
        return {"": f"hll_sketch_agg({value}, {self.log_buckets})"}

    def combine(self, left: Parts, right: Parts) -> Parts:
        sketches = load(self.title, "sketches", "datasketches")
        united: list[bytes] = []
        for old, new in zip(left[""].to_pylist(), right[""].to_pylist(), strict=True):
            united.append(new if old is None else self._united(sketches, old, new))
        return {"": pa.array(united, left[""].type)}

    def _united(self, sketches: ModuleType, old: bytes, new: bytes) -> bytes:
        union = sketches.hll_union(self.log_buckets)
        union.update(sketches.hll_sketch.deserialize(old))
        union.update(sketches.hll_sketch.deserialize(new))
        # 4 bits a bucket: half the bytes in state and log.
        sketch: bytes = union.get_result(sketches.tgt_hll_type.HLL_4).serialize_compact()
        return sketch

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        sketch = load(self.title, "sketches", "datasketches").hll_sketch
        estimates = [
            math.floor(sketch.deserialize(data).get_estimate() + 0.5)
            for data in state[""].to_pylist()
        ]
        return pa.array(estimates, kind)
