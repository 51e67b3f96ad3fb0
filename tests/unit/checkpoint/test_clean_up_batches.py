"""Clean-up in batches: what a micro-batch costs, what waits, and that tags are honoured."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.support.locations.checkpoints import checkpoint_ids, small_checkpoint, started
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint import CheckpointCoordinator
from statelog.checkpoint.clean_up import BATCH_COMMITS, BATCH_INTERVAL_MS
from statelog.checkpoint.retained import Tag, TagKind, delete_tag
from statelog.checkpoint.tags import put_tag
from statelog.errors import StoreError
from statelog.store import PATHS


class Background:
    """Runs the requests of batches when the test says so, or when their result is awaited."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.is_held = False

    def start(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Awaited(self)
        self.waiting.append((future, work))
        if not self.is_held:
            self.run()
        return future

    def run(self) -> None:
        while self.waiting:
            future, work = self.waiting.pop(0)
            try:
                future.set_result(work())
            except StoreError as error:
                future.set_exception(error)


class Awaited(Future[Any]):
    """A result that is made when it is awaited, so that a test needs no thread."""

    def __init__(self, background: Background) -> None:
        super().__init__()
        self._background = background

    def result(self, timeout: float | None = None) -> Any:
        self._background.run()
        return super().result(timeout)


def batched(owner: CheckpointCoordinator, *, is_held: bool = False) -> Background:
    background = Background()
    background.is_held = is_held
    owner._clean_ups._start = background.start
    return background


def location(
    retained: int, *, is_held: bool = False
) -> tuple[DictStore, CheckpointCoordinator, Background]:
    """Return a store, its owner, and the background in which the owner's batches run."""
    store = DictStore()
    owner = started(store, retained=retained)
    return store, owner, batched(owner, is_held=is_held)


def tag(store: DictStore, name: str, checkpoint_id: int) -> Tag:
    new = Tag(kind=TagKind.TAG, name=name, checkpoint_id=checkpoint_id)
    return put_tag(store, new, clock_ms=lambda: 0)


def needed(owner: CheckpointCoordinator) -> set[int]:
    return {
        int(path.split("/")[0][4:])
        for checkpoint_id in owner.checkpoints()
        for path in (*owner.load(checkpoint_id).referenced_paths(), PATHS.metadata(checkpoint_id))
    }


def without_log(owner: CheckpointCoordinator, commits: int) -> None:
    """Commit checkpoints that need nothing of the ones before, so that these are garbage."""
    for _ in range(commits):
        checkpoint_id = owner.next_checkpoint_id
        owner.trigger(checkpoint_id, [])
        owner.complete(checkpoint_id, properties={})
        owner.clean_up_when_due()


def test_a_steady_micro_batch_makes_one_request():
    """The put; the requests of a clean-up run in another thread."""
    store, owner, background = location(retained=2, is_held=True)
    for _ in range(BATCH_COMMITS + 2):
        store.requests.clear()
        without_log(owner, 1)
        assert store.requests == {"put_if_absent": 1}
    assert len(background.waiting) == 1, "the batch began"


def test_a_batch_lists_the_tags_once_and_deletes_what_was_subsumed():
    store, owner, _ = location(retained=2)
    store.requests.clear()
    without_log(owner, BATCH_COMMITS + 1)
    assert store.requests["list"] == 0
    assert checkpoint_ids(store) == list(range(1, BATCH_COMMITS + 2))
    without_log(owner, 3)
    assert store.requests["list"] == 1
    assert store.requests["delete"] == BATCH_COMMITS
    assert checkpoint_ids(store) == list(range(BATCH_COMMITS + 1, BATCH_COMMITS + 5))


def test_a_batch_begins_after_a_minute_too():
    store, owner, _ = location(retained=1)
    without_log(owner, 3)
    assert checkpoint_ids(store) == [1, 2, 3]
    owner._clock_ms.now_ms += BATCH_INTERVAL_MS
    without_log(owner, 3)
    assert checkpoint_ids(store) == [4, 5, 6]


def test_waiting_clean_ups_are_bounded():
    """A thread that never gets to run: the next batch waits for it."""
    store, owner, _ = location(retained=1, is_held=True)
    for _ in range(20 * BATCH_COMMITS):
        without_log(owner, 1)
        assert len(checkpoint_ids(store)) <= 4 * BATCH_COMMITS + 1
        owner._ledger.check_invariants()


def test_the_end_waits_for_the_batch_under_way_and_deletes_what_waits():
    store, owner, background = location(retained=1, is_held=True)
    without_log(owner, BATCH_COMMITS + 5)
    assert background.waiting
    owner.clean_up()
    assert checkpoint_ids(store) == [BATCH_COMMITS + 5]
    assert background.waiting == []


@pytest.mark.parametrize("before", ["the listing", "the batch"])
def test_a_tag_that_is_put_before_the_commit_is_honoured(before):
    store, owner, background = location(retained=1, is_held=True)
    without_log(owner, 3 if before == "the batch" else BATCH_COMMITS)
    tagged = owner.next_checkpoint_id - 1
    mark = tag(store, "release", tagged)
    without_log(owner, 2 * BATCH_COMMITS + 1)
    background.run()
    without_log(owner, 2)
    background.is_held = False
    owner.clean_up()
    assert tagged in checkpoint_ids(store)
    assert owner.checkpoints() == [tagged, owner.next_checkpoint_id - 1]
    delete_tag(store, mark)
    for _ in range(2):  # the first one lists the tags, and the commit after it retains fewer
        without_log(owner, 1)
        owner.clean_up()
    assert checkpoint_ids(store) == [owner.next_checkpoint_id - 1]


def test_pins_settle_only_what_was_subsumed_before_they_were_listed():
    """A tag that is put between the listing and a later commit holds the checkpoint of that commit."""
    store, owner, background = location(retained=1, is_held=True)
    without_log(owner, BATCH_COMMITS + 1)
    (listing, work) = background.waiting.pop()
    listed = work()
    tagged = owner.next_checkpoint_id - 1
    tag(store, "late", tagged)
    without_log(owner, 1)
    listing.set_result(listed)
    background.is_held = False
    without_log(owner, 3)
    assert tagged in checkpoint_ids(store)
    owner.clean_up()
    assert checkpoint_ids(store) == [tagged, owner.next_checkpoint_id - 1]


def test_a_batch_that_fails_is_repeated_with_a_later_one():
    def fails(operation: str, path: str) -> str | None:
        if operation in ("delete", "list"):
            raise StoreError("no route to host", path=path)
        return None

    store, owner, _ = location(retained=1)
    without_log(owner, BATCH_COMMITS)
    store.on_request = fails
    with pytest.raises(StoreError, match="no route"):
        without_log(owner, 2)
    owner.clean_up_when_due()
    with pytest.raises(StoreError, match="no route"):
        owner.clean_up_when_due()
    store.on_request = lambda operation, path: None
    without_log(owner, 3)
    assert len(checkpoint_ids(store)) <= 4
    owner.clean_up()
    assert checkpoint_ids(store) == [owner.next_checkpoint_id - 1]


def test_a_fenced_owner_deletes_only_what_its_own_commits_subsumed():
    """Its batch may run late: the next owner restores what the last commit retained."""
    store, owner, background = location(retained=1, is_held=True)
    without_log(owner, BATCH_COMMITS + 1)
    successor = started(store, "b", retained=1)
    background.run()
    owner.clean_up_when_due()
    background.run()
    assert checkpoint_ids(store) == [BATCH_COMMITS + 1]
    without_log(successor, 1)
    assert successor.latest is not None and successor.latest.parent_id == BATCH_COMMITS + 1
    assert PATHS.metadata(successor.epoch or 0) in store.objects


def test_the_next_owner_deletes_what_waited_at_the_death_of_the_one_before():
    store = DictStore()
    without_log(started(store, retained=2), 9)
    assert checkpoint_ids(store) == list(range(1, 10))
    successor = started(store, "b", retained=2)
    batched(successor)
    store.requests.clear()
    without_log(successor, 3)
    assert checkpoint_ids(store) == [9, 11, 12, 13]
    assert store.requests["list"] == 1
    successor.clean_up()
    assert checkpoint_ids(store) == [12, 13]


def test_objects_that_retained_checkpoints_need_stay():
    store = DictStore()
    owner = started(store, retained=1)
    for _ in range(4):  # changes of these checkpoints stay in the log of later ones
        small_checkpoint(owner, owner.next_checkpoint_id)
    successor = started(store, "b", retained=1)
    batched(successor)
    for _ in range(3):
        small_checkpoint(successor, successor.next_checkpoint_id)
        successor.clean_up_when_due()
    successor.clean_up()
    assert needed(successor) == set(checkpoint_ids(store)) == {1, 2, 3, 4, 6, 7, 8}
