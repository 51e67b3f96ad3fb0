"""
What an aggregate is: its expressions in Spark, and its arithmetic on columns.

A kind holds neither a column nor a session, so that it can be pickled into a task.  The arithmetic on
Arrow arrays is Spark's: its order of values, and nulls that are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType

Floats = npt.NDArray[np.float64]

_EXACT = Context(prec=100)

Parts = Mapping[str, pa.Array]
"""The columns of one aggregate's state, by the name of the part; of equal length."""


class AggregateKind(Protocol):
    """
    The rules of one aggregate function.

    A part's name is "" where an aggregate has only one, which is then named as the result.
    """

    @property
    def title(self) -> str:
        """The function's name, for messages."""

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        """
        Return the rules for arguments of these types; reject those that the function does not take.

        *is_ansi*: whether Spark reports an overflow as an error.
        """

    def whole(self, arguments: Sequence[str]) -> str:
        """Return the same aggregate as SQL of Spark, over all rows at once."""

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        """Return the parts of the state as SQL of Spark, over the rows of one micro-batch."""

    def combine(self, left: Parts, right: Parts) -> Parts:
        """Return the state of two runs of rows, element by element."""

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        """Return the values of the aggregate, in the type that Spark gives it."""


def is_after(left: pa.Array, right: pa.Array) -> pa.Array:
    """
    Return where *left* is greater than *right*; False where one of them is null.

    As in Spark, NaN is greater than every other number and equal to itself.
    """
    after = pc.greater(left, right)
    if pa.types.is_floating(left.type):
        after = pc.or_(after, pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right))))
    return pc.fill_null(after, False)


def replaces(new: pa.Array, old: pa.Array, *, is_least: bool, is_tie_new: bool = False) -> pa.Array:
    """
    Return where a new value is kept instead of an old one, the least or the greatest.

    A null replaces no value, and any value replaces a null.  *is_tie_new*: whether a new value replaces
    an equal one.
    """
    lower, upper = (new, old) if is_least else (old, new)
    better = pc.invert(is_after(lower, upper)) if is_tie_new else is_after(upper, lower)
    return pc.and_(pc.is_valid(new), pc.or_(pc.is_null(old), better))


def added(left: pa.Array, right: pa.Array, *, is_ansi: bool) -> pa.Array:
    """
    Return the sums of two columns of longs, doubles or decimals; one value alone is the sum.

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
    """Return the sums in the same type; null where they do not fit."""
    kind = left.type
    wide = pa.decimal256(kind.precision, kind.scale)
    sums = pc.add(left.cast(wide), right.cast(wide))
    most = pa.scalar(Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT), sums.type)
    fits = pc.less_equal(pc.abs(sums), most)
    if pc.all(fits, min_count=0).as_py() is False:
        sums = pc.if_else(fits, sums, pa.scalar(None, sums.type))
    return sums.cast(pa.decimal256(kind.precision, kind.scale)).cast(kind)


def counts(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return a column of longs, 0 where it is null."""
    filled: npt.NDArray[np.int64] = pc.fill_null(column, 0).to_numpy()
    return filled


def doubles(column: pa.Array) -> Floats:
    """Return a column of doubles, 0 where it is null."""
    filled: Floats = pc.fill_null(column, 0.0).to_numpy()
    return filled
