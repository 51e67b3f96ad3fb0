"""What the running version of Spark lacks: tests that need it are skipped, and counted apart."""

import importlib
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, GroupedData

from statelog.spark.rows.spark_versions import SPARK, arrow_of
from statelog.spark.rows.types import arrow_schema

NOT_OFFERED = f"not offered by Spark {SPARK[0]}.{SPARK[1]}"
"""How the reason of such a skip begins; tools/spark_matrix.py counts by it."""


def needs(version: tuple[int, int], what: str) -> pytest.MarkDecorator:
    """Mark a test of something that Spark has from *version* on."""
    return pytest.mark.skipif(SPARK < version, reason=f"{NOT_OFFERED}: {what}")


ROWS = needs((4, 1), "transformWithState of Rows")
ARROW = needs((4, 0), "frames of Arrow tables")
TWS_TESTER = needs((4, 2), "TwsTester")

try:
    from pyspark.sql.streaming.tws_tester import TwsTester
except ImportError:
    TwsTester = None


def of_spark(module: str, name: str) -> Any:
    """Return a name of a module of PySpark, or skip the test that runs."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        not_offered(name)


def not_offered(what: str) -> NoReturn:
    """Skip the test that runs."""
    pytest.skip(f"{NOT_OFFERED}: {what}")


def table_of(frame: DataFrame) -> pa.Table:
    """Return the rows of *frame*, as `toArrow` does from Spark 4.0 on."""
    return arrow_of(frame, arrow_schema(frame.schema))


def row_operator(grouped: GroupedData) -> Any:
    """Return Spark's own transformWithState of *grouped*, or skip the test that runs."""
    if SPARK < (4, 1):
        not_offered("transformWithState of Rows")
    return grouped.transformWithState


def pandas_operator(grouped: GroupedData) -> Any:
    """Return Spark's own transformWithStateInPandas of *grouped*, or skip the test that runs."""
    if SPARK < (4, 0):
        not_offered("transformWithStateInPandas")
    return grouped.transformWithStateInPandas
