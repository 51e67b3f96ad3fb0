"""Counts, sums, means and variances: aggregates of a fixed size that are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, DecimalType, NumericType, StringType

from statelog.errors import UsageError
from statelog.spark.aggregate.kind import Parts, added, counts, doubles

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

    title: str = "sum_"

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
    """Return the sums of decimals, null for ever after an overflow; an error in ANSI mode."""
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
