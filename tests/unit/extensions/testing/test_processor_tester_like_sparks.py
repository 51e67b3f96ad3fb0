"""The scenarios of PySpark's tests of TwsTester, each run with TwsTester and with ProcessorTester."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import IllegalArgumentException, PySparkAssertionError, PySparkValueError
from pyspark.sql import Row
from tests.support.spark.versions import TWS_TESTER, TwsTester

from statelog.errors import UsageError
from statelog.spark import StatefulProcessor
from statelog.testing import ProcessorTester

both = pytest.mark.parametrize(
    "tester_of", [pytest.param(TwsTester, marks=TWS_TESTER), ProcessorTester]
)
flavours = pytest.mark.parametrize("pandas", [False, True])


class InBothFlavours(StatefulProcessor):
    """Takes rows or frames, and yields what it was made for."""

    def __init__(self, pandas: bool = False) -> None:
        self.pandas = pandas

    def values(self, rows: Any) -> Iterator[Any]:
        for row in rows:
            if isinstance(row, pd.DataFrame):
                yield from (Row(**record) for record in row.to_dict("records"))
            else:
                yield row

    def give(self, *records: dict[str, Any]) -> Iterator[Any]:
        if self.pandas:
            yield from [pd.DataFrame(list(records))] if records else []
        else:
            yield from (Row(**record) for record in records)


class Counting(InBothFlavours):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        (first,) = self.values([initialState])
        self.count.update((int(first.begin),))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (n,) = self.count.get() or (0,)
        n += sum(1 for _ in self.values(rows))
        self.count.update((n,))
        yield from self.give({"key": key[0], "count": n})


class Best(InBothFlavours):
    """Keeps the two largest."""

    def init(self, handle: Any) -> None:
        self.best = handle.getListState("best", "score double")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        scores = [score for (score,) in self.best.get()]
        scores = sorted([*scores, *(row.score for row in self.values(rows))], reverse=True)[:2]
        self.best.put([(score,) for score in scores])
        yield from self.give(*({"key": key[0], "score": score} for score in scores))


class Words(InBothFlavours):
    def init(self, handle: Any) -> None:
        self.words = handle.getMapState("words", "word string", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        results = []
        for row in self.values(rows):
            (n,) = self.words.getValue((row.word,)) or (0,)
            self.words.updateValue((row.word,), (n + 1,))
            results.append({"key": key[0], "word": row.word, "n": n + 1})
        yield from self.give(*results)


class Waiting(InBothFlavours):
    """A timer after each input, by the clock or by the time of the row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "at long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        results = []
        for row in self.values(rows):
            at = getattr(row, "at", timerValues.getCurrentProcessingTimeInMs())
            before = self.seen.get()
            if before is not None:
                self.handle.deleteTimer(before[0] + 10_000)
            self.seen.update((int(at),))
            self.handle.registerTimer(int(at) + 10_000)
            results.append({"key": key[0], "said": f"seen at {at}"})
        yield from self.give(*results)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self.seen.clear()
        now = max(timerValues.getCurrentWatermarkInMs(), timerValues.getCurrentProcessingTimeInMs())
        yield from self.give({"key": key[0], "said": f"over at {now}"})


def run(tester: Any, pandas: bool, key: Any, *records: dict[str, Any]) -> list[dict[str, Any]]:
    if pandas:
        frame = tester.testInPandas(key, pd.DataFrame(records))
        return list(frame.to_dict("records"))
    return [row.asDict() for row in tester.test(key, [Row(**record) for record in records])]


def texts_in(produced: Any) -> list[str]:
    if isinstance(produced, pd.DataFrame):
        return [] if produced.empty else produced["said"].tolist()
    return [row.said for row in produced]


@both
@flavours
def test_values_lists_and_maps_of_several_keys(tester_of: Any, pandas: bool) -> None:
    counts = tester_of(Counting(pandas))
    for key, rows, n in (("a", 1, 1), ("b", 2, 2), ("c", 1, 1), ("a", 3, 4), ("a", 0, 4)):
        records = [{"value": "x"}] * rows
        assert run(counts, pandas, key, *records) == [{"key": key, "count": n}]
    assert [counts.peekValueState("count", key) for key in "abcd"] == [(4,), (2,), (1,), None]

    best = tester_of(Best(pandas))
    run(best, pandas, "a", {"score": 2.0}, {"score": 3.0}, {"score": 1.0})
    assert best.peekListState("best", "a") == [(3.0,), (2.0,)]
    assert run(best, pandas, "a", {"score": 10.0})[0] == {"key": "a", "score": 10.0}
    assert best.peekListState("best", "b") == []

    words = tester_of(Words(pandas))
    out = run(words, pandas, "u", *({"word": word} for word in ("x", "y", "x")))
    assert [(row["word"], row["n"]) for row in out] == [("x", 1), ("y", 1), ("x", 2)]
    assert words.peekMapState("words", "u") == {("x",): (2,), ("y",): (1,)}
    assert words.peekMapState("words", "v") == {}


@both
def test_output_of_pandas_has_its_types(tester_of: Any) -> None:
    out = tester_of(Counting(True)).testInPandas("a", pd.DataFrame({"value": ["x"]}))
    assert out["count"].dtype == "int64"
    empty = tester_of(Counting(True)).testInPandas("a", pd.DataFrame({"value": []}))
    assert empty.to_dict("records") == [{"key": "a", "count": 0}]


@both
def test_state_is_set_from_outside_and_deleted(tester_of: Any) -> None:
    counts, best, words = (tester_of(kind()) for kind in (Counting, Best, Words))
    for key in "ab":
        counts.updateValueState("count", key, (5,))
        best.updateListState("best", key, [(8.0,), (7.0,)])
        words.updateMapState("words", key, {("x",): (5,), ("y",): (3,)})
    counts.test("a", [Row(value=1)])
    best.test("a", [Row(score=7.5)])
    words.test("a", [Row(word="x"), Row(word="new")])
    assert counts.peekValueState("count", "a") == (6,)
    assert best.peekListState("best", "a") == [(8.0,), (7.5,)]
    assert words.peekMapState("words", "a") == {("x",): (6,), ("y",): (3,), ("new",): (1,)}
    for tester, name in ((counts, "count"), (best, "best"), (words, "words")):
        tester.deleteState(name, "a")
    assert [counts.peekValueState("count", key) for key in "ab"] == [None, (5,)]
    assert [best.peekListState("best", key) for key in "ab"] == [[], [(8.0,), (7.0,)]]
    of_b = {("x",): (5,), ("y",): (3,)}
    assert [words.peekMapState("words", key) for key in "ab"] == [{}, of_b]


@both
@flavours
def test_initial_state(tester_of: Any, pandas: bool) -> None:
    def starting(*pairs: tuple[str, int]) -> Any:
        """Return a tester with the counts that some keys begin with."""
        if pandas:
            frames = [(key, pd.DataFrame({"begin": [begin]})) for key, begin in pairs]
            return tester_of(Counting(True), initialStatePandas=frames)
        rows = [(key, Row(begin=begin)) for key, begin in pairs]
        return tester_of(Counting(), initialStateRow=rows)

    tester = starting(("a", 10), ("b", 20))
    assert tester.peekValueState("count", "b") == (20,)
    assert run(tester, pandas, "a", {"value": 1}) == [{"key": "a", "count": 11}]
    assert run(tester, pandas, "c", {"value": 1}) == [{"key": "c", "count": 1}]
    assert run(starting(), pandas, "a") == [{"key": "a", "count": 0}]


@both
@pytest.mark.parametrize("key", [1, 2.5, "k@#$%", None, (1, 2), ("a", None)])
def test_keys_of_every_kind_are_one_column(tester_of: Any, key: Any) -> None:
    tester = tester_of(Counting())
    for n in (2, 4):
        assert tester.test(key, [Row(v=None), Row(v=1)]) == [Row(key=key, count=n)]
    assert tester.peekValueState("count", key) == (4,)


@both
@flavours
def test_timers_by_the_clock(tester_of: Any, pandas: bool) -> None:
    tester = tester_of(Waiting(pandas), timeMode="ProcessingTime")
    assert run(tester, pandas, "a", {"value": 1}) == [{"key": "a", "said": "seen at 0"}]
    assert texts_in(tester.setProcessingTime(5_000)) == []
    run(tester, pandas, "b", {"value": 1})
    assert texts_in(tester.setProcessingTime(11_000)) == ["over at 11000"]
    assert tester.peekValueState("seen", "a") is None
    assert tester.peekValueState("seen", "b") == (5_000,)
    assert texts_in(tester.setProcessingTime(16_000)) == ["over at 16000"]
    for wrong in (16_000, 1):
        with pytest.raises(IllegalArgumentException, match=r"forward|backward"):
            tester.setProcessingTime(wrong)


@both
@flavours
def test_timers_by_the_watermark_and_late_rows(tester_of: Any, pandas: bool) -> None:
    options = {"timeMode": "eventtime", "eventTimeExtractor": lambda row: row["at"]}
    tester = tester_of(Waiting(pandas), **options)
    run(tester, pandas, "a", {"at": 10_000})
    run(tester, pandas, "b", {"at": 11_000})
    for watermark in (20_000, 21_000):
        assert texts_in(tester.setWatermark(watermark)) == [f"over at {watermark}"]
    rows = [{"at": at} for at in (4_000, 21_000, 25_000)]
    assert run(tester, pandas, "a", *rows) == [{"key": "a", "said": "seen at 25000"}]
    for wrong in (21_000, 500):
        with pytest.raises(IllegalArgumentException, match=r"forward|backward"):
            tester.setWatermark(wrong)
    tester.handle.setGroupingKey("a")
    for wrong in (21_000, 5_000):
        with pytest.raises(IllegalArgumentException, match="watermark"):
            tester.handle.registerTimer(wrong)
    tester.handle.registerTimer(21_001)
    assert sorted(tester.handle.listTimers()) == [21_001, 35_000]
    tester.handle.deleteTimer(35_000)
    assert sorted(tester.handle.listTimers()) == [21_001]


@both
def test_the_handle_reaches_the_state_of_its_key(tester_of: Any) -> None:
    counts, best, words = (tester_of(kind()) for kind in (Counting, Best, Words))
    count = counts.handle.getValueState("count", "n int")
    counts.handle.setGroupingKey("a")
    count.clear()
    assert not count.exists()
    counts.test("b", [Row(v=1)])
    assert counts.handle.grouping_key == "b"
    assert count.get() == (1,)
    count.update((7,))
    assert counts.peekValueState("count", "b") == (7,)
    scores = best.handle.getListState("best", "score double")
    best.handle.setGroupingKey("a")
    scores.clear()
    scores.put([(1.0,)])
    scores.appendValue((2.0,))
    scores.appendList([(3.0,)])
    assert list(scores.get()) == best.peekListState("best", "a") == [(1.0,), (2.0,), (3.0,)]
    variable = words.handle.getMapState("words", "word string", "n long")
    words.handle.setGroupingKey("a")
    variable.clear()
    variable.updateValue(("x",), (1,))
    variable.updateValue(("y",), (2,))
    variable.removeKey(("x",))
    assert (list(variable.keys()), list(variable.values())) == ([("y",)], [(2,)])
    assert list(variable.iterator()) == [(("y",), (2,))]
    assert tuple(variable.getValue(("y",))) == (2,)
    assert variable.containsKey(("y",)) and variable.exists() and not variable.containsKey(("x",))
    words.handle.deleteState("words")
    assert words.peekMapState("words", "a") == {}
    words.handle.deleteIfExists("there is none")


@both
def test_what_the_time_mode_does_not_allow(tester_of: Any) -> None:
    tester = tester_of(Counting(), timeMode="None")
    for use in (
        lambda: tester.handle.registerTimer(12),
        lambda: tester.handle.deleteTimer(12),
        lambda: list(tester.handle.listTimers()),
        lambda: tester.setProcessingTime(1),
        lambda: tester.setWatermark(1),
        lambda: tester_of(Counting(), timeMode="ProcessingTime").setWatermark(1),
    ):
        with pytest.raises(PySparkValueError, match="UNSUPPORTED_OPERATION") as raised:
            use()
        assert raised.value.getCondition() == "UNSUPPORTED_OPERATION"
        assert tester_of is TwsTester or isinstance(raised.value, UsageError)
    with pytest.raises(PySparkValueError, match="ARGUMENT_REQUIRED"):
        tester_of(Counting(), timeMode="EventTime")


@both
def test_wrong_names_and_arguments(tester_of: Any) -> None:
    tester = tester_of(Counting())
    rows, frames = [("a", Row(begin=1))], [("a", pd.DataFrame({"begin": [1]}))]
    for use in (
        lambda: tester.updateValueState("none such", "a", (5,)),
        lambda: tester.peekValueState("none such", "a"),
        lambda: tester.updateListState("count", "a", []),
        lambda: tester.peekMapState("count", "a"),
        lambda: tester_of(Counting(), timeMode="Never"),
        lambda: tester_of(Counting(), initialStateRow=rows, initialStatePandas=frames),
    ):
        with pytest.raises(AssertionError) as raised:
            use()
        assert tester_of is TwsTester or isinstance(raised.value, UsageError)
    with pytest.raises(PySparkAssertionError, match="STATE_NOT_EXISTS") as raised:
        tester.deleteState("none such", "a")
    assert tester_of is TwsTester or isinstance(raised.value, UsageError)


class Initialized(Counting):
    """Says how often it was initialized."""

    inits = 0

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.inits += 1

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield Row(inits=self.inits)


@TWS_TESTER
def test_where_they_differ_on_purpose() -> None:
    """A fresh copy in each batch, and timers at the end of each: the page names them."""
    for _ in range(2):
        assert ProcessorTester(Initialized()).test("a", []) == [Row(inits=1)]
    theirs, ours = TwsTester(Initialized()), ProcessorTester(Initialized())
    for tester in (theirs, ours):
        tester.processor.inits = 5
        assert tester.test("a", []) == [Row(inits=5 if tester is theirs else 1)]
    with pytest.raises(UsageError, match="init does not create the state 'new'; it creates count"):
        ours.handle.getValueState("new", "n int")
    theirs.handle.getValueState("new", "n int")
    several = ProcessorTester(Counting(), keySchema="a int, b int")
    assert several.test((1, 2), []) == [Row(key=1, count=0)]


def test_the_handle_deletes_a_variable_for_all_keys() -> None:
    tester = ProcessorTester(Counting())
    for key in range(20):
        tester.test(key, [Row(v=1)])
    tester.handle.deleteIfExists("count")
    tester.restart()
    assert {tester.peekValueState("count", key) for key in range(20)} == {None}
    assert tester.test(3, [Row(v=1)]) == [Row(key=3, count=1)]
