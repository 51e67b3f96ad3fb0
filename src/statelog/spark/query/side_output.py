"""
The side outputs that a processor declares: rows by name, next to its output.

`init` declares each by `handle.sideOutput(name, schema)`, on the driver and in each task.
Source: Flink's `OutputTag` and `Context.output`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.state.reader.side_outputs import SIDE_BATCH, SIDE_CHECKPOINT

SIDE_COLUMNS: Final = (pa.field(SIDE_CHECKPOINT, pa.int64()), pa.field(SIDE_BATCH, pa.int64()))
"""The columns that stored rows have before their own."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,99}")


@dataclass(frozen=True, slots=True)
class SideSchema:
    """
    The columns of a side output.

    Args:
        columns: As Spark has them.
        arrow: The same in Arrow's types.
    """

    columns: StructType
    arrow: pa.Schema

    @property
    def stored(self) -> pa.Schema:
        """The columns of stored rows: their checkpoint and micro-batch, then their own."""
        return pa.schema([*SIDE_COLUMNS, *self.arrow])

    @property
    def stored_columns(self) -> StructType:
        """The same as Spark has them."""
        struct = StructType()
        for field in SIDE_COLUMNS:
            struct.add(field.name, "long")
        return StructType([*struct.fields, *self.columns.fields])


SideSchemas = Mapping[str, SideSchema]
"""The side outputs of an operator, by name."""


def is_name(name: object) -> bool:
    """Return whether a side output or a broadcast table may have a name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class SideOutput(Protocol):
    """A named output of a processor; `handle.sideOutput(name, schema)` returns it in `init`."""

    def emit(self, row: object) -> None:
        """
        Emit a row; it is committed with the micro-batch, unless the call fails.

        Args:
            row: A `Row` with the names of the columns, or a tuple in their order; for a processor of
                frames a DataFrame, for a `ColumnarProcessor` a table.  A column that a Row leaves out
                is null.

        Raises:
            UsageError: It does not fit the columns, or neither rows nor timers are handled now.
        """


def emitted_too_early(name: str) -> UsageError:
    """Return the error of a row that is emitted in `init` or `close`."""
    return UsageError(
        f"side output {name!r}: emit rows while rows or timers are handled, not in init() or close()"
    )


def operator_of(name: str, schemas: Sequence[SideSchemas]) -> int:
    """
    Return the index of the operator that declares a side output.

    Args:
        name: Its name.
        schemas: The side outputs of each operator of a query.

    Raises:
        UsageError: No operator of the query declares it.
    """
    for index, declared in enumerate(schemas):
        if name in declared:
            return index
    names = ", ".join(each for declared in schemas for each in declared)
    listed = f"it declares {names}" if names else "it declares none"
    raise UsageError(
        f"the query does not have the side output {name!r}: {listed}. A processor declares one in init() "
        "by handle.sideOutput(name, schema)"
    )
