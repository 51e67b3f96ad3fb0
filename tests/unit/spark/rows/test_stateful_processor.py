"""The classes for Spark 3.5 have what those of Spark 4 have; from 4.0 on Spark's own are given out."""

import inspect
from typing import Any

import pytest
from tests.support.spark import versions

import statelog.spark
from statelog.spark.rows import stateful_processor

NAMES = [
    name
    for name, kind in vars(stateful_processor).items()
    if inspect.isclass(kind) and kind.__module__ == stateful_processor.__name__
]
STATES = {"ValueState", "ListState", "MapState", "StatefulProcessorHandle"}
"""Their constructors are Spark's own business."""


def of_spark(name: str) -> Any:
    return versions.of_spark("pyspark.sql.streaming.stateful_processor", name)


def methods(kind: type) -> dict[str, list[tuple[str, Any]]]:
    """Return the arguments of the methods of a class, with their defaults."""
    return {
        name: [
            (parameter.name, parameter.default)
            for parameter in inspect.signature(method).parameters.values()
        ]
        for name, method in vars(kind).items()
        if inspect.isfunction(method)
        and (not name.startswith("_") or (name == "__init__" and kind.__name__ not in STATES))
    }


def test_all_of_the_interface_is_there() -> None:
    others = {"ExpiredTimerInfo", "StatefulProcessor", "TimerValues"}
    assert STATES | others == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_methods_and_arguments_are_sparks(name: str) -> None:
    assert methods(of_spark(name)) == methods(getattr(stateful_processor, name))


@pytest.mark.parametrize("name", NAMES)
def test_statelog_gives_out_sparks_own_class_where_there_is_one(name: str) -> None:
    assert getattr(statelog.spark, name) is of_spark(name)


def test_abstract_methods_are_sparks() -> None:
    abstract = of_spark("StatefulProcessor").__abstractmethods__
    assert abstract == stateful_processor.StatefulProcessor.__abstractmethods__


def test_a_processor_needs_two_methods_only() -> None:
    class Least(stateful_processor.StatefulProcessor):
        def init(self, handle: Any) -> None:
            """Do nothing."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return iter(())

    least, times = Least(), stateful_processor.TimerValues(3, 4)
    assert (3, 4) == (times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs())
    timer = stateful_processor.ExpiredTimerInfo(5)
    assert 5 == timer.getExpiryTimeInMs()
    assert [] == list(least.handleExpiredTimer(("k",), times, timer))
    assert least.handleInitialState(("k",), None, times) is least.close() is None  # type: ignore[func-returns-value]
    with pytest.raises(TypeError, match="abstract"):
        stateful_processor.StatefulProcessor()  # type: ignore[abstract]
