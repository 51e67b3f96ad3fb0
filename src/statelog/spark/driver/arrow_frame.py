"""Make Spark frames of Arrow tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.types import StructType

from statelog.spark.query.session import is_connect, with_setting
from statelog.spark.rows.arrow_limits import MAX_RECORDS, NO_LIMIT
from statelog.spark.rows.jvm import JavaObject, jvm_of
from statelog.spark.rows.types import arrow_schema

_LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


def frame_of_arrow(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Return an Arrow table as a frame, for any batch size."""
    if is_connect(session):  # the client sends Arrow as it is
        return session.createDataFrame(table, schema=schema)
    if int(session.conf.get(MAX_RECORDS) or 0) > 0:
        return session.createDataFrame(table, schema=schema)
    # 0 means no limit in the session, but PySpark passes the number to Arrow, which rejects it.
    with with_setting(session, MAX_RECORDS, str(NO_LIMIT)):
        return session.createDataFrame(table, schema=schema)


def frame_of_few_rows(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """
    Return a small Arrow table as a frame, with few calls to the JVM.

    `createDataFrame` makes some forty, most of them for settings that only matter to tables of
    other types than the schema's.
    """
    if not is_connect(session) and table.schema.types == arrow_schema(schema).types:
        try:
            if session.conf.get(_LARGE_TYPES, "false") != "true":
                return _sent(session, table, schema)
        except (Py4JError, PySparkException, AttributeError, TypeError):
            pass  # of another version of Spark, or an error that follows again
    return frame_of_arrow(session, table, schema)


def _sent(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Source: PySpark's `SparkConversionMixin._create_from_arrow_table`."""
    context: Any = session.sparkContext
    jvm: JavaObject = jvm_of(session)
    utils: JavaObject = jvm.PythonSQLUtils
    serializer: Any = ArrowStreamSerializer()
    read = context._serialize_to_jvm(
        table.combine_chunks().to_batches(),
        serializer,
        lambda path: utils.readArrowStreamFromFile(path),
        lambda: jvm.ArrowIteratorServer(),
    )
    frame = DataFrame(utils.toDataFrame(read, schema.json(), session._jsparkSession), session)
    frame._schema = schema
    return frame
