"""`create` finds its own object after every answer, and is the only way to create one."""

import re
from pathlib import Path

import pytest
from tests.support.stores.dict_store import DictStore

import statelog
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import ObjectExistsError, StoreError
from statelog.spark.stream.sinks.idempotent import _Records
from statelog.store import EncryptedStore
from statelog.store.encryption import EncryptionKeys
from statelog.store.object_store import ObstoreStore
from statelog.store.verified import create

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
