"""A processor with initial state from a frame, through the operator of statelog's own tester."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row

from statelog.errors import UsageError
from statelog.extensions.migration.initial_state import _ValueVariable
from statelog.spark import StatefulProcessor, with_initial_state
from statelog.testing import ProcessorTester

HOUR = 3_600_000
OUTPUT = "key string, shown string"


class Shows(StatefulProcessor):
    """Shows its state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n bigint", HOUR)
        self.items = handle.getListState("items", "item string", HOUR)
        self.counts = handle.getMapState("counts", "item string", "n int", HOUR)
        handle.getListState("dropped", "n int")
        handle.deleteIfExists("dropped")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        parts = [
            self.total.get(),
            [item for (item,) in self.items.get()],
            {item: n for (item,), (n,) in self.counts.iterator()},
            list(self.handle.listTimers()),
        ]
        yield Row(key=key[0], shown=repr(parts))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], shown=f"fired at {expiredTimerInfo.getExpiryTimeInMs()}")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        raise AssertionError("the processor's own method is not for this frame")

    def close(self) -> None:
        pass


class ShowsInPandas(Shows):
    """The same with frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield pd.DataFrame([row.asDict()])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])


STATE = {
    "total": {"n": 7},
    "items": [{"item": "pen"}, {"item": "ink"}],
    "counts": [
        {"key": {"item": "pen"}, "value": {"n": 1}},
        {"key": {"item": "ink"}, "value": {"n": 2}},
    ],
}


def row_of(live_ms: int, gone_ms: int, **changes: Any) -> dict[str, Any]:
    return {
        "key": "a", "statelog_state": STATE, "statelog_timers": [HOUR, 2 * HOUR],
        "statelog_expiry": {
            "total": live_ms,
            "items": [gone_ms, live_ms],
            "counts": [live_ms, gone_ms],
        },
        "statelog_checkpoint": 3, **changes,
    }  # fmt: skip


def starting(rows: list[dict[str, Any]], *, pandas: bool) -> ProcessorTester:
    options: dict[str, Any] = {"timeMode": "ProcessingTime", "outputStructType": OUTPUT}
    if pandas:
        frames = [("a", pd.DataFrame([row])) for row in rows]
        options["initialStatePandas"] = frames
        return ProcessorTester(with_initial_state(ShowsInPandas()), **options)
    options["initialStateRow"] = [("a", Row(**row)) for row in rows]
    return ProcessorTester(with_initial_state(Shows()), **options)


def shown_by(found: ProcessorTester, *, pandas: bool) -> list[str]:
    if pandas:
        frame = found.testInPandas("a", pd.DataFrame({"key": ["a"]}))
        return list(frame["shown"])
    return [row.shown for row in found.test("a", [Row(key="a")])]


BOTH = pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])


@BOTH
def test_what_has_not_expired_is_put_back_in_order(pandas: bool) -> None:
    tester = starting([row_of(HOUR, 0)], pandas=pandas)  # the tester's time is 0
    (text,) = shown_by(tester, pandas=pandas)
    wanted = [(7,), ["ink"], {"pen": 1}, [HOUR, 2 * HOUR]]
    assert text.replace("Row(n=7)", "(7,)") == repr(wanted)


def test_list_elements_are_put_one_by_one_for_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    from statelog.extensions.migration import initial_state

    monkeypatch.setattr(initial_state, "lists_are_sent_as_frames", lambda: True)
    (text,) = shown_by(starting([row_of(2**62, 2**62)], pandas=False), pandas=False)
    assert "['pen', 'ink']" in text


@BOTH
def test_a_frame_without_expiry_and_nulls_in_it(pandas: bool) -> None:
    row = row_of(0, 0, statelog_timers=None, statelog_state={**STATE, "items": None})
    del row["statelog_expiry"]
    tester = starting([row], pandas=pandas)
    (text,) = shown_by(tester, pandas=pandas)
    assert text.replace("Row(n=7)", "(7,)") == repr([(7,), [], {"pen": 1, "ink": 2}, []])


@BOTH
def test_expired_lists_are_not_put(pandas: bool) -> None:
    tester = starting([row_of(0, 0)], pandas=pandas)
    (text,) = shown_by(tester, pandas=pandas)
    assert text == repr([None, [], {}, [HOUR, 2 * HOUR]])


@BOTH
def test_timers_fire(pandas: bool) -> None:
    tester = starting([row_of(1, 1)], pandas=pandas)
    fired = tester.setProcessingTime(HOUR + 1)
    rows = list(fired["shown"]) if pandas else [row.shown for row in fired]
    assert rows == [f"fired at {HOUR}"]


@BOTH
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"statelog_state": {"dropped": [{"n": 1}]}}, "a variable 'dropped', which init"),
        (
            {"statelog_state": {"total": [{"n": 1}]}},
            "the kind of 'total' in the initial state differs",
        ),
        (
            {"statelog_state": {"items": {"n": 1}}},
            "the kind of 'items' in the initial state differs",
        ),
        ({"statelog_state": {"total": {"n": 1, "m": 2}}}, r"fields \(n, m\) in 'total', where"),
        (
            {"statelog_state": {"counts": [{"key": {"n": 1}, "value": {"n": 1}}]}},
            r"fields \(n\) in 'counts.key', where init\(\) declares \(item\)",
        ),
    ],
)
def test_state_that_the_processor_does_not_declare_is_rejected(
    changes: dict[str, Any], match: str, pandas: bool
) -> None:
    row = row_of(0, 0, **changes)
    del row["statelog_expiry"]
    with pytest.raises(Exception, match=match) as raised:
        starting([row], pandas=pandas)
    assert isinstance(raised.value.__cause__, UsageError)


def test_another_frame_is_refused() -> None:
    with pytest.raises(Exception, match="no column statelog_state, but key, n; pass the frame"):
        starting([{"key": "a", "n": 1}], pandas=False)


def test_types_that_cannot_be_read_from_text_are_asked_for() -> None:
    variable = _ValueVariable("total", None, "n uncommon")
    for is_utc in (False, True):
        with pytest.raises(UsageError, match="declare them as a StructType"):
            variable.value({"n": 7}, is_utc)
