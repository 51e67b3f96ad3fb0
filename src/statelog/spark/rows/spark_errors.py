"""
Errors of statelog that are instances of Spark's errors too.

Code written for Spark catches Spark's classes and compares Spark's messages.  So where Spark raises
an error of its own for a wrong use, statelog's error is an instance of both.
"""

from __future__ import annotations

from pyspark.errors import (
    IllegalArgumentException,
    PySparkAssertionError,
    PySparkException,
    PySparkRuntimeError,
    PySparkValueError,
)

from statelog.errors import Fact, UsageError
from statelog.spark.rows.spark_versions import ERROR_READER, begin_error

_ERROR_READER: object = vars(PySparkException(""))[ERROR_READER]


class _SparkUsageError(UsageError):
    """
    A wrong use, with the methods of `PySparkException`.

    The fact `condition` is Spark's error class, shown before the message.
    """

    condition: str | None = None

    def __init__(self, message: str = "", **facts: Fact) -> None:
        UsageError.__init__(self, message, **facts)
        if isinstance(self, PySparkException):
            begin_error(self, message, self.condition)
            # Shared by all errors, so that a copy is equal.
            vars(self)[ERROR_READER] = _ERROR_READER

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}" if self.condition else self.message


class DeletedStateError(_SparkUsageError, PySparkRuntimeError):
    """A processor uses a state variable that `deleteIfExists` has deleted."""


class UnsupportedOperationError(_SparkUsageError, PySparkValueError):
    """A call is not possible in the time mode."""


class MissingStateError(_SparkUsageError, PySparkAssertionError):
    """A state variable of this name does not exist."""


class WrongTimeError(_SparkUsageError, IllegalArgumentException):
    """A time does not move forward, or is before the watermark."""


class WrongArgumentError(_SparkUsageError, AssertionError):
    """An argument is wrong that PySpark checks by `assert`."""
