"""
The JVM of a classic session, accessed through py4j, without types.

Spark Connect does not have a JVM to ask: callers check `is_connect` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from pyspark.sql import SparkSession

JavaObject = Any
"""An object or a class of the JVM: py4j finds its attributes and methods at run time."""

FRAME: Final = "_jdf"
"""The attribute with the JVM's object of a classic frame."""

_CONNECT: Final = "pyspark.sql.connect"
_QUERY_ID: Final = "sql.streaming.queryId"
_SQL: Final = "org.apache.spark.sql"
_STREAMING: Final = f"{_SQL}.execution.streaming"


def is_connect(subject: object) -> bool:
    """Return whether a PySpark object belongs to a Spark Connect session."""
    return any(cls.__module__.startswith(_CONNECT) for cls in type(subject).__mro__)


def jvm_of(session: SparkSession) -> JavaObject:
    """Return the JVM of *session*; its attributes are Java packages and classes."""
    return session._jvm


def java_class(session: SparkSession, name: str) -> JavaObject:
    """Return a class from the JVM by its full name."""
    return getattr(jvm_of(session), name)


def scala_object(session: SparkSession, name: str) -> JavaObject:
    """Return the instance of a Scala `object` by its full name."""
    return getattr(java_class(session, f"{name}$"), "MODULE$")


def empty_array(session: SparkSession, name: str) -> JavaObject:
    """Return an empty Java array of a class."""
    gateway: JavaObject = session.sparkContext._gateway
    return gateway.new_array(java_class(session, name), 0)


def streaming_class(session: SparkSession, name: str, part: str = "runtime") -> JavaObject:
    """Return a class of Spark's streaming engine; *part* is its subpackage as of Spark 4.1."""
    newer = java_class(session, f"{_STREAMING}.{part}.{name}")
    return newer if _is_class(newer) else java_class(session, f"{_STREAMING}.{name}")


def classic_class(session: SparkSession, name: str) -> JavaObject:
    """Return a class of the classic session, whose package is different before Spark 4.0."""
    newer = java_class(session, f"{_SQL}.classic.{name}")
    return newer if _is_class(newer) else java_class(session, f"{_SQL}.{name}")


def column_maker(session: SparkSession) -> Callable[[JavaObject], JavaObject]:
    """Return a function of the JVM that converts an expression to a column."""
    utils = java_class(session, f"{_SQL}.classic.ExpressionUtils")
    maker: JavaObject = utils.column if _is_class(utils) else java_class(session, f"{_SQL}.Column")
    return cast("Callable[[JavaObject], JavaObject]", maker)


def _is_class(found_by_name: JavaObject) -> bool:
    # py4j takes an unknown name for a package.
    return type(found_by_name).__name__ != "JavaPackage"


def settings_of(session: SparkSession) -> Mapping[str, str]:
    """Return a session's settings, which PySpark itself exposes only since 4.0."""
    if is_connect(session) or hasattr(type(session.conf), "getAll"):
        settings: Mapping[str, str] = session.conf.getAll
        return settings
    pairs = elements(session._jsparkSession.conf().getAll().toSeq())
    return {str(pair._1()): str(pair._2()) for pair in pairs}


def session_id(session: SparkSession) -> str:
    """Return the id of a classic session, which several Python objects may represent."""
    return str(session._jsparkSession.sessionUUID())


def query_of(session: SparkSession) -> str:
    """Return Spark's id for the query whose micro-batch is running in this thread, or ""."""
    return session.sparkContext.getLocalProperty(_QUERY_ID) or ""


def elements(sequence: JavaObject) -> list[JavaObject]:
    """Convert a Scala sequence to a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


@contextmanager
def with_setting(
    session: SparkSession, key: str, value: str, *, unless_set: bool = False
) -> Iterator[None]:
    """
    Temporarily change a setting of a classic session.

    What is set meanwhile stays, and with *unless_set* what was set before.
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
