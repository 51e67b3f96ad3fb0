"""Claims: what they say, what they cost, and when they are given up."""

import json
import os
import socket

import pytest
from tests.unit.checkpoint.dict_store import DictStore

from statelog.checkpoint.ownership import (
    claim_epoch,
    describe_newest_claim,
    is_taken_over,
    new_owner_id,
    newest_epoch,
)
from statelog.errors import CheckpointError
from statelog.store import LocationPaths

PATHS = LocationPaths()


def claim(store: DictStore, owner: str = "a") -> int:
    return claim_epoch(store, PATHS, owner, lambda: 1234, lambda seconds: None)


def test_a_claim_says_who_and_when():
    store = DictStore()
    claim(store, "me")
    claim(store, "you")
    first, second = (json.loads(bytes(store.get(f"owner/{epoch}"))) for epoch in (1, 2))
    assert {"version", "owner_id", "attempt", "created_at_ms"} == set(first)
    assert (1, "me", 1234) == (first["version"], first["owner_id"], first["created_at_ms"])
    assert second["owner_id"] == "you"
    assert len(first["attempt"]) >= 32
    assert first["attempt"] != second["attempt"]


def test_a_claim_costs_one_listing_and_one_put_however_many_there_were():
    store = DictStore()
    assert [1, 2, 3, 4, 5] == [claim(store) for _ in range(5)]
    store.put("owner/not-a-number", b"")
    store.requests.clear()
    assert claim(store) == 6
    assert store.requests == {"list": 1, "put_if_absent": 1}
    assert newest_epoch(store, PATHS) == 6
    assert not is_taken_over(store, PATHS, 6)
    assert is_taken_over(store, PATHS, 5)


def test_a_claim_that_others_always_win_is_given_up():
    store = DictStore()

    def faster(operation, path):
        if operation == "put_if_absent":
            store.objects[path] = b"another owner's", store.now

    store.on_request = faster
    with pytest.raises(CheckpointError, match="started more than once") as raised:
        claim(store)
    assert raised.value.reason == "contended"
    assert 1000 == store.requests["put_if_absent"]


def test_the_newest_claim_is_described_for_a_message():
    store = DictStore()
    assert describe_newest_claim(store, PATHS) == "missing"
    claim(store, "a\x1b[31m")
    assert describe_newest_claim(store, PATHS) == (
        "owner/1, of 'a\\x1b[31m' at 1970-01-01 00:00:01 UTC"
    )
    for damaged in (b"", b"[]", b"{", b'{"owner_id": 1}', b'{"created_at_ms": 1e300}'):
        store.put("owner/2", damaged)
        assert describe_newest_claim(store, PATHS) == "owner/2"


def test_owners_have_different_names_that_say_where_they_run():
    names = {new_owner_id("query") for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith(f"query-{socket.gethostname()}-{os.getpid()}-") for name in names)
