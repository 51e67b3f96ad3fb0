"""A worker excludes its modules and its large state from garbage collection, and forgets neither."""

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from statelog.spark.worker.kept_states import exclude_from_collection


@pytest.fixture(autouse=True)
def nothing_is_excluded() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


class Worker:
    """A worker whose state has so many entries."""

    def __init__(self) -> None:
        self.entries = 0
        self.excluded_entries: int | None = None
        self.state = SimpleNamespace(object_count=lambda: self.entries)

    def excludes(self, entries: int) -> bool:
        """End a task with so many entries; return whether an object made before is excluded now."""
        self.entries = entries
        cycle: list[object] = [object()]
        cycle.append(cycle)
        exclude_from_collection(self)  # type: ignore[arg-type]
        return not any(tracked is cycle for tracked in gc.get_objects())


def test_the_first_task_excludes_what_is_loaded() -> None:
    loaded = len(gc.get_objects())
    assert Worker().excludes(0)
    assert len(gc.get_objects()) < loaded / 100
    assert gc.get_freeze_count() > loaded / 2


def test_state_is_excluded_again_when_it_has_grown_by_half() -> None:
    worker = Worker()
    sizes = [0, 99_999, 100_001, 150_001, 150_002, 225_002, 120_000, 180_001]
    assert [worker.excludes(size) for size in sizes] == [
        True,
        False,
        True,
        False,
        True,
        False,
        False,
        True,
    ]


def test_an_excluded_cycle_without_users_is_collected_before_the_next_exclusion() -> None:
    class Node:
        other: Any

    node, other = Node(), Node()
    node.other, other.other = other, node
    gone = weakref.ref(node)
    Worker().excludes(0)
    del node, other
    gc.collect()
    assert gone() is not None  # what is excluded is not visited
    Worker().excludes(0)
    assert gone() is None
