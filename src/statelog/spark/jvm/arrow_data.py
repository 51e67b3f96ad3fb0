"""
Arrow data between the driver, the JVM and the workers of a query.

Small results go to the JVM with few calls.  Towards the workers Spark adds up the buffers of a
batch before it writes a row, to end the batch at a number of bytes, which takes longer than to
write a row of two numbers.  Where every column has a fixed width, the number of rows says that the
bytes are not reached, and here Spark is told so.  Columns of text, binary data, arrays and maps are
measured as before: a batch of long texts could be too large for the worker.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.types import StructType

from statelog.format.arrow_limits import batches_of
from statelog.spark.jvm.gateway import JavaObject, is_connect, jvm_of, with_setting
from statelog.spark.jvm.tricks import Trick, Unfit, attempt
from statelog.spark.rows.types import (
    MAX_BYTES,
    MAX_RECORDS,
    NO_LIMIT,
    ArrowLimits,
    arrow_schema,
    row_bytes,
)

_CREATES_OF_ARROW: Final = hasattr(DataFrame, "toArrow")
"""From Spark 4.0 on `createDataFrame` takes Arrow tables, since `toArrow` returns them."""
_LARGE_TYPES: Final = "spark.sql.execution.arrow.useLargeVarTypes"


def frame_of_arrow(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Return an Arrow table as a frame, for any batch size."""
    if not _CREATES_OF_ARROW:
        limit = ArrowLimits.of(session).records
        batches = batches_of(table.cast(arrow_schema(schema)))
        parts = pa.Table.from_batches(batches).to_batches(limit)
        return _frame_of_batches(session, _filled(parts), schema)
    if is_connect(session):  # the client sends Arrow as it is
        return session.createDataFrame(table, schema=schema)
    if int(session.conf.get(MAX_RECORDS) or 0) > 0:
        return session.createDataFrame(table, schema=schema)
    # 0 means no limit in the session, but PySpark passes the number to Arrow, which rejects it.
    with with_setting(session, MAX_RECORDS, str(NO_LIMIT)):
        return session.createDataFrame(table, schema=schema)


def frame_of_few_rows(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Return a small Arrow table as a frame; `createDataFrame` makes some forty calls."""
    frame = attempt(Trick.ARROW_FRAMES, session, lambda: _sent(session, table, schema))
    return frame_of_arrow(session, table, schema) if frame is None else frame


def _sent(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Source: PySpark's `SparkConversionMixin._create_from_arrow_table`."""
    if table.schema.types != arrow_schema(schema).types:
        raise Unfit("the rows have other types than the output")
    if session.conf.get(_LARGE_TYPES, "false") == "true":
        raise Unfit(f"{_LARGE_TYPES} is set")
    return _frame_of_batches(session, _filled(batches_of(table)), schema)


def _filled(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [batch for batch in batches if batch.num_rows]


def _frame_of_batches(
    session: SparkSession, batches: list[pa.RecordBatch], schema: StructType
) -> DataFrame:
    """Return batches as a frame; if they are large, each is a partition."""
    context: Any = session.sparkContext
    jvm: JavaObject = jvm_of(session)
    utils: JavaObject = jvm.PythonSQLUtils
    serializer: Any = ArrowStreamSerializer()
    read = context._serialize_to_jvm(
        batches,
        serializer,
        lambda path: utils.readArrowStreamFromFile(path),
        lambda: jvm.ArrowIteratorServer(),
    )
    frame = DataFrame(utils.toDataFrame(read, schema.json(), session._jsparkSession), session)
    frame._schema = schema
    return frame


class ArrowBatches:
    """
    The batches of the Python jobs of one query.

    Thread: Spark's thread of the query.
    """

    def __init__(self) -> None:
        self._fit: dict[Hashable, bool] = {}

    @contextmanager
    def not_measured(self, rows: DataFrame, columns: Hashable) -> Iterator[None]:
        """
        Let Spark only count the rows of a batch, in all jobs of the session that run meanwhile.

        Nothing changes where a batch may reach the limit in bytes, where the user has set that
        limit, and on Connect, where the session may be the user's own.
        """
        session = rows.sparkSession
        if columns not in self._fit:
            fit = attempt(Trick.ARROW_BATCHES, session, lambda: _fits(session, rows))
            self._fit[columns] = fit is True
        if not self._fit[columns]:
            yield
            return
        with with_setting(session, MAX_BYTES, str(NO_LIMIT), unless_set=True):
            yield


def _fits(session: SparkSession, rows: DataFrame) -> bool:
    """Return whether batches of these rows stay below the limit in bytes."""
    try:
        size = row_bytes(arrow_schema(rows.schema))
    except PySparkException:  # a type that Arrow lacks: an error where the job is made
        return False
    if size is None:
        return False
    limits = ArrowLimits.of(session)
    return limits.records < NO_LIMIT and limits.records * size <= limits.size
