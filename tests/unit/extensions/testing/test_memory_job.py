"""A `ProcessorTester` runs real tasks over a location in memory, and leaves nothing in its process."""

import gc
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from statelog.errors import ProcessorError
from statelog.spark import StatefulProcessor
from statelog.store import client
from statelog.testing import ProcessorTester


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
