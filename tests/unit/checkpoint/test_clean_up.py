"""The sweep: only orphans, only old ones, and nothing where there is doubt."""

import datetime as dt

import pytest
from tests.support.locations.checkpoints import (
    log_in_file,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.stores.dict_store import EPOCH, DictStore

from statelog.checkpoint import collect_garbage
from statelog.checkpoint.clean_up import delete_objects
from statelog.errors import CheckpointError, IncompatibleFormatError, StoreError
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot

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
    run_checkpoint(
        owner, 2, [TaskStateSnapshot(ALL, log_in_file(store, ALL, [[(1, b"b")]]), snapshot)]
    )
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
