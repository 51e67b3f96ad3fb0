"""
Collect the side outputs that a processor declares in `init`.

`init` declares each by `handle.sideOutput(name, schema)`, on the driver and in each task.
Source: Flink's `OutputTag` and `Context.output`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.extensions.side_outputs.stored import SIDE_BATCH, SIDE_CHECKPOINT
from statelog.spark.query.declared_state import is_name
from statelog.spark.query.settings import QuerySettings
from statelog.spark.query.state_variables import SchemaLike
from statelog.spark.rows.types import arrow_schema

SIDE_COLUMNS: Final = (pa.field(SIDE_CHECKPOINT, pa.int64()), pa.field(SIDE_BATCH, pa.int64()))
"""The columns that precede the declared columns in stored rows."""


class SideOutput(Protocol):
    """A named output of a processor, which `handle.sideOutput(name, schema)` returns in `init`."""

    def emit(self, row: object) -> None:
        """
        Emit a row, which is committed with the micro-batch unless the call fails.

        Args:
            row: A `Row` with the names of the columns, or a tuple in their order; for a processor
                of frames a DataFrame, for a `ColumnarProcessor` a table.  A column that a Row
                leaves out is null.

        Raises:
            UsageError: It does not fit the columns, or neither rows nor timers are handled now.
        """


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
        """The columns of stored rows: checkpoint, micro-batch, then the declared columns."""
        return pa.schema([*SIDE_COLUMNS, *self.arrow])

    @property
    def stored_columns(self) -> StructType:
        """The same columns, as Spark types."""
        struct = StructType()
        for field in SIDE_COLUMNS:
            struct.add(field.name, "long")
        return StructType([*struct.fields, *self.columns.fields])


SideSchemas = Mapping[str, SideSchema]
"""The side outputs of an operator, by name."""


class DeclaredSideOutputs:
    """The side outputs that a processor declares."""

    def __init__(self, struct: Callable[[SchemaLike, str], StructType]) -> None:
        self._struct = struct
        self._schemas: dict[str, SideSchema] = {}

    def calls(self) -> Mapping[str, Callable[..., object]]:
        """Return the method `sideOutput`."""
        return {"sideOutput": self._side_output}

    def _side_output(self, name: str, schema: SchemaLike) -> DeclaredOutput:
        """Declare a side output; `init` itself cannot emit rows."""
        struct = self._struct(schema, f"side output {name!r}")
        self._schemas[name] = side_schema(name, struct, self._schemas)
        return DeclaredOutput(name)

    def declared(self) -> SideSchemas:
        """Return the schemas of the side outputs, by name."""
        return self._schemas

    @staticmethod
    def check(
        declared: SideSchemas, before: Sequence[SideSchemas], settings: QuerySettings
    ) -> None:
        """Raise `UsageError` if two operators of a query declare side outputs of the same name."""
        _refuse_shared_names([*before, declared])

    @staticmethod
    def batch_part(declared: SideSchemas | None, settings: QuerySettings) -> None:
        """Raise `UsageError` if a processor has side outputs, which a batch frame would lose."""
        if declared:
            raise UsageError(
                f"the processor declares the side output {', '.join(declared)}: rows of side outputs are "
                "committed with a micro-batch, which a batch frame does not have. Pass a "
                "stream to transform_with_state"
            )


def side_schema(name: object, columns: StructType, declared: SideSchemas) -> SideSchema:
    """Return the side output for a declaration in `init`."""
    if not isinstance(name, str) or not is_name(name):
        raise UsageError(
            f"the name of a side output must be up to 100 letters, digits, '_' and '.', not {name!r:.200}"
        )
    if name in declared:
        raise UsageError(f"init() declares the side output {name!r} twice")
    names = columns.names
    # Spark finds columns by their names whatever the case is.
    reserved = {field.name for field in SIDE_COLUMNS} & {name.lower() for name in names}
    if reserved or len(set(names)) < len(names) or not names:
        raise UsageError(
            f"side output {name!r} has the columns {', '.join(names) or 'none'}: it needs at least one column, "
            f"with distinct names other than {' or '.join(f.name for f in SIDE_COLUMNS)}"
        )
    return SideSchema(columns, arrow_schema(columns, f"side output {name!r}: "))


class DeclaredOutput:
    """A side output on the driver, where processors do not receive rows."""

    def __init__(self, name: str) -> None:
        self._name = name

    def emit(self, row: object) -> NoReturn:
        """Raise an error: rows can be emitted only while rows or timers are handled."""
        raise emitted_too_early(self._name)


def _refuse_shared_names(schemas: Sequence[SideSchemas]) -> None:
    names: set[str] = set()
    for declared in schemas:
        if shared := min(names & declared.keys(), default=""):
            raise UsageError(
                f"two operators of the query declare the side output {shared!r}: rename one of them"
            )
        names |= declared.keys()


def emitted_too_early(name: str) -> UsageError:
    """Return the error for a row emitted in `init` or `close`."""
    return UsageError(
        f"side output {name!r}: emit rows while rows or timers are handled, not in init() or close()"
    )


def operator_of(name: str, schemas: Sequence[SideSchemas]) -> int:
    """Return the index of the operator that declares a side output."""
    for index, declared in enumerate(schemas):
        if name in declared:
            return index
    names = ", ".join(output for declared in schemas for output in declared)
    listed = f"its side outputs are {names}" if names else "it declares none"
    raise UsageError(
        f"the query does not have the side output {name!r}: {listed}. Declare it in init() "
        "with handle.sideOutput(name, schema)"
    )
