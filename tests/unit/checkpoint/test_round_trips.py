"""How many requests to a store follow each other, with 100 retained checkpoints and 250 log handles."""

import pytest
from tests.round_trips import RoundTrips
from tests.unit.checkpoint.helpers import coordinator, log_inline, memory_url, started

from statelog.checkpoint.listing import list_checkpoints
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.store import LocationPaths, ObjectStore, open_store

ALL_GROUPS = KeyGroupRange(0, 7)
RETAINED, HANDLES = 100, 250
PATHS = LocationPaths()


@pytest.fixture(scope="module")
def location() -> ObjectStore:
    """A location with a long log; the tests only read it, or claim it."""
    store = open_store(memory_url())
    driver = started(store, retained=RETAINED)
    for number in range(HANDLES):
        changes = [(number % 8, b"value")]
        snapshot = TaskStateSnapshot(ALL_GROUPS, log_inline(ALL_GROUPS, [changes], number))
        driver.trigger(number, [ALL_GROUPS])
        driver.acknowledge(number, snapshot)
        driver.complete(number, properties={})
        driver.clean_up()
    return store


def test_the_location_is_long(location: ObjectStore):
    driver = coordinator(location)
    driver.claim()
    newest = driver.restore()
    assert newest is not None
    assert len(newest.log) == HANDLES
    assert len(driver.checkpoints()) == RETAINED


def test_a_restart(location: ObjectStore, monkeypatch):
    """
    The result of the probe; a claim is a listing and a put.

    A restore is the folders and the tags, the newest checkpoint, and the size and the end of the others
    in two waves.  The checkpoint that the newest one subsumed is read meanwhile.
    """
    store = RoundTrips(location, monkeypatch)
    monkeypatch.setattr("statelog.store.probe._verified", set())
    assert store.count(coordinator(store).claim) == 8 + 2, "the first start probes the store"
    monkeypatch.setattr("statelog.store.probe._verified", set())
    driver = coordinator(store, retained=RETAINED)
    assert store.count(driver.claim) == 1 + 2
    assert store.count(driver.restore) == 1 + 1 + 2 * 2


def test_a_listing_of_checkpoints(location: ObjectStore, monkeypatch):
    """The folders and the tags; then the size and the end of all checkpoints, in four waves."""
    store = RoundTrips(location, monkeypatch)
    trips = store.count(lambda: list_checkpoints(store, PATHS))
    assert trips == 1 + 2 * -(-len(list_checkpoints(location, PATHS)) // 64)
