"""Objects of the JVM, which py4j gives without types."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

JavaObject = Any
"""An object or a class of the JVM: py4j finds its attributes and methods at run time."""


def jvm_of(session: SparkSession) -> JavaObject:
    """Return the JVM of *session*, whose attributes are Java's packages and classes."""
    return session._jvm
