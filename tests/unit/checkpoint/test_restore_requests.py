"""How often a checkpoint is read: by a restart whole, and once; to know which are retained, not at all."""

import pytest
from tests.support.locations.checkpoints import coordinator, small_checkpoint, started
from tests.support.stores.dict_store import CountingStore

from statelog.checkpoint.history import Entries
from statelog.checkpoint.restore import find_restore_point
from statelog.checkpoint.retained import Tag, TagKind, retained_checkpoints
from statelog.checkpoint.tags import put_tag
from statelog.store import PATHS

TAG = b"MINE"


def filled(checkpoints: int) -> CountingStore:
    store = CountingStore()
    owner = started(store)
    for checkpoint_id in range(1, checkpoints + 1):
        small_checkpoint(owner, checkpoint_id, sections={TAG: b"%d" % checkpoint_id})
        owner.clean_up()
    store.reads.clear()
    return store


@pytest.mark.parametrize("checkpoints", [1, 2, 6])
def test_a_restart_reads_the_newest_checkpoint_once(checkpoints):
    store, newest = filled(checkpoints), checkpoints
    entries = Entries(store)
    assert entries.newest().checkpoint_id == newest
    assert entries.list_again().newest().checkpoint_id == newest
    successor = coordinator(store, "b")
    successor.claim(entries)
    assert successor.restore().checkpoint_id == newest
    assert successor.section(newest, TAG) == b"%d" % newest
    small_checkpoint(successor, successor.next_checkpoint_id)
    successor.clean_up()
    assert store.reads[PATHS.metadata(newest)] == 1


def test_a_restart_from_an_older_checkpoint_reads_it_and_the_newest_once():
    store = filled(6)
    entries = Entries(store)
    entries.newest()
    find_restore_point(entries.list_again(), 5)
    successor = coordinator(store, "b")
    successor.claim(entries)
    assert successor.restore(5).checkpoint_id == 5
    assert successor.section(5, TAG) == b"5"
    small_checkpoint(successor, successor.next_checkpoint_id)
    assert [store.reads[PATHS.metadata(number)] for number in (5, 6)] == [1, 1]


def test_a_commit_after_the_first_look_is_found():
    store = filled(2)
    entries = Entries(store)
    entries.newest()
    small_checkpoint(started(store, "b"), 4)
    successor = coordinator(store, "c")
    successor.claim(entries)
    assert successor.restore().checkpoint_id == 4
    assert successor.section(4, TAG) is None


def test_sections_are_read_from_the_store_once_a_checkpoint_began():
    store = filled(2)
    successor = started(store, "b")
    assert small_checkpoint(successor, 4, sections={TAG: b"4"}).checkpoint_id == 4
    assert [successor.section(number, TAG) for number in (2, 4)] == [b"2", b"4"]


def test_large_checkpoints_that_are_pinned_are_not_read_to_tell_them_from_claims():
    store = CountingStore()
    owner = started(store, retained=1)
    for checkpoint_id in range(1, 7):
        small_checkpoint(owner, checkpoint_id, sections={TAG: bytes(2000)})
        pin = Tag(kind=TagKind.READER, name=f"r{checkpoint_id}", checkpoint_id=checkpoint_id)
        put_tag(store, pin, clock_ms=lambda: 0)
    store.reads.clear()
    assert retained_checkpoints(store) == (1, 2, 3, 4, 5, 6)
    assert {path for path in store.reads if "_metadata" in path} == {PATHS.metadata(6)}
