"""`ProcessorTester`: PySpark's examples, and what it does beyond them, without Spark."""

import base64
import datetime as dt
import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from tests.support.spark.running_count import (
    RunningCount,
    RunningCountStatefulProcessorFactory,
    examples,
)
from tests.support.spark.versions import TWS_TESTER, TwsTester

import statelog.testing
from statelog.errors import ProcessorError, UsageError
from statelog.spark import StatefulProcessor
from statelog.store import client
from statelog.testing import ProcessorTester


@pytest.mark.parametrize(("code", "promised"), examples())
@pytest.mark.parametrize("tester", [pytest.param(TwsTester, marks=TWS_TESTER), ProcessorTester])
def test_the_examples_of_pysparks_tester(tester: Any, code: str, promised: str) -> None:
    factory = RunningCountStatefulProcessorFactory
    names: dict[str, Any] = {"TwsTester": tester, factory.__name__: factory, "Row": Row}
    names["DataFrame"] = pd.DataFrame
    lines = [line for line in code.splitlines() if not line.startswith("#")]
    exec("\n".join(lines), names)
    expected = eval(promised, names)
    if isinstance(expected, tuple):
        assert eval(lines[-1], names) == expected
    elif isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(names["result"], expected)
    else:
        assert names["result"] == expected


def test_a_tester_runs_where_all_locations_are_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATELOG_TEST_KEYS", f"test:{base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setenv("STATELOG_ENCRYPTION", "env:STATELOG_TEST_KEYS")
    tester = ProcessorTester(RunningCount(), keySchema="key string")
    tester.test("a", [Row(key="a")])
    tester.restart()
    assert [Row(key="a", count=2)] == tester.test("a", [Row(key="a")])


class Everything(StatefulProcessor):
    """Value, list and map state, some with a time to live; a timer for each row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.runs = 0
        self.last = handle.getValueState("last", "at timestamp, tags array<string>")
        self.recent = handle.getListState("recent", "n int", 100)
        self.by_name = handle.getMapState("by_name", "name string", "n int", 100)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.handle.registerTimer(initialState.due)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.runs += 1
        for row in rows:
            self.last.update((pd.Timestamp("2024-07-01 12:00:00"), np.array(["a", "b"])))
            self.recent.appendValue((row.n,))
            self.by_name.updateValue((row.name,), (row.n,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + row.n)
        yield Row(key=key, runs=self.runs)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key, fired=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass


def row(n: int, name: str | None = "x") -> Row:
    return Row(n=n, name=name)


def test_state_timers_and_time_to_live_over_restarts() -> None:
    tester = ProcessorTester(
        Everything(),
        initialStateRow=[("z", Row(due=30)), ("a", Row(due=90))],
        timeMode="processingTime",
    )
    assert tester.peekTimers("z") == [30]
    for again in range(2):
        assert tester.test("a", [row(20), row(40 + again, None)]) == [Row(key=("a",), runs=1)]
        tester.restart()
    last = (dt.datetime(2024, 7, 1, 12), ["a", "b"])
    assert tester.peekValueState("last", "a") == last
    assert tester.peekListState("recent", "a") == [(20,), (40,), (20,), (41,)]
    assert tester.peekMapState("by_name", "a") == {("x",): (20,), (None,): (41,)}
    assert tester.peekTimers("a") == [20, 40, 41, 90]
    assert tester.setProcessingTime(35) == [Row(key=("a",), fired=20), Row(key=("z",), fired=30)]
    tester.restart()
    assert tester.test("a", [row(0, "late")])[1:] == [Row(key=("a",), fired=35)]  # due at once
    assert [fired.fired for fired in tester.setProcessingTime(100)] == [40, 41, 90]
    # Written at 0: over. Written at 35: until 135.
    assert tester.peekListState("recent", "a") == [(0,)]
    assert tester.peekMapState("by_name", "a") == {("late",): (0,)}
    tester.restart()
    assert tester.setProcessingTime(135) == []
    assert tester.peekListState("recent", "a") == []
    assert tester.peekValueState("last", "a") == last


def test_state_of_a_key_of_several_columns_is_set_from_outside() -> None:
    tester = ProcessorTester(
        Everything(), timeMode="ProcessingTime", keySchema="region string, id int"
    )
    key = ("eu", None)
    tester.updateListState("recent", key, [(1,), (2,)])
    tester.updateMapState("by_name", key, {("old",): (1,)})
    tester.updateMapState("by_name", key, {("new",): (2,)})
    tester.updateValueState("last", key, (None, ["x"]))
    tester.restart()
    tester.test(key, [row(3)])
    assert tester.peekListState("recent", key) == [(1,), (2,), (3,)]
    assert tester.peekMapState("by_name", key) == {("new",): (2,), ("x",): (3,)}
    with pytest.raises(UsageError, match="the state 'other'; it creates last, recent, by_name"):
        tester.peekValueState("other", key)
    with pytest.raises(UsageError, match="is a list state"):
        tester.peekValueState("recent", key)
    with pytest.raises(UsageError, match="takes int32, not str"):
        tester.updateListState("recent", key, [("one",)])
    with pytest.raises(UsageError, match=r"a key of \(region, id\)"):
        tester.test("eu", [row(1)])


class Broken(RunningCount):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.count.update((2**70 if key == (2,) else 1,))
        yield Row(key="not a number" if key == (3,) else 1)
        if key == (4,):
            raise ArithmeticError("four")


def test_failures_are_those_of_a_task_and_leave_no_trace() -> None:
    tester = ProcessorTester(Broken(), outputStructType="key int")
    assert tester.test(1, [Row(x=1)]) == [Row(key=1)]
    with pytest.raises(ProcessorError, match=r"state 'count' of key \(2,\) .* does not fit"):
        tester.test(2, [])
    with pytest.raises(ProcessorError, match=r"'key' \(int32\) cannot store 'not a number'"):
        tester.test(3, [])
    with pytest.raises(ProcessorError, match=r"handleInputRows failed for key \(4,\)") as raised:
        tester.test(4, [])
    assert isinstance(raised.value.__cause__, ArithmeticError)
    assert [tester.peekValueState("count", key) for key in (1, 2, 3, 4)] == [(1,), None, None, None]


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="timeMode must be one of"):
        ProcessorTester(RunningCount(), timeMode="Never")
    with pytest.raises(UsageError, match="not both"):
        ProcessorTester(RunningCount(), initialStateRow=[], initialStatePandas=[])
    unpicklable = RunningCount()
    unpicklable.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="cannot be pickled"):
        ProcessorTester(unpicklable)
    tester = ProcessorTester(RunningCount())
    tester.restart()
    with pytest.raises(UsageError, match="timers require the ProcessingTime"):
        tester.peekTimers("a")


def test_testing_needs_no_pyspark_until_it_is_asked_for() -> None:
    code = "import sys, statelog.testing as t; assert 'pyspark' not in sys.modules; "
    code += "t.ProcessorTester"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        statelog.testing.Other  # noqa: B018


class Rejects(StatefulProcessor):
    """Emits negative rows."""

    def init(self, handle: Any) -> None:
        self.rejected = handle.sideOutput("rejected", "n long, at timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.n < 0:
                self.rejected.emit(Row(n=row.n))
            else:
                yield Row(n=row.n)


def test_side_outputs_have_what_the_last_micro_batch_emitted() -> None:
    tester = ProcessorTester(Rejects(), keySchema="key string")
    assert [] == tester.sideOutput("rejected")
    assert [Row(n=1)] == tester.test("a", [Row(n=1), Row(n=-2), Row(n=-3)])
    assert [Row(n=-2, at=None), Row(n=-3, at=None)] == tester.sideOutput("rejected")
    tester.test("b", [Row(n=1)])
    assert [] == tester.sideOutput("rejected")
    with pytest.raises(UsageError, match="side output 'late': its side outputs are rejected"):
        tester.sideOutput("late")


class Sums(StatefulProcessor):
    """Adds up numbers, and keeps the last ones for a while; fails for negative numbers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.recent = handle.getListState("recent", "n long", 50)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (total,) = self.total.get() or (0,)
        for row in rows:
            total += row.n
            self.recent.appendValue((row.n,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + row.n)
        self.total.update((total,))
        if total < 0:
            raise ArithmeticError("below zero")
        yield Row(total=total)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(total=-1)


def test_long_tests_have_the_state_of_a_dictionary() -> None:
    """More micro-batches and changes from outside than logs are kept, with restarts in between."""
    rng = random.Random(7)
    tester = ProcessorTester(Sums(), timeMode="ProcessingTime")
    totals: dict[str, int] = {}
    recent: dict[str, list[tuple[int, int]]] = {}
    for now in range(1, 160):
        tester.setProcessingTime(now)
        key, n = rng.choice("abc"), rng.randrange(1, 9)
        action = rng.choice(["test", "test", "update", "delete", "restart", "fail"])
        if action == "test":
            totals[key] = totals.get(key, 0) + n
            recent.setdefault(key, []).append((now, n))
            assert Row(total=totals[key]) == tester.test(key, [Row(n=n)])[0]
        elif action == "update":
            tester.updateValueState("total", key, (n,))
            totals[key] = n
        elif action == "delete":
            tester.deleteState("recent", key)
            recent.pop(key, None)
        elif action == "restart":
            tester.restart()
        else:
            with pytest.raises(ProcessorError, match="below zero"):
                tester.test(key, [Row(n=-10_000)])
        for key in "abc":
            value = totals.get(key)
            assert (None if value is None else (value,)) == tester.peekValueState("total", key)
            live = [(n,) for added_at, n in recent.get(key, []) if added_at + 50 > now]
            assert live == tester.peekListState("recent", key)


def test_an_error_does_not_advise_what_only_a_query_can_do() -> None:
    end = "below zero. Nothing of this batch was committed; the state is unchanged$"
    with pytest.raises(ProcessorError, match=end):
        ProcessorTester(Sums(), timeMode="ProcessingTime").test("a", [Row(n=-1)])


def test_a_tester_leaves_no_threads_and_no_objects() -> None:
    def run() -> None:
        tester = ProcessorTester(Sums(), timeMode="ProcessingTime")
        for n in range(1, 70):
            tester.test("a", [Row(n=n)])
        tester.restart()
        assert len(client._memory_stores) == stores + 1

    gc.collect()
    stores, threads = len(client._memory_stores), threading.active_count()
    frozen = gc.get_freeze_count()
    run()
    gc.collect()
    assert (stores, threads) == (len(client._memory_stores), threading.active_count())
    assert (frozen, True) == (gc.get_freeze_count(), gc.isenabled())


Use = Callable[[Any], Any]
USES: list[tuple[str, Use, str]] = [
    ("value", lambda state: state.exists(), "Error checking value state exists: "),
    ("value", lambda state: state.get(), "Error getting value state: "),
    ("value", lambda state: state.update((1,)), "Error updating value state: "),
    ("value", lambda state: state.clear(), "Error clearing value state: "),
    ("list", lambda state: state.exists(), "Error checking value state exists: "),
    ("list", lambda state: state.appendValue((1,)), "Error updating value state: "),
    ("list", lambda state: state.get(), "Error using list state: "),
    ("map", lambda state: state.updateValue((1,), (1,)), "Error updating map state value: "),
    ("map", lambda state: state.getValue((1,)), "Error getting value: "),
    ("map", lambda state: state.iterator(), "Error using map state: "),
    ("reducing", lambda state: state.add((1,)), "Error getting value state: "),
]


def ask(handle: Any, kind: str, name: str) -> Any:
    if kind == "value":
        return handle.getValueState(name, "n int")
    if kind == "list":
        return handle.getListState(name, "n int")
    if kind == "map":
        return handle.getMapState(name, "k int", "n int")
    return handle.getReducingState(name, "n int", lambda first, other: first)


class Deleting(StatefulProcessor):
    """Asks for a variable, deletes it, and may ask again."""

    def __init__(self, kind: str, use: Use, again: str = "") -> None:
        self.kind, self.use, self.again = kind, use, again

    def init(self, handle: Any) -> None:
        self.deleted = ask(handle, self.kind, "gone")
        self.other = handle.getValueState("other", "n int")
        handle.deleteIfExists("gone")
        handle.deleteIfExists("never there")
        self.new = ask(handle, self.again, "gone") if self.again else None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (n,) = self.other.get() or (0,)
        self.other.update((n + 1,))
        try:
            self.use(self.deleted)
        except PySparkRuntimeError as error:
            assert isinstance(error, UsageError)
            yield Row(said=str(error), n=n, message=error.getMessage())
        else:
            yield Row(said="", n=n, message="")


@pytest.mark.parametrize(("kind", "use", "words"), USES)
@pytest.mark.parametrize("again", ["", "value", "list"])
def test_a_variable_that_init_deleted_is_rejected_on_use(
    kind: str, use: Use, words: str, again: str
) -> None:
    tester = ProcessorTester(Deleting(kind, use, again))
    for n in range(2):
        (row,) = tester.test("a", [Row(x=1)])
        assert row.said.startswith(words + "state 'gone' was deleted by deleteIfExists() in init()")
        assert row.n == n  # the others are there
        assert row.message


class AskingAgain(Deleting):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.new.exists()
        self.new.update((1,))
        yield Row(before=before, now=self.new.get())


def test_a_variable_asked_for_after_its_deletion_begins_empty() -> None:
    tester = ProcessorTester(AskingAgain("list", lambda state: None, "value"))
    for _ in range(2):
        assert tester.test("a", [Row(x=1)]) == [Row(before=False, now=(1,))]


class Changing(StatefulProcessor):
    """Asks for a different variable in tasks than on the driver."""

    def init(self, handle: Any) -> None:
        on_driver = type(handle).__name__ == "DriverHandle"
        self.state = handle.getValueState("one" if on_driver else "two", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return iter(())


def test_a_variable_that_the_driver_does_not_know_of_fails_in_init() -> None:
    message = r"Changing\.init failed .*'two' in a task, but did not declare"
    with pytest.raises(ProcessorError, match=message):
        ProcessorTester(Changing()).test("a", [])
