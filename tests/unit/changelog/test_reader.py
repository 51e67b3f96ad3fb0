"""Handles of a log that are read at once, and change sets that are read alone."""

import random
from dataclasses import replace

import pytest
from tests.support.locations.checkpoints import log_in_file, log_inline
from tests.support.stores.round_trips import RoundTrips

from statelog.changelog import reader
from statelog.changelog.reader import read_change_batches, read_changes, read_logs
from statelog.model import KeyGroupRange
from statelog.store import CachedStore
from statelog.testing.faulty_store import FaultyStore

ALL = KeyGroupRange(0, 7)


class Far(FaultyStore):
    """A store that is asked by several threads at once."""

    endpoint = "far away"


def logs_of(store: FaultyStore, count: int, seed: int) -> list:
    chance = random.Random(seed)
    logs = []
    for number in range(count):
        changes = [(chance.randrange(8), b"%d" % number * chance.randint(1, 9)) for _ in range(3)]
        if chance.random() < 0.3:
            logs.append(log_inline(ALL, [changes], number))
        else:
            logs.append(log_in_file(store, ALL, [changes] * chance.randint(1, 3), number))
    return logs


def changes_in(batches) -> list:
    return [list(zip(*batch.to_pydict().values(), strict=True)) for batch in batches]


@pytest.mark.parametrize("window_bytes", [0, 100, 10**9])
@pytest.mark.parametrize("count", [0, 1, 2, 150])
def test_the_changes_are_those_of_one_handle_after_another(count, window_bytes, monkeypatch):
    monkeypatch.setattr(reader, "_WINDOW_BYTES", window_bytes)
    store = Far()
    parts = [(log, KeyGroupRange(2, 5)) for log in logs_of(store, count, seed=count)]
    expected = [changes_in(read_change_batches(store, *part)) for part in parts]
    for source in (store, CachedStore(store, 2000)):
        assert [changes_in(batches) for batches in read_logs(source, parts)] == expected


def test_250_handles_take_one_round_trip(monkeypatch):
    far = FaultyStore()
    parts = [(log_in_file(far, ALL, [[(1, b"x")]], number), ALL) for number in range(250)]
    store = RoundTrips(far, monkeypatch)
    assert store.count(lambda: [list(batches) for batches in read_logs(store, parts)]) == 1


def test_handles_of_one_file_share_its_request(monkeypatch):
    far = FaultyStore()
    log = log_in_file(far, ALL, [[(1, b"x")]] * 2)
    other = log_in_file(far, ALL, [[(1, b"y")]])
    parts = [(log, KeyGroupRange(0, 1)), (log, KeyGroupRange(2, 7)), (other, ALL)]
    store = RoundTrips(far, monkeypatch)
    cached = CachedStore(store, 10**6)
    for batches in read_logs(cached, parts):
        list(batches)
    assert len(store.requests) == 2


def test_a_set_at_an_offset_after_the_end_of_its_framed_file_is_read():
    store = FaultyStore()
    values = [b"a" * 200_000, b"b" * 2000, b"c" * 200_000]
    log = log_in_file(store, ALL, [[(3, value)] for value in values], compress=True)
    entry = log.handles_and_offsets[1]
    assert entry.offset > store.head(entry.handle.path).size_bytes
    lone = replace(log, handles_and_offsets=(entry,))
    assert [(3, values[1])] == list(read_changes(store, lone))
