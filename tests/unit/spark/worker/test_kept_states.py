"""A worker keeps the states of its queries outside of garbage collection, and forgets the others."""

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.jobs.task_query import Counting, Query, changed, counting, numbers

from statelog.spark.driver.batch_reports import figures_of
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


def started(folder: Path) -> "tuple[Query, weakref.ref[object], int]":
    """Run a first micro-batch; return the query, its state in the worker, and the counts delivered."""
    query = counting(folder, sys.maxsize)
    rows = query.run(numbers(500, 100))
    query.spec = changed(query.spec, processor=Counting())  # each task gets a processor of its own
    return query, state_of(query), sum(row["n"] for row in rows)


def test_a_state_without_tasks_is_dropped_and_restored(tmp_path: Path, clock: Clock) -> None:
    old, forgotten, first = started(tmp_path / "old")
    other, kept, _ = started(tmp_path / "other")
    is_gone = []
    for _ in range(3):  # the other query keeps the worker busy
        clock.now_s += KEPT_S / 2 + 1
        other.run(numbers(500, 100))
        is_gone.append(forgotten() is None)
    assert is_gone == [False, True, True]
    assert gc.get_freeze_count(), "the states that are left are excluded again"
    assert kept() is state_of(other)()

    again = old.run(numbers(500, 100))
    assert figures_of([[old.acks[-1]]]).catch_up["replayed"]
    assert sum(row["n"] for row in again) > first


def test_a_single_query_keeps_its_state_at_any_age(tmp_path: Path, clock: Clock) -> None:
    query, state, _ = started(tmp_path / "only")
    clock.now_s += 100 * KEPT_S
    query.run(numbers(500, 100))
    assert state() is state_of(query)()
    assert not figures_of([[query.acks[-1]]]).catch_up["replayed"]


def test_a_new_run_begins_without_the_state_before_it(tmp_path: Path, clock: Clock) -> None:
    query, state, _ = started(tmp_path / "again")
    query.spec = changed(query.spec, run_id="another")
    query.run(numbers(500, 100))
    assert state() is None
    assert figures_of([[query.acks[-1]]]).catch_up["replayed"]


def test_an_interrupted_changelog_drops_and_restores_state(tmp_path: Path, clock: Clock) -> None:
    query, before, first = started(tmp_path / "interrupted")
    storage = task._states._by_name[query.location].storage
    storage._interrupted(KeyboardInterrupt())
    rows = query.run(numbers(500, 100))
    assert before() is None
    assert not task._states._by_name[query.location].storage.interrupted
    assert 2 * first == sum(row["n"] for row in rows)
