"""The sweep: only orphans, only old ones, and nothing where there is doubt."""

import datetime as dt
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.support.locations.checkpoints import (
    checkpoint_ids,
    log_in_file,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.stores.dict_store import EPOCH, DictStore

from statelog.checkpoint import CheckpointCoordinator, collect_garbage
from statelog.checkpoint.clean_up import BATCH_COMMITS, BATCH_INTERVAL_MS, delete_objects
from statelog.checkpoint.retained import Tag, TagKind, delete_tag
from statelog.checkpoint.tags import put_tag
from statelog.errors import CheckpointError, IncompatibleFormatError, StoreError
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot
from statelog.store import PATHS

ALL = KeyGroupRange(0, 7)
HOUR = dt.timedelta(hours=1)
ORPHANS = ["chk-100/x", "dstl/o", "output/o", "shared/o", "taskowned/o", "tmp/o"]


def swept(store, *, min_age=HOUR, dry_run=False, hours=2):
    now = EPOCH + hours * HOUR
    return collect_garbage(store, min_age=min_age, apply=not dry_run, now=now)


@pytest.fixture
def filled() -> DictStore:
    store = DictStore()
    owner = started(store, retained=2)
    store.put("taskowned/s", b"state")
    run_checkpoint(owner, 1, [TaskStateSnapshot(ALL, log_in_file(store, ALL, [[(1, b"a")]]))])
    snapshot = MaterializedHandle(ALL, 1, FileStateHandle("taskowned/s", 5))
    log = log_in_file(store, ALL, [[(1, b"b")]])
    run_checkpoint(owner, 2, [TaskStateSnapshot(ALL, log, snapshot)])
    small_checkpoint(owner, 3)
    for path in (*ORPHANS, "README", "other/file"):
        store.put(path, b"12345")
    return store


def test_orphans_are_deleted_and_nothing_else(filled):
    before = set(filled.objects)
    report = swept(filled)
    subsumed = {"chk-1/_metadata", *(p for p in before if p.startswith("dstl/file"))}
    needed = {p for p in before if p.startswith("dstl/file") and p in filled.objects}
    assert set(report.deleted) == {*ORPHANS, *subsumed} - needed
    assert len(needed) == 1
    named = {"chk-2/_metadata", "chk-3/_metadata", "taskowned/s", "chk-0/_metadata", *needed}
    assert set(filled.objects) == {*named, "README", "other/file"}
    assert (report.unknown, report.too_young, report.failed) == (2, 0, ())
    assert report.deleted_bytes > 5 * len(ORPHANS)
    assert swept(filled).deleted == ()


def test_a_dry_run_deletes_nothing(filled):
    before = dict(filled.objects)
    report = swept(filled, dry_run=True)
    assert filled.objects == before
    assert report.dry_run
    assert swept(filled).deleted == report.deleted


@pytest.mark.parametrize(("hours", "is_deleted"), [(0.99, False), (1, True), (50, True)])
def test_objects_below_the_minimum_age_are_not_deleted(filled, hours, is_deleted):
    report = swept(filled, hours=hours)
    assert bool(report.deleted) is is_deleted
    assert bool(report.too_young) is not is_deleted


def test_a_clock_behind_the_store_deletes_nothing(filled):
    assert swept(filled, min_age=dt.timedelta(0), hours=-1).deleted == ()


@pytest.mark.parametrize(
    ("victim", "how"),
    [
        *(("chk-2/_metadata", how) for how in ("cut", "flip", "gone")),
        *(("chk-3/_metadata", how) for how in ("cut", "flip")),  # gone: 2 is the newest then
    ],
)
def test_a_damaged_retained_checkpoint_stops_the_sweep(filled, victim, how):
    content, modified = filled.objects[victim]
    del filled.objects[victim]
    if how == "cut":
        filled.objects[victim] = (content[:-9], modified)
    elif how == "flip":
        filled.objects[victim] = (content[:-20] + b"x" + content[-19:], modified)
    before = dict(filled.objects)
    with pytest.raises(CheckpointError) as raised:
        swept(filled)
    assert raised.value.reason == "damaged"
    assert filled.objects == before


def test_a_newer_format_stops_the_sweep(filled):
    content, modified = filled.objects["chk-2/_metadata"]
    filled.objects["chk-2/_metadata"] = (content[:-12] + b"\x00\x09" + content[-10:], modified)
    with pytest.raises(IncompatibleFormatError):
        swept(filled)
    assert filled.deleted == []


def test_a_folder_that_is_no_location_is_left_alone():
    store = DictStore()
    store.put("dstl/somebody-elses", b"x")
    report = swept(store)
    assert (report.deleted, report.unknown) == ((), 1)
    assert "neither a checkpoint nor a claim" in report.reason


def test_a_claimed_location_without_checkpoint_loses_only_old_orphans():
    store = DictStore()
    started(store)
    store.put("dstl/old", b"x")
    store.now = EPOCH + 2 * HOUR
    store.put("dstl/young", b"x")
    assert swept(store, hours=2.5).deleted == ("dstl/old",)


def test_another_location_in_a_folder_of_this_one_is_not_touched(filled):
    filled.put("inner/parents/1", b"{}")
    filled.put("inner/dstl/o", b"x")
    filled.put("inner/tmp/o", b"x")
    assert not [path for path in swept(filled).deleted if path.startswith("inner/")]
    assert {"inner/parents/1", "inner/dstl/o", "inner/tmp/o"} <= set(filled.objects)


def test_a_commit_during_the_sweep_is_kept(filled):
    successor = started(filled, "b", retained=2)
    log = log_in_file(filled, ALL, [[(2, b"c")]])
    requests = []

    def commit_after_the_listing(operation, path):
        if operation == "list_folders" and not requests:
            requests.append(path)
            run_checkpoint(successor, 5, [TaskStateSnapshot(ALL, log)])
        return None

    filled.on_request = commit_after_the_listing
    report = swept(filled)
    assert requests
    assert not set(report.deleted) & set(successor.latest.referenced_paths())


def test_failures_are_reported_and_bounded(filled):
    def refuse(operation, path):
        if operation == "delete":
            raise StoreError("forbidden")
        return None

    filled.on_request = refuse
    report = swept(filled)
    assert report.deleted == ()
    assert set(ORPHANS) <= set(report.failed)
    assert report.reason == "forbidden"
    assert filled.requests["delete"] == 1 + 3  # together, then one by one


class Bulk:
    """A store that only deletes: it records each request, and refuses some names."""

    def __init__(self, *refused):
        self.requests, self.gone, self.refused = [], [], set(refused)

    def delete(self, paths):
        self.requests.append(list(paths))
        for path in reversed(self.requests[-1]):  # in no order that helps
            if path in self.refused:
                raise StoreError(f"{path} stays", path=path)
            self.gone.append(path)


def test_many_objects_go_with_one_request_and_metadata_goes_first():
    store = Bulk()
    files = [f"dstl/{number}" for number in range(2100)]
    report = delete_objects(store, ["chk-2/_metadata", "chk-3/_metadata", *files])
    assert [2, 1000, 1000, 100] == [len(request) for request in store.requests]
    assert ["chk-2/_metadata", "chk-3/_metadata"] == store.requests[0]
    assert (len(report.deleted), report.failed, report.reason) == (2102, (), "")


@pytest.mark.parametrize("refused", [["b"], ["a", "d"], ["a", "b", "c", "d"]])
def test_a_report_is_true_where_a_request_did_half_of_its_work(refused):
    store = Bulk(*refused)
    report = delete_objects(store, ["a", "b", "c", "d", "e"])
    assert set(report.deleted) <= set(store.gone)
    assert sorted((*report.deleted, *report.failed)) == ["a", "b", "c", "d", "e"]
    assert set(refused) <= set(report.failed)
    assert "stays" in report.reason


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
