"""What the garbage collector of a worker process does not visit, and when it runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from statelog.spark.worker.garbage import Garbage


@pytest.fixture(autouse=True)
def nothing_is_excluded() -> Iterator[None]:
    callbacks = list(gc.callbacks)
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()
    gc.callbacks[:] = callbacks


class Process:
    """A worker process; a collection takes `collection_s` seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.collection_s = 0.0
        self.garbage = Garbage(lambda: self.now_s)
        # Before the callback of `Garbage`, which then finds that time has passed.
        gc.callbacks.insert(0, self._pass_time)

    def _pass_time(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self.now_s += self.collection_s

    def excludes(self) -> bool:
        """End a task; return whether an object made before is excluded now."""
        cycle: list[object] = [object()]
        cycle.append(cycle)
        self.garbage.exclude()
        return not any(tracked is cycle for tracked in gc.get_objects())

    def collect(self, seconds: float, generation: int = 2) -> None:
        self.collection_s = seconds
        gc.collect(generation)


@pytest.fixture
def process() -> Process:
    """A process that has excluded its objects once, for 10 seconds."""
    process = Process()
    process.collection_s = 10.0
    assert process.excludes()
    process.collect(0.5)  # nothing is left to visit: this one is not compared with the later ones
    return process


def test_the_first_task_excludes_what_is_loaded() -> None:
    loaded = len(gc.get_objects())
    assert Process().excludes()
    assert len(gc.get_objects()) < loaded / 100
    assert gc.get_freeze_count() > loaded / 2


def test_objects_are_excluded_again_when_collections_have_lost_more_time_than_that_costs(
    process: Process,
) -> None:
    found = []
    for seconds in (1.0, 5.0, 5.0, 3.0, 3.5):
        process.collect(seconds)
        found.append(process.excludes())
    # 4 + 4 + 2 seconds longer than the shortest one are not more than 10; 2.5 more are.
    assert found == [False, False, False, False, True]
    for seconds in (0.5, 50.0, 50.0):  # the later ones are compared with each other
        process.collect(seconds)
        assert not process.excludes()


def test_collections_that_stay_short_exclude_nothing(process: Process) -> None:
    for _ in range(50):
        process.collect(3.0)
        assert not process.excludes()


def test_collections_of_young_objects_do_not_count(process: Process) -> None:
    process.collect(1.0)
    for _ in range(50):
        process.collect(9.0, generation=1)
    assert not process.excludes()


def test_a_new_state_is_excluded(process: Process) -> None:
    process.garbage.require_exclusion()
    assert process.excludes()
    assert not process.excludes()


def test_after_a_collection_of_everything_objects_are_excluded_again(process: Process) -> None:
    process.garbage.collect_everything()
    assert not gc.get_freeze_count()
    assert process.excludes()
    assert not process.excludes()


def test_an_excluded_cycle_without_users_is_collected_before_the_next_exclusion() -> None:
    class Node:
        other: Any

    node, other = Node(), Node()
    node.other, other.other = other, node
    gone = weakref.ref(node)
    garbage = Garbage()
    garbage.exclude()
    del node, other
    gc.collect()
    assert gone() is not None  # what is excluded is not visited
    garbage.require_exclusion()
    garbage.exclude()
    assert gone() is None


def test_the_collector_is_disabled_until_the_daemon_collects(process: Process) -> None:
    garbage = process.garbage
    garbage.begin_task()
    assert not gc.isenabled()
    gc.collect()  # by the user's code
    assert not gc.isenabled()
    garbage.end_task(has_daemon=True)
    assert not gc.isenabled()
    gc.collect()
    assert gc.isenabled()


def test_a_daemon_that_does_not_collect_is_not_waited_for_again(process: Process) -> None:
    garbage = process.garbage
    garbage.begin_task()
    garbage.end_task(has_daemon=True)
    assert not gc.isenabled()
    for _ in range(2):
        garbage.begin_task()
        assert not gc.isenabled()
        garbage.end_task(has_daemon=True)
        assert gc.isenabled()


def test_without_a_daemon_the_collector_is_disabled_during_the_task_only(process: Process) -> None:
    process.garbage.begin_task()
    process.garbage.end_task(has_daemon=False)
    assert gc.isenabled()


def test_a_task_that_fails_before_anything_is_excluded_enables_the_collector() -> None:
    garbage = Garbage()
    garbage.begin_task()
    garbage.end_task(has_daemon=True)
    assert gc.isenabled()


def test_a_collector_that_the_user_disabled_stays_disabled(process: Process) -> None:
    gc.disable()
    process.garbage.begin_task()
    process.garbage.end_task(has_daemon=False)
    gc.collect()
    assert not gc.isenabled()
