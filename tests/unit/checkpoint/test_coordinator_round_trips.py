"""How many requests to a store follow each other, with 100 retained checkpoints and 250 log handles."""

import pytest
from tests.support.locations.checkpoints import (
    checkpoint_ids,
    coordinator,
    log_in_file,
    log_inline,
    memory_url,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.locations.histories import NAMES, History, key_of
from tests.support.stores.dict_store import CountingStore
from tests.support.stores.round_trips import RoundTrips

from statelog.checkpoint import CheckpointCoordinator
from statelog.checkpoint.history import Entries
from statelog.checkpoint.listing import list_checkpoints
from statelog.checkpoint.restore import LEFTOVERS_MAX, find_restore_point
from statelog.checkpoint.retained import Tag, TagKind, retained_checkpoints
from statelog.checkpoint.tags import put_tag
from statelog.extensions.read.location_state import LocationState
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.store import PATHS, ObjectStore, open_store
from statelog.testing.faulty_store import FaultyStore

ALL_GROUPS = KeyGroupRange(0, 7)
RETAINED, HANDLES = 100, 250


@pytest.fixture(scope="module")
def location() -> ObjectStore:
    """A location with a long log; the tests only read it, or claim it."""
    store = open_store(memory_url())
    driver = started(store, retained=RETAINED)
    for _ in range(HANDLES):
        number = driver.next_checkpoint_id
        changes = [(number % 8, b"value")]
        snapshot = TaskStateSnapshot(ALL_GROUPS, log_inline(ALL_GROUPS, [changes], number))
        driver.trigger(number, [ALL_GROUPS])
        driver.acknowledge(number, snapshot)
        driver.complete(number, properties={})
        driver.clean_up()
    assert (HANDLES, RETAINED) == (len(driver.latest.log), len(driver.checkpoints()))
    return store


def test_a_start_takes_five_round_trips_and_a_commit_is_one_put(location, monkeypatch):
    """
    A start lists the entries with the result of the probe, reads the highest entry, and puts the claim.

    Then it lists the entries again with the tags and the newest checkpoint, and reads the end of each retained
    checkpoint.
    """
    store = RoundTrips(location, monkeypatch)
    monkeypatch.setattr("statelog.store.probe._verified", set())
    assert store.count(coordinator(store).claim) == 4 + 7, "the first start probes the store"
    monkeypatch.setattr("statelog.store.probe._verified", set())
    driver = coordinator(store, retained=RETAINED)
    assert store.count(driver.claim) + store.count(driver.restore) == 4 + 1
    store.requests.clear()
    small_checkpoint(driver, driver.next_checkpoint_id)
    assert [request.split()[1] for request in store.requests] == ["put_if_absent"]


def test_a_listing_of_checkpoints_takes_three_round_trips(location, monkeypatch):
    """The entries and the tags; the end of every entry; and the newest checkpoint, if a claim is above it."""
    store = RoundTrips(location, monkeypatch)
    assert store.count(lambda: list_checkpoints(store)) <= 3


@pytest.mark.parametrize("seed", range(3))
def test_the_state_of_a_key_takes_four_round_trips(seed, monkeypatch):
    """The entries; the newest checkpoint; its snapshot; and the changes since then."""
    far = FaultyStore()
    history = History(f"far {seed}", far)
    for _ in range(40):
        history.micro_batch()
    store = RoundTrips(far, monkeypatch)
    state = LocationState(store)
    name = next(variable.name for variable in state.variables() if variable.name in NAMES)
    assert store.count(lambda: LocationState(store).get(name, key_of(3))) <= 4


def commit(driver: CheckpointCoordinator, store: ObjectStore) -> None:
    """Complete a checkpoint whose changes are in a file, so that no later one needs its metadata."""
    snapshot = TaskStateSnapshot(ALL_GROUPS, log_in_file(store, ALL_GROUPS, [[(3, b"value")]]))
    run_checkpoint(driver, driver.next_checkpoint_id, [snapshot])


def test_the_requests_of_a_start_do_not_grow_with_the_claims(monkeypatch):
    """Each start claims the location, and no claim is ever deleted."""
    store = open_store(memory_url())
    commit(started(store), store)
    counts = []
    for _ in range(3):
        for _ in range(100):
            started(store)
        traced = RoundTrips(store, monkeypatch)
        driver = started(traced)
        commit(driver, store)
        driver.clean_up()
        counts.append(len(traced.requests))
    assert max(counts) < LEFTOVERS_MAX + 40, counts  # with the probe


def test_leftovers_of_a_dead_owner_are_deleted():
    store = open_store(memory_url())
    for _ in range(200):
        started(store)
    dead = started(store, retained=2)
    for _ in range(42):
        commit(dead, store)
    following = started(store, retained=2)
    commit(following, store)
    following.clean_up()
    assert following.checkpoints() == checkpoint_ids(store)
    assert 2 == len(following.checkpoints())


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
