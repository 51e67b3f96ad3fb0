"""An object is called damaged after two reads with the same wrong bytes, and not before."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.stores.dict_store import DictStore

import statelog
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CorruptionError, IncompatibleFormatError, ObjectExistsError, StoreError
from statelog.spark.stream.sinks.idempotent import _Records
from statelog.store import CachedStore, EncryptedStore, read_verified
from statelog.store.api import ObjectInfo
from statelog.store.encryption import EncryptionKeys
from statelog.store.object_store import ObstoreStore
from statelog.store.requests import RepeatedSince
from statelog.store.verified import create
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


OURS = [b"ours, ", b"in two pieces"]
CONTENT = b"".join(OURS)


class Server(DictStore):
    """Answers the first conditional put with a fault."""

    def __init__(self, fault: str, others: bytes | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.waits: list[float] = []
        if others is not None:
            self.put("name", others)

    def put_if_absent(self, path, data) -> None:
        fault, self.fault = self.fault, ""
        if not fault:
            super().put_if_absent(path, data)
            return
        if fault.endswith("done"):
            super().put_if_absent(path, data)
        if fault.startswith("exists"):
            raise ObjectExistsError(f"{path}: 409 or 412", path=path)
        raise StoreError(f"{path}: 500, or no answer", path=path)

    def create(self) -> None:
        create(self, "name", OURS, self.waits.append)


DONE = ["exists, done", "error, done"]
FAULTS = [*DONE, "exists", "error"]


@pytest.mark.parametrize("fault", ["", *DONE, "exists"])
def test_the_own_object_is_success(fault):
    server = Server(fault)
    server.create()
    assert CONTENT == server.objects["name"][0]
    assert ([0.01] if fault == "exists" else []) == server.waits


def test_an_error_without_an_object_is_reported_and_can_be_repeated():
    server = Server("error")
    with pytest.raises(StoreError, match="500, or no answer"):
        server.create()
    assert {} == server.objects
    server.create()
    assert CONTENT == server.objects["name"][0]


@pytest.mark.parametrize("fault", ["", *FAULTS])
@pytest.mark.parametrize("others", [b"", CONTENT[:-1], CONTENT + b"x", b"another's"])
def test_the_object_of_another_is_no_success(fault, others):
    server = Server(fault, others)
    with pytest.raises(ObjectExistsError, match="name"):
        server.create()
    assert others == server.objects["name"][0]


def test_one_bad_read_does_not_make_the_own_object_anothers():
    server = Server("exists, done")
    reads = iter([b"our0, in two pieces"])
    get = server.get
    server.get = lambda path: memoryview(next(reads, bytes(get(path))))
    server.create()


def test_an_object_that_cannot_be_decrypted_is_anothers():
    store = EncryptedStore(Server("exists", b"not encrypted"), EncryptionKeys({"k": bytes(32)}))
    with pytest.raises(ObjectExistsError, match="name"):
        create(store, "name", OURS)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_to_a_record_of_a_micro_batch(tmp_path, monkeypatch, when):
    put = ObstoreStore.put_if_absent

    def lose(store, path, data):
        if when == "after":
            put(store, path, data)
        raise StoreError("no answer", path=path)

    records, batch = _Records(str(tmp_path), None), DeliveredBatch("aa", 0, 7, "bb")
    with monkeypatch.context() as patch:
        patch.setattr(ObstoreStore, "put_if_absent", lose)
        if when == "after":
            records.add("query", 1, batch)
        else:
            with pytest.raises(StoreError, match="no answer"):
                records.add("query", 1, batch)
    recorded = _Records(str(tmp_path), None).next_number("query", batch) is None
    assert (when == "after") == recorded


def test_no_other_code_creates_objects():
    """The stores themselves, the probe, and a copy that leaves a taken name to its owner."""
    root = Path(statelog.__file__).parent
    callers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"\.put_if_absent\(", path.read_text())
    }
    assert {
        "checkpoint/stream_factory.py",
        "store/verified.py",
        "store/encryption.py",
        "store/location_store.py",
        "store/probe.py",
        "testing/store_contract.py",
    } == callers
