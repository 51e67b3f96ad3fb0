"""Rules of Spark's transformWithState that need no Spark to be seen; docs/reference/parity.md."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import GroupedData, Row
from pyspark.sql.streaming import stateful_processor as sparks
from tests.house.sources import ROOT
from tests.support.jobs import noted_calls
from tests.support.jobs.pandas_input import all_keys, read
from tests.support.spark.versions import ROWS, TWS_TESTER, TwsTester

from statelog.errors import ProcessorError
from statelog.spark import transform_with_state, transform_with_state_in_pandas
from statelog.spark.query.declared_state import DriverHandle as OurDriverHandle
from statelog.spark.query.state_variables import ExpiringListState as OurExpiringListState
from statelog.spark.query.state_variables import ExpiringMapState as OurExpiringMapState
from statelog.spark.query.state_variables import ExpiringValueState as OurExpiringValueState
from statelog.spark.query.state_variables import ListState as OurListState
from statelog.spark.query.state_variables import MapState as OurMapState
from statelog.spark.query.state_variables import ValueState as OurValueState
from statelog.spark.worker.handle import TaskHandle as OurTaskHandle
from statelog.testing import ProcessorTester

COUNTERPARTS: list[Any] = [
    (sparks.StatefulProcessorHandle, OurTaskHandle),
    (sparks.StatefulProcessorHandle, OurDriverHandle), (sparks.ValueState, OurValueState),
    (sparks.ValueState, OurExpiringValueState), (sparks.ListState, OurListState),
    (sparks.ListState, OurExpiringListState), (sparks.MapState, OurMapState),
    (sparks.MapState, OurExpiringMapState),
    pytest.param(TwsTester, ProcessorTester, marks=TWS_TESTER),
]  # fmt: skip
AS_THEY_ARE = [sparks.StatefulProcessor, sparks.TimerValues, sparks.ExpiredTimerInfo]


def public(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")]


def parameters(function: Any) -> list[tuple[str, Any]]:
    declared = inspect.signature(function).parameters.values()
    return [(item.name, item.default) for item in declared if item.kind is not item.KEYWORD_ONLY]


@pytest.mark.parametrize(("theirs", "ours"), COUNTERPARTS)
def test_every_method_takes_sparks_parameters(theirs: type, ours: type) -> None:
    assert len(public(theirs)) > 3
    for name in public(theirs):
        assert parameters(getattr(theirs, name)) == parameters(getattr(ours, name)), name


@ROWS
def test_the_functions_take_sparks_arguments_in_sparks_order() -> None:
    for theirs, ours in (
        (GroupedData.transformWithState, transform_with_state),
        (GroupedData.transformWithStateInPandas, transform_with_state_in_pandas),
    ):
        spark_names = [name for name, _ in parameters(theirs)][1:]  # without self
        assert spark_names == [name for name, _ in parameters(ours)][1 : 1 + len(spark_names)]


@TWS_TESTER
def test_the_page_names_every_method() -> None:
    page = (ROOT / "docs" / "reference" / "parity.md").read_text(encoding="utf-8")
    pairs = [getattr(pair, "values", pair) for pair in COUNTERPARTS]
    kinds = {theirs for theirs, _ in pairs} | set(AS_THEY_ARE)
    names = {f"`{kind.__name__}.{name}`" for kind in kinds for name in public(kind)}
    assert [] == sorted(name for name in names if name not in page)


class Traced(sparks.StatefulProcessor):
    """Notes its calls."""

    def init(self, handle: Any) -> None:
        noted_calls.CALLS.append(("init",))
        self.handle = handle
        self.seen = handle.getListState("seen", "what string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        noted_calls.CALLS.append(("initial", key, initialState.n))
        self.seen.appendValue((f"initial {initialState.n}",))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        read = [row.n for row in rows]
        now = timerValues.getCurrentProcessingTimeInMs()
        noted_calls.CALLS.append(("rows", key, type(key), read, now))
        for n in read:
            self.handle.registerTimer(n)
        yield Row(key=key[0])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time = expiredTimerInfo.getExpiryTimeInMs()
        noted_calls.CALLS.append(("timer", key.name, time, list(self.handle.listTimers())))
        if time == 1:
            self.handle.registerTimer(1)  # is gone with the timer that is firing
            self.handle.registerTimer(2)  # due, but not in this batch
            self.handle.deleteTimer(4)  # due in this batch: does not fire
        yield Row(key=key[0])

    def close(self) -> None:
        noted_calls.CALLS.append(("close",))


def test_calls_come_in_sparks_order_with_sparks_keys() -> None:
    noted_calls.CALLS.clear()
    initial = [("b", Row(n=1)), ("a", Row(n=2)), ("a", Row(n=3))]
    tester = ProcessorTester(
        Traced(), initialStateRow=initial, timeMode="ProcessingTime", keySchema="name string"
    )
    of_driver = noted_calls.CALLS[:2]  # to learn the state variables
    assert [("init",), ("close",)] == of_driver
    batch = sorted(call for call in noted_calls.CALLS if call[0] == "initial")
    without_rows = ("initial", ("b",), 1)
    assert [("initial", ("a",), 2), ("initial", ("a",), 3), without_rows] == batch
    assert [("initial 2",), ("initial 3",)] == tester.peekListState("seen", "a")

    tester.setProcessingTime(5)
    noted_calls.CALLS.clear()
    out = tester.test("a", [Row(n=9), Row(n=4), Row(n=3), Row(n=1)])
    assert [
        ("init",),
        ("rows", ("a",), tuple, [9, 4, 3, 1], 5),  # once, with all rows; the key is no Row
        ("timer", "a", 1, [1, 3, 4, 9]),  # registered in this batch, due in it
        ("timer", "a", 3, [2, 3, 9]),
        ("close",),
    ] == noted_calls.CALLS
    assert 3 == len(out)
    noted_calls.CALLS.clear()
    tester.setProcessingTime(6)
    assert [("init",), ("timer", "a", 2, [2, 9]), ("close",)] == noted_calls.CALLS
    assert [9] == tester.peekTimers("a")


class Misuse(sparks.StatefulProcessor):
    """Does something that Spark refuses."""

    def __init__(self, when: str, what: Callable[[Any], Any]) -> None:
        self.when = when
        self.what = what

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n int")
        if self.when == "init":
            self.what(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.what(self.handle)
        return iter(())


NO_TIMERS = r"timers require the ProcessingTime or EventTime time mode.*: pass timeMode=\"ProcessingTime\" to transform_with_state"
TOO_LATE = r"state variables can be created only in init\(\): move the call there"


@pytest.mark.parametrize(
    ("when", "time_mode", "what", "message"),
    [
        ("rows", "None", lambda handle: handle.registerTimer(1), NO_TIMERS),
        ("rows", "None", lambda handle: handle.deleteTimer(1), NO_TIMERS),
        ("rows", "None", lambda handle: handle.listTimers(), NO_TIMERS),
        ("init", "None", lambda handle: handle.getValueState("v", "n int", 9), "time to live"),
        ("init", "EventTime", lambda h: h.getListState("v", "n int", 9), "time to live"),
        ("init", "None", lambda h: h.getMapState("v", "n int", "n int", 9), "time to live"),
        ("init", "None", lambda handle: handle.getListState("value", "n int"), "used twice"),
        ("init", "ProcessingTime", lambda handle: handle.registerTimer(1), "belong to a key"),
        ("rows", "None", lambda handle: handle.getValueState("value", "n int"), TOO_LATE),
        ("rows", "None", lambda handle: handle.getListState("new", "n int"), TOO_LATE),
        ("rows", "None", lambda handle: handle.deleteIfExists("value"), r"only in init\(\)"),
    ],
)
def test_calls_that_spark_rejects_are_rejected(
    when: str, time_mode: str, what: Callable[[Any], Any], message: str
) -> None:
    options = {"timeMode": time_mode, "eventTimeExtractor": lambda row: 1}
    with pytest.raises(ProcessorError, match=message):
        ProcessorTester(Misuse(when, what), **options).test("a", [])


class Times(sparks.StatefulProcessor):
    """Yields what time it is."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        yield Row(now=now, watermark=timerValues.getCurrentWatermarkInMs())


@pytest.mark.parametrize("tester", [pytest.param(TwsTester, marks=TWS_TESTER), ProcessorTester])
def test_without_a_time_mode_both_times_are_minus_one(tester: Any) -> None:
    assert [Row(now=-1, watermark=-1)] == tester(Times()).test("a", [])


class Held(sparks.StatefulProcessor):
    """Holds iterators over writes."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.list = handle.getListState("list", "n int")
        self.map = handle.getMapState("map", "n int", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.list.put([(1,), (2,)])
        self.map.updateValue((1,), (1,))
        self.handle.registerTimer(7)
        iterators = [self.list.get(), self.map.iterator(), self.map.keys(), self.map.values()]
        iterators.append(self.handle.listTimers())
        self.list.appendValue((3,))
        self.map.updateValue((2,), (2,))
        self.handle.registerTimer(8)
        yield pd.DataFrame({"seen": [repr([list(value) for value in iterators])]})


def test_an_iterator_shows_the_state_of_the_call_that_gave_it() -> None:
    frame = ProcessorTester(Held(), timeMode="ProcessingTime").testInPandas("a", pd.DataFrame())
    assert ["[[(1,), (2,)], [((1,), (1,))], [(1,)], [(1,)], [7]]"] == list(frame["seen"])


def test_a_null_in_a_key_of_integers_leaves_the_others_integers() -> None:
    table = pa.table({"k": pa.array([1, None, 2, None], pa.int32())})
    keys = all_keys(read(table, [0]))
    assert {"(1,)", "(None,)", "(2,)"} == {repr(shown) for _, shown, _ in keys}
