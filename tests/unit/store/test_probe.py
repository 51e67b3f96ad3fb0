"""The probe refuses stores in which two writers of one name can both win."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import ClassVar

import pytest

from statelog.errors import ObjectExistsError, StoreError
from statelog.store import (
    CachedStore,
    EncryptedStore,
    LocationStore,
    open_store,
    verify_put_if_absent,
)
from statelog.store import probe as probe_module
from statelog.store.encryption import EncryptionKeys
from statelog.store.fsspec_store import FsspecStore
from statelog.store.requests import endpoint_of
from statelog.testing.faulty_store import FaultyStore

NUMBERS = itertools.count()


class Server(FaultyStore):
    """A store that counts its conditional puts; they are atomic."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"s3://bucket-{next(NUMBERS)}/job"
        self.endpoint: str | None = f"{self.url} at http://127.0.0.1:1"
        self.puts: list[str] = []
        self.lock = threading.Lock()

    def put_if_absent(self, path, data) -> None:
        self.puts.append(path)
        with self.lock:
            FaultyStore.put_if_absent(self, path, data)

    @property
    def results(self) -> list[str]:
        return [name for name in self.objects if name.startswith("probed/")]

    @property
    def probes(self) -> list[str]:
        return [name for name in self.objects if name.startswith("tmp/")]


class ChecksFirst(Server):
    """Checks the condition when the request arrives, and stores the object when the upload ends."""

    delay_s = 0.05

    def put_if_absent(self, path, data) -> None:
        self.puts.append(path)
        if path in self.objects:
            raise ObjectExistsError(f"{path} exists", path=path)
        time.sleep(self.delay_s)
        self.objects[path] = bytes(data)


class ChecksFirstOnce(ChecksFirst):
    """Lets two writers win in one race only, the third one."""

    def put_if_absent(self, path, data) -> None:
        with self.lock:
            race = len({*self.puts, path})
        if race == 3:
            super().put_if_absent(path, data)
        else:
            Server.put_if_absent(self, path, data)


class OverwritesAndRefuses(Server):
    """Answers a late writer with "exists" after it has stored the writer's object."""

    def put_if_absent(self, path, data) -> None:
        self.puts.append(path)
        with self.lock:
            exists = path in self.objects
            self.objects[path] = bytes(data)
        if exists:
            raise ObjectExistsError(f"{path} exists", path=path)


class Ignores(Server):
    """Takes every put."""

    def put_if_absent(self, path, data) -> None:
        self.puts.append(path)
        self.objects[path] = bytes(data)


@pytest.fixture(autouse=True)
def next_process(monkeypatch) -> Callable[[], None]:
    """Forget what this process knows of stores; call it for another process."""
    monkeypatch.setattr(probe_module, "_verified", set())
    return probe_module._verified.clear


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        (ChecksFirst, r"[2-5] of 5 writers .* checks the condition .* before it stores"),
        (ChecksFirstOnce, r"[2-5] of 5 writers .*\(round 3\)"),
        (OverwritesAndRefuses, "a rejected put-if-absent has overwritten"),
        (Ignores, "writes a name twice despite the condition"),
    ],
)
def test_a_server_that_lets_two_writers_win_is_refused(server, fault):
    store = server()
    for _ in range(2):  # a refusal is not remembered as a success
        store.puts.clear()
        with pytest.raises(StoreError, match=fault) as caught:
            verify_put_if_absent(store)
        assert caught.value.reason == "put_if_absent"
        assert caught.value.url == store.url
        assert "Two drivers could both commit" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert store.objects == {}, "neither a probe nor a result is left"


class ReadsWrongOnce(Server):
    """The first read of each object returns a wrong byte."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, path):
        data = bytes(super().get(path))
        if path in self.read:
            return memoryview(data)
        self.read.add(path)
        return memoryview(data[:-1] + b"?")


def test_one_bad_read_is_no_overwrite():
    store = ReadsWrongOnce()
    verify_put_if_absent(store)
    assert store.results


def test_writers_put_at_the_same_time():
    """A probe that puts one after another would not see a server that checks first."""
    store = ChecksFirst()
    store.delay_s = 0.2
    with pytest.raises(StoreError, match="5 of 5 writers"):
        verify_put_if_absent(store)


def test_an_atomic_server_passes_and_the_location_remembers_it(next_process):
    store = Server()
    verify_put_if_absent(store)
    assert len(store.puts) == probe_module.WRITERS * probe_module.ROUNDS + 1
    assert store.probes == []
    (path,) = store.results
    assert json.loads(store.objects[path])["server"] == store.endpoint
    store.puts.clear()
    verify_put_if_absent(store)
    next_process()
    verify_put_if_absent(store)
    assert store.puts == []


def test_another_server_of_the_location_is_probed(next_process):
    """The objects were copied to a server that does not honour the condition."""
    first, second = Server(), Ignores()
    verify_put_if_absent(first)
    second.objects, second.url = dict(first.objects), first.url
    second.endpoint = f"{first.url} at http://127.0.0.1:2"
    with pytest.raises(StoreError, match="writes a name twice"):
        verify_put_if_absent(second)
    next_process()
    first.puts.clear()
    verify_put_if_absent(first)
    assert first.puts == [], "the first one is still remembered"


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{}", b'{"version": 1, "server": "x"}'])
def test_a_damaged_result_is_probed_again(next_process, content):
    store = Server()
    verify_put_if_absent(store)
    (path,) = store.results
    store.objects[path] = content
    next_process()
    store.puts.clear()
    verify_put_if_absent(store)
    assert store.puts


def test_a_result_that_cannot_be_stored_is_no_error(next_process):
    class Full(Server):
        def put(self, path, data) -> None:
            if path.startswith("probed/"):
                raise StoreError("full", path=path)
            super().put(path, data)

    store = Full()
    verify_put_if_absent(store)
    assert store.objects == {}
    next_process()
    store.puts.clear()
    verify_put_if_absent(store)
    assert store.puts, "the next process probes again"


def test_a_failure_of_the_probe_is_not_a_refusal():
    class Down(Server):
        def put_if_absent(self, path, data) -> None:
            raise StoreError("down", path=path)

    store = Down()
    with pytest.raises(StoreError, match="down") as caught:
        verify_put_if_absent(store)
    assert "reason" not in caught.value.facts
    assert store.objects == {}


def test_the_server_is_known_through_every_wrapper():
    options = {"endpoint": "http://user:secret@127.0.0.1:9", "region": "x"}
    store = open_store("s3://bucket/team/job", storage_options=options)
    assert endpoint_of(store) == "s3://bucket at http://***@127.0.0.1:9"
    encrypted = EncryptedStore(store, EncryptionKeys({"k": bytes(32)}))
    for wrapper in (CachedStore(store, 10), LocationStore(encrypted), encrypted):
        assert endpoint_of(wrapper) == endpoint_of(store)


def test_the_server_of_the_environment_is_another_one(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert endpoint_of(open_store("s3a://bucket/job")) == "s3://bucket"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert endpoint_of(open_store("s3a://bucket/job")) == "s3://bucket at http://127.0.0.1:9"
    assert (
        endpoint_of(open_store("az://c/job", storage_options={"account_name": "a"}))
        == "az://c of a"
    )


def test_local_disk_and_memory_have_no_server(tmp_path):
    places = (str(tmp_path), "memory://probe")
    fsspec = {"backend": "fsspec"}
    stores = [open_store(place) for place in places]
    stores += [open_store(place, storage_options=fsspec) for place in places]
    assert [endpoint_of(store) for store in stores] == [None] * 4


def test_a_racy_file_system_of_fsspec_is_refused():
    """Its creation checks whether the name exists when the file is opened, and writes at the end."""
    fsspec = pytest.importorskip("fsspec")
    memory = pytest.importorskip("fsspec.implementations.memory")

    class Racy(memory.MemoryFileSystem):
        protocol = "racy"
        store: ClassVar[dict] = {}
        pseudo_dirs: ClassVar[list] = [""]
        cachable = False

        def open(self, path, mode="rb", **options):
            if mode != "xb":
                return super().open(path, mode, **options)
            if self.exists(path):
                raise FileExistsError(path)
            time.sleep(0.05)
            return super().open(path, "wb", **options)

    fsspec.register_implementation("racy", Racy, clobber=True)
    store = FsspecStore("racy://job", {"endpoint_url": "http://127.0.0.1:3", "token": "t"})
    assert endpoint_of(store) == "fsspec racy://job endpoint_url=http://127.0.0.1:3"
    with pytest.raises(StoreError, match="of 5 writers"):
        verify_put_if_absent(store)
