"""Make Spark frames of Arrow tables."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.spark.query.session import is_connect

_MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NO_LIMIT = 2**31 - 1


def frame_of_arrow(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Return an Arrow table as a frame, for any batch size."""
    if is_connect(session):  # the client sends Arrow as it is
        return session.createDataFrame(table, schema=schema)
    limit = session.conf.get(_MAX_RECORDS) or "0"
    if int(limit) > 0:
        return session.createDataFrame(table, schema=schema)
    # 0 means no limit in the session, but PySpark passes the number to Arrow, which rejects it.
    session.conf.set(_MAX_RECORDS, str(_NO_LIMIT))
    try:
        return session.createDataFrame(table, schema=schema)
    finally:
        session.conf.set(_MAX_RECORDS, limit)
