"""
Tricks: faster routes through Spark's internals, each with a plain alternative.

A trick is used unless `spark.statelog.jvm.<trick>` is false in the session.  Where a Spark, such as
that of a managed platform, does not have what a trick needs, or an input does not fit it, the plain
way is taken, and the log has the reason once for each query.  All other errors are raised.
Docs: docs/reference/spark-versions.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Final, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from statelog.errors import InvalidOptionsError
from statelog.options.kinds import SWITCH
from statelog.spark.jvm.gateway import JavaObject, is_connect, query_of

_log = logging.getLogger("statelog.spark")
_T = TypeVar("_T")

SWITCH_PREFIX: Final = "spark.statelog.jvm."


class Trick(Enum):
    """The tricks, named after their switches."""

    PYTHON_JOBS = "pythonJobs"
    """Make a Python job of the parts of an earlier one; else `mapInArrow` makes each."""
    OWN_WORKERS = "ownWorkers"
    """Separate the Python workers of tasks, which the tasks of a job share otherwise."""
    ARROW_FRAMES = "arrowFrames"
    """Send small results to the JVM with few calls; else by `createDataFrame`."""
    ARROW_BATCHES = "arrowBatches"
    """Do not measure Arrow batches of a fixed width; else Spark measures each row."""
    ONE_SHUFFLE = "oneShuffle"
    """Shuffle the rows of `aggregate` once; else Spark shuffles them twice."""
    KEPT_PLANS = "keptPlans"
    """Plan the aggregation of a query once; else in each micro-batch."""
    INPUT_SIZE = "inputSize"
    """
    Choose the number of tasks by the size of the input too.

    Else by the time of earlier batches.
    """

    @property
    def switch(self) -> str:
        """The session setting that turns the trick off."""
        return f"{SWITCH_PREFIX}{self.value}"


class Unfit(Exception):  # noqa: N818
    """A trick does not work for an input; the message gives the reason."""


def is_switch(key: str, value: str) -> bool:
    """Return whether a session setting is a trick's switch, and check its value."""
    if not key.startswith(SWITCH_PREFIX):
        return False
    if key not in [trick.switch for trick in Trick]:
        names = ", ".join(trick.value for trick in Trick)
        raise InvalidOptionsError(
            f"Spark's configuration {key!r}: unknown switch; the switches are {names}", key=key
        )
    SWITCH.parse(value, key)
    return True


def attempt(trick: Trick, session: SparkSession, action: Callable[[], _T]) -> _T | None:
    """Return the result of *action*, or None if the plain alternative must be used."""
    if is_connect(session) or not _is_on(trick, session) or _fallbacks.is_lacking(trick, session):
        return None
    try:
        return action()
    except Unfit as reason:
        _fallbacks.report(trick, session, str(reason), logging.INFO)
    except (Py4JError, AttributeError, TypeError) as error:
        if not is_lacking(error):
            raise
        _fallbacks.report_lacking(trick, session, error)
    return None


def _is_on(trick: Trick, session: SparkSession) -> bool:
    return SWITCH.parse(session.conf.get(trick.switch, "true") or "true", trick.switch)


_LACKING: Final = (
    "java.lang.LinkageError",  # a class, method or field is missing, or has another form
    "java.lang.ReflectiveOperationException",
    "java.lang.ClassCastException",
)
_NOT_COPIED: Final = "Failed to copy node"
"""The text of Spark's error for a node of a plan that takes other arguments."""


def is_lacking(error: Exception) -> bool:
    """Return whether an error means that this version of Spark lacks a feature."""
    if isinstance(error, Py4JJavaError):
        failed: JavaObject = error.java_exception
        kinds = _superclasses(failed.getClass())
        return any(kind in kinds for kind in _LACKING) or _NOT_COPIED in str(failed.getMessage())
    if isinstance(error, Py4JNetworkError):
        return False
    if isinstance(error, TypeError):  # py4j takes a missing class for a package
        return "'JavaPackage' object" in str(error)
    if isinstance(error, AttributeError):
        return _is_of_pyspark(error.obj)
    return isinstance(error, Py4JError)


def _is_of_pyspark(owner: object) -> bool:
    """Return whether a module, class or object is part of PySpark."""
    if isinstance(owner, ModuleType):
        name = owner.__name__
    else:
        name = (owner if isinstance(owner, type) else type(owner)).__module__
    return name.partition(".")[0] in ("pyspark", "py4j")


def _superclasses(kind: JavaObject) -> list[str]:
    names: list[str] = []
    while kind is not None:
        names.append(kind.getName())
        kind = kind.getSuperclass()
    return names


class _Fallbacks:
    """
    The tricks that this process's queries cannot use; each is logged once per query.

    Thread: any.
    """

    _MOST: Final = 1000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: dict[tuple[str, Trick, int], None] = {}
        self._lacking: set[tuple[str, Trick]] = set()

    def is_lacking(self, trick: Trick, session: SparkSession) -> bool:
        """Return whether the current query has already found that Spark lacks a trick."""
        return bool(self._lacking) and (query_of(session), trick) in self._lacking

    def report_lacking(self, trick: Trick, session: SparkSession, error: Exception) -> None:
        """Log that Spark lacks a trick, and do not use it again in this query."""
        reason = f"this version of Spark lacks a required feature: {error!s:.300}"
        self.report(trick, session, reason, logging.WARNING)
        query = query_of(session)
        if query:  # outside of queries each call tries again
            with self._lock:
                self._lacking.add((query, trick))

    def report(self, trick: Trick, session: SparkSession, reason: str, level: int) -> None:
        """Log why a trick is not used, once per query."""
        query = query_of(session)
        with self._lock:
            if (query, trick, level) in self._logged:
                return
            if query:  # outside of queries each call is logged
                self._logged[query, trick, level] = None
            if len(self._logged) > self._MOST:
                del self._logged[next(iter(self._logged))]
        _log.log(level, "%s is not used (query %s): %s", trick.value, query or "none", reason)


_fallbacks = _Fallbacks()
