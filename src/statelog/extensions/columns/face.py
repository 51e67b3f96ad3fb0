"""The face of columns, and the handle that `init` gets once on the driver."""

from __future__ import annotations

from typing import Final, NoReturn, cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.extensions.columns.processor import ColumnarProcessor
from statelog.extensions.columns.rows import ColumnarFormat
from statelog.extensions.columns.run import ColumnarRun
from statelog.extensions.columns.slots import SlotState
from statelog.spark.query.declared_state import DriverHandle
from statelog.spark.query.face import Face, Methods
from statelog.spark.query.state_variables import SchemaLike, WantedVariable
from statelog.spark.rows.formats import RowFormat
from statelog.state.kinds import StateKind


class ColumnarDriverHandle(DriverHandle):
    """Notes the variables that a columnar processor asks for."""

    def getColumnState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> object:
        """Note a variable; what is returned cannot be used, because keys do not exist."""
        return super()._variable(
            WantedVariable(stateName, StateKind.VALUE, schema, ttl_ms=ttlDurationMs)
        )

    def _variable(self, variable: WantedVariable) -> NoReturn:
        """Refuse the variables of other processors."""
        raise UsageError(
            "a columnar processor has column state and timers: use getColumnState for values. Lists "
            "and maps of each key need a processor of Rows or pandas frames"
        )

    @property
    def timers(self) -> _NoTimers:
        """Timers that cannot be used, because keys do not exist."""
        return _NoTimers()


class _NoTimers:
    """Timers on the driver."""

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise UsageError("timers belong to keys; register them in process()")

    register = delete = get = _refuse


def _columns(session: SparkSession, output: StructType, has_initial: bool) -> RowFormat:
    return ColumnarFormat()


def _test_tables(tester: object, rows: pa.Table | None, initial: pa.Table | None) -> pa.Table:
    # Imported here, because a task does not test.
    from statelog.extensions.columns.tester import Tester, run_columns

    return run_columns(cast("Tester", tester), rows, initial)


COLUMNS: Final = Face(
    processor_type=ColumnarProcessor,
    methods=Methods("process", "expired", "initialize"),
    handles_single_keys=False,
    row_format=_columns,
    driver_handle=ColumnarDriverHandle,
    new_state=SlotState,
    new_run=ColumnarRun,
    test_tables=_test_tables,
)
