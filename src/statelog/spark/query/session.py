"""Check and prepare a session for the entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.types import StructType

from statelog.errors import UsageError

_CONNECT = "pyspark.sql.connect"


def is_connect(each: object) -> bool:
    """Return whether an object of PySpark belongs to a session of Spark Connect."""
    return any(cls.__module__.startswith(_CONNECT) for cls in type(each).__mro__)


def refuse_connect(entry: str, session: object) -> None:
    """
    Reject a session of Spark Connect, for a function that needs the driver's JVM.

    Raises:
        UsageError: It is one.
    """
    if is_connect(session):
        raise UsageError(
            f"{entry} does not work on Spark Connect: it needs the JVM of the driver. Call it in a "
            "classic session, such as one from SparkSession.builder.master(...) without a remote "
            "address"
        )


def session_of(grouped: object) -> SparkSession:
    """
    Return the session of a grouped frame, classic or of Spark Connect.

    Raises:
        UsageError: *grouped* is no GroupedData.
    """
    kind = type(grouped)
    is_grouped = isinstance(grouped, GroupedData) or (
        is_connect(grouped) and kind.__name__ == GroupedData.__name__
    )
    if not is_grouped:
        raise UsageError(
            "transform_with_state takes what df.groupBy(...) returns; got "
            f"{kind.__module__}.{kind.__name__}"
        )
    frame: DataFrame = grouped._df  # type: ignore[attr-defined]
    return frame.sparkSession


@contextmanager
def with_setting(
    session: SparkSession, key: str, value: str, *, unless_set: bool = False
) -> Iterator[None]:
    """
    Give a setting of a classic session another value for a while; what is set meanwhile stays.

    Args:
        session: The session.
        key: The setting.
        value: The value.
        unless_set: Whether a value that the session has stays, too.
    """
    before = session.conf.get(key, None)
    if before == value or (unless_set and before is not None):
        yield
        return
    session.conf.set(key, value)
    try:
        yield
    finally:
        if session.conf.get(key, None) == value:
            if before is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, before)


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
