"""
How each aggregate works: its expressions in Spark, and its arithmetic on columns.

A kind holds neither a column nor a session, so that it can be pickled into a task.  The arithmetic
on Arrow arrays is Spark's: its order of values, and nulls that are left out.

Spark's `hll_sketch_agg` and the package `datasketches` are the same library in two languages with
one format: Spark makes the HyperLogLog sketches of a micro-batch, and the tasks unite them with the
state's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from types import ModuleType
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    NumericType,
    StringType,
)

from statelog.errors import UsageError
from statelog.extras import load, require
from statelog.format.arrow_limits import joined_arrays
from statelog.spark.rows.spark_versions import DATE_AND_TIME_TYPES
from statelog.spark.rows.types import sql_name
from statelog.state.encoding.converters import relabelled

Floats = npt.NDArray[np.float64]

_EXACT: Final = Context(prec=100, rounding=ROUND_HALF_UP)

Parts = Mapping[str, pa.Array]
"""The columns of one aggregate's state, by the name of the part; of equal length."""


class AggregateKind(Protocol):
    """
    How one aggregate function works.

    A part's name is "" where an aggregate has only one, which is then named as the result.
    """

    @property
    def title(self) -> str:
        """The name of the function in messages."""

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        """
        Adapt the function to these argument types; reject types that it does not accept.

        *is_ansi*: whether Spark reports an overflow as an error.
        """

    def whole(self, arguments: Sequence[str]) -> str:
        """Return Spark SQL for the same aggregate, computed over all rows at once."""

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        """Return Spark SQL for the parts of the state, computed over one micro-batch."""

    def combine(self, left: Parts, right: Parts) -> Parts:
        """Combine the states of two groups of rows, element by element."""

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        """Compute the aggregate from its state, in the type that Spark gives it."""


def is_after(left: pa.Array, right: pa.Array) -> pa.Array:
    """
    Return where *left* is greater than *right*; False if either is null.

    As in Spark, NaN is greater than every other number and equal to itself.
    """
    after = pc.greater(left, right)
    if pa.types.is_floating(left.type):
        after = pc.or_(after, pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right))))
    return pc.fill_null(after, False)


def replaces(new: pa.Array, old: pa.Array, *, is_least: bool, is_tie_new: bool = False) -> pa.Array:
    """
    Return where a new value is to replace an old one as the smallest or largest.

    A null replaces no value, and any value replaces a null.  *is_tie_new*: whether a new value
    replaces an equal one.
    """
    lower, upper = (new, old) if is_least else (old, new)
    better = pc.invert(is_after(lower, upper)) if is_tie_new else is_after(upper, lower)
    return pc.and_(pc.is_valid(new), pc.or_(pc.is_null(old), better))


def added(left: pa.Array, right: pa.Array, *, is_ansi: bool) -> pa.Array:
    """
    Add two columns of longs, doubles or decimals; if one value is null, use the other.

    A sum of longs that overflows raises `pyarrow.ArrowInvalid` in ANSI mode; else it wraps, as in
    Spark.
    """
    if pa.types.is_decimal(left.type):
        sums = _decimals_added(left, right)
        # A sum that overflows stays null; one that has only one side is that side.
        alone = pc.coalesce(left, right)
        return pc.if_else(pc.and_(pc.is_valid(left), pc.is_valid(right)), sums, alone)
    add = pc.add_checked if is_ansi and pa.types.is_integer(left.type) else pc.add
    sums = add(left, right)
    if not sums.null_count:
        return sums
    return pc.coalesce(sums, left, right)


def _decimals_added(left: pa.Array, right: pa.Array) -> pa.Array:
    """Return the sums in the same decimal type; null where a sum does not fit."""
    kind = left.type
    wide = pa.decimal256(kind.precision, kind.scale)
    sums = pc.add(left.cast(wide), right.cast(wide))
    most = pa.scalar(Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT), sums.type)
    fits = pc.less_equal(pc.abs(sums), most)
    if pc.all(fits, min_count=0).as_py() is False:
        sums = pc.if_else(fits, sums, pa.scalar(None, sums.type))
    return sums.cast(pa.decimal256(kind.precision, kind.scale)).cast(kind)


def counts(column: pa.Array) -> npt.NDArray[np.int64]:
    """Convert a column to longs, with 0 for null."""
    filled: npt.NDArray[np.int64] = pc.fill_null(column, 0).to_numpy()
    return filled


def doubles(column: pa.Array) -> Floats:
    """Convert a column to doubles, with 0 for null."""
    filled: Floats = pc.fill_null(column, 0.0).to_numpy()
    return filled


_ORDERED: Final = (NumericType, StringType, BinaryType, BooleanType, *DATE_AND_TIME_TYPES)
_PLAIN_COLLATION: Final = "UTF8_BINARY"
_BY_DESCENDING: Final = "(l, r) -> CASE WHEN l.by > r.by THEN -1 WHEN l.by < r.by THEN 1 ELSE 0 END"


def is_ordered(kind: DataType) -> bool:
    """Return whether Arrow can order the values of a type, in the same order as Spark."""
    collation = getattr(kind, "collation", _PLAIN_COLLATION)
    return isinstance(kind, _ORDERED) and collation == _PLAIN_COLLATION


def check_ordered(title: str, kind: DataType, verb: str = "orders") -> None:
    """
    Reject a type whose values Arrow and Spark order differently.

    *verb* says what *title* does.
    """
    if not is_ordered(kind):
        raise UsageError(
            f"{title} {verb} numbers, text, binary, booleans, dates and timestamps, not "
            f"{kind.simpleString()}: cast the column"
        )


@dataclass(frozen=True, slots=True)
class Extreme:
    """The smallest or the largest of the values that are not null."""

    is_least: bool

    @property
    def title(self) -> str:
        return "min" if self.is_least else "max"

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        check_ordered(self.title, types[0])
        return self

    def whole(self, arguments: Sequence[str]) -> str:
        return f"{self.title}({arguments[0]})"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        return {"": self.whole(arguments)}

    def combine(self, left: Parts, right: Parts) -> Parts:
        is_new = replaces(right[""], left[""], is_least=self.is_least)
        return {"": pc.if_else(is_new, right[""], left[""])}

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        return state[""]


@dataclass(frozen=True, slots=True)
class ValueBy:
    """
    The value from the row with the smallest or largest value in a second column.

    The arguments are that column, then the values.  Rows in which that column is null do not count;
    a value that is null does.  With *names* the result is a struct of all values.
    """

    title: str
    is_least: bool
    names: tuple[str, ...] | None = None

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        check_ordered(f"{self.title}, in its column `by`,", types[0])
        return self

    def of_row(self, names: Sequence[str]) -> Self:
        return replace(self, names=tuple(names))

    def whole(self, arguments: Sequence[str]) -> str:
        by, *values = arguments
        value = values[0]
        if self.names is not None:
            fields = (
                f"{field} AS {sql_name(name)}"
                for field, name in zip(values, self.names, strict=True)
            )
            value = f"struct({', '.join(fields)})"
        return f"{'min_by' if self.is_least else 'max_by'}({value}, {by})"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        least = "min" if self.is_least else "max"
        return {"value": self.whole(arguments), "by": f"{least}({arguments[0]})"}

    def combine(self, left: Parts, right: Parts) -> Parts:
        # Of equal rows the first stays the first, and the last is the last.
        is_new = replaces(
            right["by"], left["by"], is_least=self.is_least, is_tie_new=not self.is_least
        )
        return {name: pc.if_else(is_new, right[name], left[name]) for name in ("value", "by")}

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        return state["value"]


@dataclass(frozen=True, slots=True)
class TopK:
    """
    The values from the *k* rows with the largest values in a second column, in order.

    The arguments are that column and the value.  Of rows with equal ones, those with the greater
    value are kept; rows of earlier micro-batches where values are not ordered, in Spark as in
    Arrow.
    """

    k: int
    title: str = "top_k"
    is_value_ordered: bool = True

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        check_ordered(f"{self.title}, in its column `by`,", types[0])
        return replace(self, is_value_ordered=is_ordered(types[1]))

    def whole(self, arguments: Sequence[str]) -> str:
        return f"transform({self.partials(arguments)['']}, x -> x.value)"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        by, value = arguments
        pair = f"CASE WHEN {by} IS NOT NULL THEN struct({by} AS by, {value} AS value) END"
        rows = f"collect_list({pair})"
        greatest_first = f"sort_array({rows}, false)"
        if not self.is_value_ordered:  # Spark would order structs of both, which it cannot of maps
            greatest_first = f"array_sort({rows}, {_BY_DESCENDING})"
        return {"": f"slice({greatest_first}, 1, {self.k})"}

    def combine(self, left: Parts, right: Parts) -> Parts:
        owners, rows = _flat(left[""])
        more_owners, more_rows = _flat(right[""])
        owner = np.concatenate([owners, more_owners])
        row = joined_arrays([rows, more_rows.cast(rows.type)], "the rows of an aggregate")
        order = _by_rank(owner, row, ("by", "value") if self.is_value_ordered else ("by",))
        owner = owner[order]
        starts = np.searchsorted(owner, np.arange(len(left[""]) + 1))
        rank = np.arange(len(owner)) - starts[owner]
        is_top = rank < self.k
        offsets = np.concatenate([[0], np.cumsum(np.minimum(np.diff(starts), self.k))])
        values = row.take(pa.array(order[is_top]))
        kind = left[""].type
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        return {"": relabelled(lists, kind)}

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        owner, rows = _flat(state[""])
        starts = np.searchsorted(owner, np.arange(len(state[""]) + 1))
        values = pc.struct_field(rows, "value")
        return relabelled(pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values), kind)


def _flat(lists: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the elements of a list column, and the row to which each element belongs."""
    return pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)


def _by_rank(
    owner: npt.NDArray[np.int64], rows: pa.Array, names: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Return the order of rows by owner and, for each owner, by *fields*, largest first."""
    columns: dict[str, pa.Array] = {"owner": pa.array(owner)}
    keys = [("owner", "ascending")]
    for name in names:
        column = pc.struct_field(rows, name)
        if pa.types.is_boolean(column.type):  # Arrow does not order booleans here
            column = column.cast(pa.int8())
        if pa.types.is_floating(column.type):  # Arrow puts NaN last in either direction
            columns[f"{name}_is_nan"] = pc.fill_null(pc.is_nan(column), False).cast(pa.int8())
            keys.append((f"{name}_is_nan", "descending"))
        columns[name] = column
        keys.append((name, "descending"))
    order: npt.NDArray[np.int64] = (
        pc.sort_indices(pa.table(columns), sort_keys=keys).to_numpy().astype(np.int64)
    )
    return order


def _check_numbers(title: str, kind: DataType) -> None:
    """Raise `UsageError` for values that Spark cannot add, or that it adds as intervals."""
    if not isinstance(kind, NumericType | StringType):
        raise UsageError(f"{title} takes numbers, not {kind.simpleString()}: cast the column")


@dataclass(frozen=True, slots=True)
class Count:
    """The number of rows, or of rows in which an argument is not null."""

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
    """The base of aggregates of numbers."""

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

    A sum of decimals also has whether there were any, as Spark's has: without a value it is null,
    and so is a sum that overflowed.
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
    """Add decimals; after an overflow, the sum stays null, or an error is raised in ANSI mode."""
    before = pc.fill_null(left["some"], False)
    has_value = pc.or_(before, right["some"])
    sums = added(left["sum"], right["sum"], is_ansi=is_ansi)
    overflowed = pc.or_(
        pc.and_(before, pc.is_null(left["sum"])),
        pc.and_(right["some"], pc.is_null(right["sum"])),
    )
    sums = pc.if_else(overflowed, pa.scalar(None, sums.type), sums)
    if is_ansi and pc.any(pc.and_(has_value, pc.is_null(sums)), min_count=0).as_py():
        raise ArithmeticError(
            f"{title}: a sum does not fit into {sums.type}; cast the column to a narrower decimal, "
            "or set spark.sql.ansi.enabled to false to get null instead"
        )
    return {"sum": sums, "some": has_value}


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
    """The sample variance, whose states are combined by Chan's formula, as in Spark."""

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
        before = counts(left["count"])
        more = counts(right["count"])
        number = before + more
        mean = doubles(left["mean"])
        delta = doubles(right["mean"])
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


_LEAST = 4  # of Spark's hll_sketch_agg
_MOST = 21
_HASHED = "CASE WHEN {0} IS NOT NULL THEN xxhash64({0}) END"


def log_of_buckets(rsd: float) -> int:
    """Return log2 of the number of buckets needed for a relative standard deviation."""
    log_buckets = math.ceil(2 * math.log2(1.04 / rsd)) if 0 < rsd < 1 else 0
    if rsd >= 1 or rsd <= 0 or log_buckets > _MOST:
        raise UsageError(
            f"approx_count_distinct: rsd={rsd!r}; the relative standard deviation must be at least "
            f"{1.04 / 2 ** (_MOST / 2):.4f} and below 1"
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
