"""
The aggregate functions for `aggregate`.

Columns are names, or expressions of Spark over the grouped frame.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec

from pyspark.sql import Column

from statelog.errors import UsageError
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
    log_of_buckets,
)
from statelog.spark.jvm.gateway import is_connect

ColumnOrName = Column | str
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate of columns, as returned by the functions in `statelog.spark.functions`."""

    kind: AggregateKind
    arguments: tuple[ColumnOrName, ...] = ()
    of_row: Callable[[Sequence[str]], AggregateKind] | None = None
    """Creates the rules from the names of all columns, which are appended to the arguments."""
    name: str | None = None
    """The name of the aggregate's output column."""
    call: str = ""
    """The text of the call that created the aggregate."""

    def __post_init__(self) -> None:
        for argument in self.arguments:
            if not (isinstance(argument, Column | str) or is_connect(argument)):
                raise UsageError(
                    f"{self.kind.title} takes column names and expressions, not {argument!r}"
                )

    def alias(self, name: str) -> Aggregate:
        """Return the aggregate with a name for its output column."""
        if not isinstance(name, str) or not name:
            raise UsageError(f"{self.kind.title}: alias takes a column name, not {name!r}")
        return replace(self, name=name)

    def __repr__(self) -> str:
        return self.call if self.name is None else f"{self.call}.alias({self.name!r})"


def _written(function: Callable[P, Aggregate]) -> Callable[P, Aggregate]:
    """Wrap a function so that its aggregates record the text of the call."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Aggregate:
        texts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        return replace(
            function(*args, **kwargs), call=f"F.{function.__name__.rstrip('_')}({', '.join(texts)})"
        )

    return call


@_written
def count(column: ColumnOrName | None = None) -> Aggregate:
    """
    Count the rows, or the values that are not null.

    Example:
        aggregate(events.groupBy("customer"), F.count().alias("rows"), F.count("amount").alias("n"))

    Args:
        column: The values; None for the rows.
    """
    if column is None or (isinstance(column, str) and column == "*"):
        return Aggregate(Count())
    return Aggregate(Count(), (column,))


@_written
def sum_(column: ColumnOrName) -> Aggregate:
    """
    Add the values.

    The sum of integers is a long, of decimals a decimal with ten digits more, else a double.

    Example:
        aggregate(events.groupBy("customer"), F.sum("amount").alias("total"))

    Args:
        column: The values.
    """
    return Aggregate(Sum(), (column,))


@_written
def min_(column: ColumnOrName) -> Aggregate:
    """
    Keep the smallest value.

    Example:
        aggregate(events.groupBy("customer"), F.min("amount").alias("least"))

    Args:
        column: The values, in Spark's order.
    """
    return Aggregate(Extreme(is_least=True), (column,))


@_written
def max_(column: ColumnOrName) -> Aggregate:
    """
    Keep the largest value.

    Example:
        aggregate(events.groupBy("customer"), F.max("amount").alias("greatest"))

    Args:
        column: The values, in Spark's order.
    """
    return Aggregate(Extreme(is_least=False), (column,))


@_written
def mean(column: ColumnOrName) -> Aggregate:
    """
    Compute the mean of the values.

    Example:
        aggregate(events.groupBy("customer"), F.mean("amount").alias("mean"))

    Args:
        column: The values; of decimals the mean is a decimal, else a double.
    """
    return Aggregate(Mean(), (column,))


@_written
def variance(column: ColumnOrName) -> Aggregate:
    """
    Compute the sample variance of the values.

    Example:
        aggregate(events.groupBy("customer"), F.variance("amount").alias("variance"))

    Args:
        column: The values.  The variance of fewer than two is null.
    """
    return Aggregate(Variance(), (column,))


@_written
def first(column: ColumnOrName, by: ColumnOrName) -> Aggregate:
    """
    Keep the value from the row that has the smallest value in a second column.

    Example:
        aggregate(events.groupBy("customer"), F.first("amount", by="at").alias("first"))

    Args:
        column: The value; it may be null.
        by: The column that orders the rows, such as an event time.  Rows where it is null do not
            count.  Of equal rows, one of an earlier micro-batch is kept.
    """
    return Aggregate(ValueBy("first", is_least=True), (by, column))


@_written
def last(column: ColumnOrName, by: ColumnOrName) -> Aggregate:
    """
    Keep the value from the row that has the largest value in a second column.

    Example:
        aggregate(events.groupBy("customer"), F.last("amount", by="at").alias("last"))

    Args:
        column: The value; it may be null.
        by: The column that orders the rows, such as an event time.  Rows where it is null do not
            count.  Of equal rows, one of a later micro-batch is kept.
    """
    return Aggregate(ValueBy("last", is_least=False), (by, column))


@_written
def latest_row(by: ColumnOrName, *columns: str) -> Aggregate:
    """
    Keep the row that has the largest value in a column, as a struct.

    Example:
        aggregate(events.groupBy("customer"), F.latest_row("at", "amount").alias("newest"))

    Args:
        by: The column that orders the rows, as for `last`.
        columns: The columns of the row that are kept; none for all.
    """
    if not all(isinstance(column, str) for column in columns):
        raise UsageError("latest_row takes the names of the columns to keep, such as 'price'")
    kind = ValueBy("latest_row", is_least=False, names=columns)
    return Aggregate(kind, (by, *columns), None if columns else kind.of_row)


@_written
def top_k(column: ColumnOrName, k: int, by: ColumnOrName | None = None) -> Aggregate:
    """
    Keep the values from the rows with the largest values in a second column, largest first.

    Example:
        aggregate(events.groupBy("customer"), F.top_k("amount", 3).alias("largest"))

    Args:
        column: The values, of any type.
        k: Most values of a key, at least 1.
        by: The column that orders the rows; None for the values themselves.  Rows where it is null
            do not count.
    """
    if type(k) is not int or k < 1:
        raise UsageError(f"top_k: k={k!r}; it must be the number of values to keep, at least 1")
    return Aggregate(TopK(k), (column if by is None else by, column))


@_written
def approx_count_distinct(column: ColumnOrName, rsd: float = 0.05) -> Aggregate:
    """
    Count the distinct values approximately.

    Needs the extra `sketches`.

    Example:
        aggregate(events.groupBy("customer"), F.approx_count_distinct("amount").alias("amounts"))

    Args:
        column: The values.
        rsd: Relative standard deviation of the count, 0.0008 to below 1.  A key takes up to
            `0.54 / rsd**2` bytes.
    """
    return Aggregate(DistinctCount(log_of_buckets(_number(rsd))), (column,))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"approx_count_distinct: rsd={value!r} is not a number")
    return float(value)
