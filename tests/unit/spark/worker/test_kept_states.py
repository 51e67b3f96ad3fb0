"""A worker keeps the states of the queries it has tasks for, and forgets the others."""

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.spark.worker.test_large_input import Counting, Query, changed, counting, numbers

from statelog.spark.worker import task
from statelog.spark.worker.kept_states import KEPT_S, KeptStates


class Clock:
    """Seconds that only the test moves on."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(task, "_states", KeptStates(clock))
    gc.unfreeze()
    yield clock
    gc.unfreeze()


def state_of(query: Query) -> "weakref.ref[object]":
    return weakref.ref(task._states._by_name[query.location].state)


def test_a_state_without_tasks_is_forgotten_and_restored_if_asked_for_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, other = (counting(tmp_path / name, sys.maxsize) for name in ("old", "other"))
    first = old.run(numbers(500, 100), monkeypatch)
    forgotten, is_gone = state_of(old), []
    old.spec = changed(old.spec, processor=Counting())  # each task gets a processor of its own
    other.run(numbers(500, 100), monkeypatch)
    kept = state_of(other)
    for _ in range(3):  # the other query keeps the worker busy
        clock.now_s += KEPT_S / 2 + 1
        other.run(numbers(500, 100), monkeypatch)
        is_gone.append(forgotten() is None)
    assert is_gone == [False, True, True]
    assert kept() is state_of(other)()

    again = old.run(numbers(500, 100), monkeypatch)
    assert old.acks[-1].caught_up.replayed
    assert sum(row["n"] for row in again) > sum(row["n"] for row in first)


def test_a_query_that_is_alone_keeps_its_state_however_long_it_waits(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = counting(tmp_path / "only", sys.maxsize)
    query.run(numbers(500, 100), monkeypatch)
    state = state_of(query)
    clock.now_s += 100 * KEPT_S
    query.run(numbers(500, 100), monkeypatch)
    assert state() is state_of(query)()
    assert not query.acks[-1].caught_up.replayed


def test_a_new_run_of_a_query_begins_without_the_state_of_the_run_before(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = counting(tmp_path / "again", sys.maxsize)
    query.run(numbers(500, 100), monkeypatch)
    state = state_of(query)
    query.spec = changed(query.spec, processor=Counting(), run_id="another")
    query.run(numbers(500, 100), monkeypatch)
    assert state() is None
    assert query.acks[-1].caught_up.replayed
