"""The least and the greatest value, and the values of the row in which a column has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, BooleanType, DataType, NumericType, StringType

from statelog.errors import UsageError
from statelog.spark.aggregate.arrays import replaces
from statelog.spark.aggregate.kind import Parts
from statelog.spark.rows.spark_versions import DATE_AND_TIME_TYPES

_ORDERED: Final = (NumericType, StringType, BinaryType, BooleanType, *DATE_AND_TIME_TYPES)
_PLAIN_COLLATION: Final = "UTF8_BINARY"


def is_ordered(kind: DataType) -> bool:
    """Return whether Arrow orders the values of a type, and does so as Spark does."""
    collation = getattr(kind, "collation", _PLAIN_COLLATION)
    return isinstance(kind, _ORDERED) and collation == _PLAIN_COLLATION


def check_ordered(title: str, kind: DataType, verb: str = "orders") -> None:
    """
    Check that Arrow orders the values of a type as Spark does.

    Args:
        title: The function, for the message.
        kind: The type.
        verb: What the function does with the values.

    Raises:
        UsageError: It does not, or there is no order.
    """
    if not is_ordered(kind):
        raise UsageError(
            f"{title} {verb} numbers, text, binary, booleans, dates and timestamps, not "
            f"{kind.simpleString()}: cast the column"
        )


@dataclass(frozen=True, slots=True)
class Extreme:
    """
    The least or the greatest value that is not null.

    Args:
        is_least: Which.
    """

    is_least: bool

    @property
    def title(self) -> str:
        return "min_" if self.is_least else "max_"

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        check_ordered(self.title, types[0])
        return self

    def whole(self, arguments: Sequence[str]) -> str:
        return f"{self.title[:3]}({arguments[0]})"

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
    a value that is null does.

    Args:
        title: The function's name.
        is_least: Whether the row with the least is taken.
        names: Names of the fields, where the result is a struct of all values; else None.
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
                f"{one} AS {quoted(name)}" for one, name in zip(values, self.names, strict=True)
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


def quoted(name: str) -> str:
    """Return a name for SQL of Spark."""
    return "`" + name.replace("`", "``") + "`"
