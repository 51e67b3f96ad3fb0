"""Aggregates by an order: the least and greatest values, and the values of the rows that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, BooleanType, DataType, NumericType, StringType

from statelog.errors import UsageError
from statelog.extensions.columns.aggregation.kind import Parts, replaces
from statelog.format.arrow_limits import joined_arrays
from statelog.spark.rows.spark_versions import DATE_AND_TIME_TYPES
from statelog.spark.rows.types import sql_name
from statelog.state.encoding.converters import relabelled

_ORDERED: Final = (NumericType, StringType, BinaryType, BooleanType, *DATE_AND_TIME_TYPES)
_PLAIN_COLLATION: Final = "UTF8_BINARY"
_BY_DESCENDING: Final = "(l, r) -> CASE WHEN l.by > r.by THEN -1 WHEN l.by < r.by THEN 1 ELSE 0 END"


def is_ordered(kind: DataType) -> bool:
    """Return whether Arrow orders the values of a type, and does so as Spark does."""
    collation = getattr(kind, "collation", _PLAIN_COLLATION)
    return isinstance(kind, _ORDERED) and collation == _PLAIN_COLLATION


def check_ordered(title: str, kind: DataType, verb: str = "orders") -> None:
    """Reject a type whose values Arrow does not order as Spark does; *verb* says what *title* does."""
    if not is_ordered(kind):
        raise UsageError(
            f"{title} {verb} numbers, text, binary, booleans, dates and timestamps, not "
            f"{kind.simpleString()}: cast the column"
        )


@dataclass(frozen=True, slots=True)
class Extreme:
    """The least or the greatest value that is not null."""

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
    The value of the row in which another column is least or greatest.

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
    The values of the *k* rows with the greatest of another column, greatest first.

    The arguments are that column and the value.  Of rows with equal ones, those with the greater value
    are kept; rows of earlier micro-batches where values are not ordered, in Spark as in Arrow.
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
        some = f"CASE WHEN {by} IS NOT NULL THEN struct({by} AS by, {value} AS value) END"
        rows = f"collect_list({some})"
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
        kept = rank < self.k
        offsets = np.concatenate([[0], np.cumsum(np.minimum(np.diff(starts), self.k))])
        values = row.take(pa.array(order[kept]))
        kind = left[""].type
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        return {"": relabelled(lists, kind)}

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        owner, rows = _flat(state[""])
        starts = np.searchsorted(owner, np.arange(len(state[""]) + 1))
        values = pc.struct_field(rows, "value")
        return relabelled(pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values), kind)


def _flat(lists: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the elements of a column of lists, and for each the row that it is of."""
    return pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)


def _by_rank(
    owner: npt.NDArray[np.int64], rows: pa.Array, names: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Return the order of rows by owner, then greatest first, by these of their fields."""
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
