"""Switches of tricks, errors of a Spark without a part, and the number of a query's own workers."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql import types

from statelog.errors import InvalidOptionsError
from statelog.spark.jvm.python_job import QueryNumbers
from statelog.spark.jvm.tricks import Trick, is_lacking, is_switch
from statelog.spark.query.resolve import resolve_settings


def test_a_switch_of_the_session_is_checked() -> None:
    assert is_switch("spark.statelog.jvm.oneShuffle", "false")
    assert not is_switch("spark.statelog.memoryBudget", "1")
    with pytest.raises(InvalidOptionsError, match=r"twoShuffles.*the switches are pythonJobs, "):
        is_switch("spark.statelog.jvm.twoShuffles", "false")
    with pytest.raises(InvalidOptionsError, match=r"jvm\.oneShuffle"):
        is_switch("spark.statelog.jvm.oneShuffle", "perhaps")


def test_switches_are_settings_of_the_session_only() -> None:
    resolve_settings({trick.switch: "false" for trick in Trick}, {})
    with pytest.raises(InvalidOptionsError, match="jvm"):
        resolve_settings({"spark.statelog.jvm.pythonjobs": "false"}, {})
    with pytest.raises(InvalidOptionsError, match="jvm"):
        resolve_settings({}, {}, {"jvm.pythonJobs": "false"})


class JavaClass:
    """A class of Java: its name and those of its base classes."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def getName(self) -> str:
        return self._names[0]

    def getSuperclass(self) -> "JavaClass | None":
        return JavaClass(*self._names[1:]) if self._names[1:] else None


class JavaError(Py4JJavaError):
    """An error in the JVM, without a JVM."""

    def __init__(self, message: str, *names: str) -> None:
        self.java_exception: Any = SimpleNamespace(
            getClass=lambda: JavaClass(*names), getMessage=lambda: message
        )


MISSING = (
    Py4JError("org.apache.spark.Nothing does not exist in the JVM"),
    AttributeError("no attribute 'later'", name="later", obj=types),
    AttributeError("no attribute 'later'", name="later", obj=types.LongType()),
    AttributeError("no attribute 'later'", name="later", obj=types.LongType),
    TypeError("'JavaPackage' object is not callable"),
    JavaError("a", "java.lang.NoSuchMethodError", "java.lang.LinkageError", "java.lang.Error"),
    JavaError("a", "java.lang.ClassCastException", "java.lang.RuntimeException"),
    JavaError("Failed to copy node. Is otherCopyArgs right?", "java.lang.IllegalStateException"),
)
FAULTS = (
    Py4JNetworkError("Answer from Java side is empty"),
    TypeError("cannot pickle '_thread.lock' object"),
    AttributeError("no attribute 'later'", name="later", obj=JavaClass("the user's")),
    AttributeError("raised without an object"),
    JavaError("Job aborted", "org.apache.spark.SparkException", "java.lang.Exception"),
    JavaError("stopped", "java.lang.InterruptedException", "java.lang.Exception"),
)


@pytest.mark.parametrize("error", MISSING + FAULTS, ids=repr)
def test_a_missing_part_of_spark_is_told_from_other_errors(error: Exception) -> None:
    assert is_lacking(error) is (error in MISSING)


def test_each_active_query_has_a_number_and_keeps_it() -> None:
    numbers, active = QueryNumbers(), {"a", "b"}
    for _ in range(2):
        assert 0 == numbers.number("a", 2, active.__contains__)
        assert 1 == numbers.number("b", 2, active.__contains__)
    assert numbers.number("c", 2, active.__contains__) is None


def test_a_number_is_given_again_once_its_query_has_ended() -> None:
    numbers, active = QueryNumbers(), {"a", "b"}
    for query in "ab":
        numbers.number(query, 2, active.__contains__)
    active.remove("a")
    assert 0 == numbers.number("c", 2, {*active, "c"}.__contains__)
    # It starts again: its number is taken, and no two active queries have the same.
    assert numbers.number("a", 2, {"a", "b", "c"}.__contains__) is None
    assert 2 == numbers.number("a", 3, {"a", "b", "c"}.__contains__)


def test_a_query_that_starts_again_finds_its_workers() -> None:
    numbers, active = QueryNumbers(), {"a", "b"}
    for query in "ab":
        numbers.number(query, 3, active.__contains__)
    active.remove("b")
    assert 1 == numbers.number("b", 3, {"a", "b"}.__contains__)
