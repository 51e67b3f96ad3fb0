"""`ProcessorTester`: PySpark's examples, and what it does beyond them, without Spark."""

import base64
import datetime as dt
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row
from tests.house.sources import ROOT
from tests.support.spark.running_count import (
    RunningCount,
    RunningCountStatefulProcessorFactory,
    examples,
)
from tests.support.spark.versions import TWS_TESTER, TwsTester

import statelog.testing
from statelog.errors import ProcessorError, UsageError
from statelog.spark import StatefulProcessor
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


def test_the_example_of_the_documentation() -> None:
    text = (ROOT / "docs" / "tutorial" / "test-it.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {"__name__": "example"}
    exec(example.group(1), names)
    assert names["tester"].peekTimers("ann") == []


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
