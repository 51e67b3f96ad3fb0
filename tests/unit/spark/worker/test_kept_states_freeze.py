"""A worker excludes its modules and its large state from garbage collection, and forgets neither."""

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from statelog.spark.worker.kept_states import freeze


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


class Worker:
    """A worker whose state has so many entries."""

    def __init__(self) -> None:
        self.entries = 0
        self.frozen_entries: int | None = None
        self.state = SimpleNamespace(object_count=lambda: self.entries)

    def freezes(self, entries: int) -> bool:
        """End a task with so many entries; return whether an object made before is frozen now."""
        self.entries = entries
        made: list[object] = [object()]
        made.append(made)
        freeze(self)  # type: ignore[arg-type]
        return not any(tracked is made for tracked in gc.get_objects())


def test_the_first_task_freezes_what_is_loaded() -> None:
    loaded = len(gc.get_objects())
    assert Worker().freezes(0)
    assert len(gc.get_objects()) < loaded / 100
    assert gc.get_freeze_count() > loaded / 2


def test_state_is_frozen_again_when_it_has_grown_by_half() -> None:
    worker = Worker()
    sizes = [0, 99_999, 100_001, 150_001, 150_002, 225_002, 120_000, 180_001]
    assert [worker.freezes(size) for size in sizes] == [
        True,
        False,
        True,
        False,
        True,
        False,
        False,
        True,
    ]


def test_a_frozen_cycle_without_users_is_collected_by_the_next_freeze() -> None:
    class Node:
        other: Any

    node, other = Node(), Node()
    node.other, other.other = other, node
    gone = weakref.ref(node)
    Worker().freezes(0)
    del node, other
    gc.collect()
    assert gone() is not None  # what is frozen is not visited
    Worker().freezes(0)
    assert gone() is None
