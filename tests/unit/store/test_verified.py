"""An object is called damaged after two reads with the same wrong bytes, and not before."""

import logging
from collections.abc import Sequence

import pytest

from statelog.errors import CorruptionError, IncompatibleFormatError, StoreError
from statelog.store import CachedStore, read_verified
from statelog.store.api import ObjectInfo
from statelog.store.requests import RepeatedSince
from statelog.testing.faulty_store import FaultyStore

GOOD = b"good"


class Lossy(FaultyStore):
    """A store whose reads return the given bytes one after the other, and then the object."""

    def __init__(self, reads: Sequence[bytes], stored: bytes = GOOD) -> None:
        super().__init__()
        self.objects["name"] = stored
        self._reads = list(reads)
        self.again = 0

    def get(self, path: str) -> memoryview:
        return memoryview(self._reads.pop(0)) if self._reads else super().get(path)

    def get_again(self, path: str) -> memoryview:
        self.again += 1
        return self.get(path)


def check(data: memoryview) -> str:
    if data == b"newer":
        raise IncompatibleFormatError("name has version 9", path="name")
    if data != GOOD:
        raise CorruptionError("damaged name: its checksum does not match", path="name", offset=3)
    return bytes(data).decode()


def test_a_good_read_is_the_only_one():
    store = Lossy([])
    assert "good" == read_verified(store, "name", check)
    assert 0 == store.again


@pytest.mark.parametrize("wrong", [b"goof", b"go", b"newer"], ids=["flipped", "short", "newer"])
def test_a_second_read_that_is_right_is_used_and_logged(wrong, caplog):
    store, repeated = Lossy([wrong]), RepeatedSince()
    with caplog.at_level(logging.WARNING, "statelog"):
        assert "good" == read_verified(store, "name", check)
    assert 1 == store.again, "past caches, over a new connection"
    assert 1 == repeated.take()
    assert "the transfer failed, the object is intact" in caplog.text


def test_the_same_wrong_bytes_twice_are_damage():
    with pytest.raises(CorruptionError, match="read twice with the same bytes") as caught:
        read_verified(Lossy([b"goof", b"bad!", b"goof"]), "name", check)
    assert ("name", 3) == (caught.value.path, caught.value.offset)


@pytest.mark.parametrize(
    ("reads", "match"),
    [
        ([b"goof", b"bad!", b"go", b"g", b"x"], r"5 reads returned wrong bytes.*does not help"),
        ([b"go"] * 9, "fewer than the store reports"),  # a proxy cuts every answer at one place
    ],
    ids=["different bytes each time", "the same part each time"],
)
def test_reads_that_are_not_the_same_whole_object_are_no_damage(reads, match):
    with pytest.raises(StoreError, match=match) as caught:
        read_verified(Lossy(reads), "name", check)
    assert "transfer" == caught.value.reason


def test_the_same_part_twice_and_then_the_whole_is_used():
    assert "good" == read_verified(Lossy([b"go", b"go"]), "name", check)


def test_a_newer_version_that_is_read_twice_is_no_damage():
    with pytest.raises(IncompatibleFormatError) as caught:
        read_verified(Lossy([b"newer"] * 2, b"newer"), "name", check)
    assert "name has version 9" == str(caught.value)


def test_after_a_part_that_was_wrong_the_whole_object_is_read():
    store = Lossy([b"goof"])

    def first() -> str:
        return check(memoryview(b"bad!"))

    assert "good" == read_verified(store, "name", check, first=first)
    assert 2 == store.again
    assert "part" == read_verified(store, "name", check, first=lambda: "part")
    assert 2 == store.again


def test_a_bad_copy_does_not_stay_in_memory():
    store = Lossy([b"goof"])
    cached = CachedStore(store, 100)
    assert "good" == read_verified(cached, "name", check)
    assert GOOD == cached.get("name")
    assert [] == store._reads
    assert isinstance(cached.head("name"), ObjectInfo)
