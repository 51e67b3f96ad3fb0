"""The faces of Rows and of pandas frames, whose processors are called key by key."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from statelog.extras import require
from statelog.spark.query.declared_state import DriverHandle
from statelog.spark.query.face import Face, Methods
from statelog.spark.rows.formats import PandasRowFormat, RowFormat, SparkRowFormat
from statelog.spark.rows.spark_versions import StatefulProcessor
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.state.keyed_state import KeyedState


def _rows(session: SparkSession, output: StructType, has_initial: bool) -> RowFormat:
    return SparkRowFormat()


def _frames(session: SparkSession, output: StructType, has_initial: bool) -> RowFormat:
    require("a processor of pandas frames", "spark", "pandas")
    # Imported here, because the import of pandas takes time.
    from statelog.spark.rows.pandas_input import PandasSettings

    return PandasRowFormat(PandasSettings.of(session, has_initial=has_initial), output)


ROWS: Final = Face(
    processor_type=StatefulProcessor,
    methods=Methods("handleInputRows", "handleExpiredTimer", "handleInitialState"),
    handles_single_keys=True,
    row_format=_rows,
    driver_handle=DriverHandle,
    new_state=KeyedState,
    new_run=ProcessorRun,
)
PANDAS: Final = replace(ROWS, row_format=_frames)
