"""Sinks for looking at rows, and for functions of a row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from statelog.spark.jvm.arrow_data import frame_of_arrow
from statelog.spark.query.delivery import Sink

if TYPE_CHECKING:
    from pyspark.sql._typing import SupportsProcess

RowFunction: TypeAlias = "Callable[[Row], None] | SupportsProcess"
"""What `foreach` takes."""


def foreach_sink(f: RowFunction) -> Sink:
    """
    Return a sink that calls *f* with each row, in the tasks.

    Args:
        f: A function of a row, or an object with `process(row)` and, optionally,
            `open(partition_id, epoch_id)` and `close(error)`.

    Raises:
        PySparkAttributeError: *f* is neither.
    """
    process: Any = DataStreamWriter._construct_foreach_function(f)

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.rdd.mapPartitionsWithIndex(process).count()

    return write


class Console:
    """Prints each micro-batch."""

    def __init__(self, rows: int, truncate: bool) -> None:
        self._rows = rows
        self._truncate = truncate

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        line = "-" * 43
        sys.stdout.write(f"{line}\nBatch: {batch_id}\n{line}\n")
        frame.show(self._rows, self._truncate)


class Memory:
    """
    Collects all rows in the driver as a temporary view.

    For tests and small results.
    """

    def __init__(self, session: SparkSession, name: str, schema: StructType) -> None:
        self._session = session  # a micro-batch has a copy of it, whose views the user cannot see
        self._name = name
        self._schema = schema
        self._batches: dict[int, pa.Table] = {}
        self._show()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._batches[batch_id] = frame.toArrow()
        self._show()

    def _show(self) -> None:
        if self._batches:
            rows = pa.concat_tables(self._batches.values())
            view = frame_of_arrow(self._session, rows, self._schema)
        else:
            view = self._session.createDataFrame([], self._schema)
        view.createOrReplaceTempView(self._name)
