"""Check and prepare a session for the entry points."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from statelog.errors import UsageError

_CONNECT = "pyspark.sql.connect"


def refuse_connect(entry: str, *objects: object) -> None:
    """
    Reject objects of Spark Connect.

    Raises:
        UsageError: One of *objects* belongs to a session of Spark Connect.
    """
    for each in objects:
        if any(cls.__module__.startswith(_CONNECT) for cls in type(each).__mro__):
            raise UsageError(
                f"{entry} does not work on Spark Connect ({type(each).__name__}): the driver's part "
                "of statelog has to run in the driver. Use a classic session, such as one from "
                "SparkSession.builder.master(...) without a remote address"
            )


def use_this_python(session: SparkSession) -> None:
    """Run local workers on the driver's interpreter unless PYSPARK_PYTHON names another."""
    context = session.sparkContext
    is_chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python")
    if not is_chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def parse_schema(session: SparkSession, schema: StructType | str) -> StructType:
    """
    Return a schema that may be given as DDL text.

    Raises:
        UsageError: The text is no schema of named columns.
    """
    if isinstance(schema, StructType):
        return schema
    parsed = session._parse_ddl(schema) if isinstance(schema, str) else None
    if not isinstance(parsed, StructType):
        raise UsageError(f"a schema of named columns is needed, not {schema!r}")
    return parsed
