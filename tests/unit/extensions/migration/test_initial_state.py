"""A processor with initial state from a frame, through the operator of statelog's own tester."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row

from statelog.errors import UsageError
from statelog.extensions.migration import initial_state
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


def starting(row: dict[str, Any], *, pandas: bool) -> ProcessorTester:
    options: dict[str, Any] = {"timeMode": "ProcessingTime", "outputStructType": OUTPUT}
    if pandas:
        options["initialStatePandas"] = [("a", pd.DataFrame([row]))]
        return ProcessorTester(with_initial_state(ShowsInPandas()), **options)
    options["initialStateRow"] = [("a", Row(**row))]
    return ProcessorTester(with_initial_state(Shows()), **options)


def texts_in(output: Any) -> list[str]:
    """Return the texts of rows or of a frame."""
    return list(output["shown"]) if isinstance(output, pd.DataFrame) else [r.shown for r in output]


def shown_with(row: dict[str, Any], *, pandas: bool) -> str:
    """Return the state of the key after its initial state, as text."""
    tester = starting(row, pandas=pandas)
    if pandas:
        (text,) = texts_in(tester.testInPandas("a", pd.DataFrame({"key": ["a"]})))
    else:
        (text,) = texts_in(tester.test("a", [Row(key="a")]))
    return text.replace("Row(n=7)", "(7,)")


BOTH = pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])


@BOTH
def test_state_is_put_back_in_order_but_what_has_expired(pandas: bool) -> None:
    timers = [HOUR, 2 * HOUR]
    for row, state in (
        (row_of(HOUR, 0), [(7,), ["ink"], {"pen": 1}, timers]),  # the tester's time is 0
        (row_of(0, 0), [None, [], {}, timers]),
    ):
        assert shown_with(row, pandas=pandas) == repr(state)
    row = row_of(0, 0, statelog_timers=None, statelog_state={**STATE, "items": None})
    del row["statelog_expiry"]
    assert shown_with(row, pandas=pandas) == repr([(7,), [], {"pen": 1, "ink": 2}, []])


def test_list_elements_are_put_one_by_one_for_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_state, "lists_are_sent_as_frames", lambda: True)
    assert "['pen', 'ink']" in shown_with(row_of(2**62, 2**62), pandas=False)


@BOTH
def test_timers_fire(pandas: bool) -> None:
    tester = starting(row_of(1, 1), pandas=pandas)
    assert texts_in(tester.setProcessingTime(HOUR + 1)) == [f"fired at {HOUR}"]


@BOTH
@pytest.mark.parametrize(
    ("state", "match"),
    [
        ({"dropped": [{"n": 1}]}, "the variable 'dropped', which init"),
        ({"total": [{"n": 1}]}, "the kind of 'total' in the initial state differs"),
        ({"items": {"n": 1}}, "the kind of 'items' in the initial state differs"),
        ({"total": {"n": 1, "m": 2}}, r"fields \(n, m\) in 'total', but init"),
        (
            {"counts": [{"key": {"n": 1}, "value": {"n": 1}}]},
            r"fields \(n\) in 'counts.key', but init\(\) declares \(item\)",
        ),
    ],
)
def test_state_that_the_processor_does_not_declare_is_rejected(
    state: dict[str, Any], match: str, pandas: bool
) -> None:
    row = row_of(0, 0, statelog_state=state)
    del row["statelog_expiry"]
    with pytest.raises(Exception, match=match) as raised:
        starting(row, pandas=pandas)
    assert isinstance(raised.value.__cause__, UsageError)


def test_a_frame_of_something_else_is_rejected() -> None:
    with pytest.raises(Exception, match="the column statelog_state; it has key, n; pass the frame"):
        starting({"key": "a", "n": 1}, pandas=False)


def test_types_that_cannot_be_read_from_text_are_asked_for() -> None:
    variable = initial_state._ValueVariable("total", None, "n uncommon")
    for is_utc in (False, True):
        with pytest.raises(UsageError, match="declare them as a StructType"):
            variable.value({"n": 7}, is_utc)
