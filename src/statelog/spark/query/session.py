"""What the entry points need of a session: that it is classic, its Python, its schemas."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from statelog.errors import UsageError

_CONNECT = "pyspark.sql.connect"


def refuse_connect(entry: str, *objects: Any) -> None:
    """
    Refuse objects of Spark Connect.

    Raises:
        UsageError: One of *objects* belongs to a Spark Connect session.
    """
    for each in objects:
        if any(cls.__module__.startswith(_CONNECT) for cls in type(each).__mro__):
            raise UsageError(
                f"{entry} does not work on Spark Connect ({type(each).__name__}): the driver's part "
                "of statelog has to run in the driver. Use a classic session, such as one from "
                "SparkSession.builder.master(...) with no remote address"
            )


def use_this_python(session: SparkSession) -> None:
    """Let local workers run on the driver's interpreter where nobody chose another."""
    context = session.sparkContext
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python")
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def parse_schema(session: SparkSession, schema: StructType | str) -> StructType:
    """
    Return a schema that may be DDL text.

    Raises:
        UsageError: It is no schema of named columns.
    """
    if isinstance(schema, StructType):
        return schema
    parsed = session._parse_ddl(schema) if isinstance(schema, str) else None
    if not isinstance(parsed, StructType):
        raise UsageError(f"a schema of named columns is needed, not {schema!r}")
    return parsed
