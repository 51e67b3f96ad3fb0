"""Claims: what they say, what they cost, and when they are given up."""

import os
import socket

import pytest
from tests.support.locations.checkpoints import small_checkpoint, started
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint.history import Entries, read_entry
from statelog.checkpoint.ownership import claim_location, describe_newest_claim, new_owner_id
from statelog.errors import CheckpointError, UsageError
from statelog.format.checkpoint_record import CLAIM_BYTES_MAX, ClaimRecord
from statelog.store import PATHS


@pytest.fixture
def store() -> DictStore:
    return DictStore()


def claim(store: DictStore, owner: str = "a", entries: Entries | None = None) -> ClaimRecord:
    entries = Entries(store) if entries is None else entries
    return claim_location(entries, owner, lambda: 1234, lambda seconds: None)[0]


def entry(store: DictStore, number: int) -> ClaimRecord:
    record = read_entry(store, number)
    assert isinstance(record, ClaimRecord)
    return record


def test_a_claim_says_who_and_when_and_what_it_continues(store):
    claim(store, "me")
    claim(store, "you")
    first, second = entry(store, 0), entry(store, 1)
    assert ("me", None, 1) == (first.owner_id, first.newest, first.next_number)
    assert ("you", None, 2) == (second.owner_id, second.newest, second.next_number)
    assert 1234 == first.created_at_ms
    assert first.attempt != second.attempt
    small_checkpoint(started(store, "she"), 3)
    assert claim(store, "he").newest == 3
    assert claim(store, "it").newest == 3, "of the claim before, which committed nothing"


def test_a_claim_costs_the_same_however_many_there_were(store):
    assert [0, 1, 2, 3, 4] == [claim(store).number for _ in range(5)]
    store.put("chk-x/not-a-number", b"")
    store.requests.clear()
    entries = Entries(store)
    assert 5 == claim(store, entries=entries).number
    assert [0, 1, 2, 3, 4, 5] == entries.ids
    # The entries, the highest one and the lowest, the claim; then the entries again, and the tags.
    assert store.requests == {"list_folders": 2, "get": 2, "put_if_absent": 1, "list": 1}


def test_a_claim_in_a_gap_is_put_again(store):
    """Its driver listed, and others used the number and deleted it before the put arrived."""
    claim(store, "before")
    began = False

    def on_request(operation: str, path: str) -> None:
        nonlocal began
        if operation != "put_if_absent" or began:
            return
        began = True
        other = started(store, "other", retained=1)  # claims 1, which the first one has seen free
        for number in (2, 3):
            small_checkpoint(other, number)
        store.delete([PATHS.metadata(1)])  # what nothing of statelog does

    store.on_request = on_request
    place = claim(store, "first")
    assert place.number == 4
    assert place.newest == 3
    assert entry(store, 1).owner_id == "first", "the claim in the gap stays, and fences nobody"


def test_a_folder_without_an_entry_is_ignored(store):
    store.put("chk-9/_metadata.part", b"")
    assert [0, 1] == [claim(store).number for _ in range(2)]


def test_a_claim_that_others_always_win_is_given_up(store):

    def faster(operation, path):
        if operation == "put_if_absent":
            store.objects[path] = b"another owner's", store.now

    store.on_request = faster
    with pytest.raises(CheckpointError, match="started more than once") as raised:
        claim(store)
    assert raised.value.reason == "contended"
    assert 1000 == store.requests["put_if_absent"]


def test_the_newest_claim_is_described_for_a_message(store):
    assert describe_newest_claim(store) == "missing"
    claim(store, "a\x1b[31m")
    assert describe_newest_claim(store) == (
        "chk-0/_metadata, claimed by 'a\\x1b[31m' at 1970-01-01 00:00:01 UTC"
    )
    store.put(PATHS.metadata(1), b"")
    assert "unknown (damaged changelog file chk-1" in describe_newest_claim(store)


def test_a_damaged_highest_entry_does_not_prevent_a_claim(store):
    """A person may then go back to an older checkpoint."""
    small_checkpoint(started(store), 1)
    store.put(PATHS.metadata(2), b"damaged")
    entries = Entries(store)
    assert (2, 3) == (entries.newest_id(), entries.next_number)
    assert claim(store).number == 3


def test_a_claim_has_a_bounded_size(store):
    claim(store, "a" * 400)
    assert len(store.objects[PATHS.metadata(0)][0]) <= CLAIM_BYTES_MAX
    with pytest.raises(UsageError, match="a shorter name"):
        claim(store, "".join(map(chr, range(300, 1500))))


def test_owners_have_different_names_that_say_where_they_run():
    names = {new_owner_id("query") for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith(f"query-{socket.gethostname()}-{os.getpid()}-") for name in names)
