"""The download cache: bounded, shared, verified, and never in the way."""

import datetime as dt
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.changelogs import (
    ScriptedStore,
    appended,
    changelog_file,
    handle_of,
    persisted,
    values_of,
    wait_until,
)
from tests.support.simulated_runtime import (
    EventQueue,
    ImmediatePool,
    SimulatedIds,
    SimulatedLock,
    SimulatedTimers,
)

from statelog import changelog as cl
from statelog.changelog import download_cache
from statelog.changelog.download_cache import DownloadCache
from statelog.changelog.local_registry import write_file
from statelog.errors import InvalidOptionsError, ObjectNotFoundError, check
from statelog.runtime.runtime import Runtime, system_runtime

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def store() -> ScriptedStore:
    filled = ScriptedStore()
    for index in range(6):
        filled.objects[f"dstl/{index}"] = changelog_file(index)
    return filled


def cache_of(store: ScriptedStore, folder: Path, **settings: object) -> cl.DownloadCache:
    return cl.DownloadCache(store, [folder], runtime=system_runtime(), **settings)


def files_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_a_file_is_downloaded_once(store, tmp_path):
    cache = cache_of(store, tmp_path)
    for _ in range(3):
        assert store.objects["dstl/0"] == bytes(cache.get("dstl/0"))
    assert store.objects["dstl/0"][5:9] == bytes(cache.get_range("dstl/0", 5, 4))
    assert {"get": 1} == dict(store.requests)
    assert (1, len(store.objects["dstl/0"])) == (len(files_in(tmp_path)), cache.used_bytes)
    cache.get_range("dstl/1", 5, 4)
    assert {"get": 1, "get_range": 1} == dict(store.requests), "a part is not worth a download"
    cache.close()
    assert [] == files_in(tmp_path)


class SlowStore(ScriptedStore):
    """Gets wait until they are let go, and may fail."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects
        self.released = threading.Event()
        self.get_errors: list[BaseException] = []

    def get(self, path: str) -> memoryview:
        content = super().get(path)
        self.released.wait(60)
        if self.get_errors:
            raise self.get_errors.pop()
        return content


def in_threads(count: int, work: Callable[[], Any]) -> tuple[list[object], list[threading.Thread]]:
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(work())
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    return outcomes, threads


@pytest.mark.parametrize("errors", [[], [OSError("broken off")]])
def test_concurrent_openers_share_one_download(store, tmp_path, errors):
    slow = SlowStore(store.objects)
    slow.get_errors = list(errors)
    cache = cache_of(slow, tmp_path)
    outcomes, threads = in_threads(8, lambda: bytes(cache.get("dstl/0")))
    wait_until(lambda: slow.requests["get"] == 1)
    slow.released.set()
    for thread in threads:
        thread.join(60)
    good = [outcome for outcome in outcomes if isinstance(outcome, bytes)]
    assert ({store.objects["dstl/0"]}, 8 - len(errors)) == (set(good), len(good))
    assert 1 + len(errors) == slow.requests["get"], "after a failure the next one tries, alone"
    assert 1 == len(files_in(tmp_path))


def test_a_failed_download_leaves_nothing(store, tmp_path):
    cache = cache_of(store, tmp_path)
    torn = store.objects["dstl/0"]
    store.objects["dstl/0"] = torn[:-1]
    store.objects["dstl/1"] = b"no changelog file"
    for path in ("dstl/0", "dstl/1"):
        assert store.objects[path] == bytes(cache.get(path)), "the reader judges"
    with pytest.raises(ObjectNotFoundError):
        cache.get("dstl/none")
    assert ([], 0) == (files_in(tmp_path), cache.used_bytes)
    store.objects["dstl/0"] = torn
    assert torn == bytes(cache.get("dstl/0")), "damage on the way is not kept"


@pytest.mark.parametrize("error", [OSError(28, "no space left"), MemoryError()])
def test_a_disk_that_is_full_costs_only_the_cache(store, tmp_path, monkeypatch, error):
    def half(path: str, content: bytes) -> None:
        write_file(path, content[:10])
        if content:
            raise error

    monkeypatch.setattr("statelog.changelog.download_cache.write_file", half)
    cache = cache_of(store, tmp_path)
    if isinstance(error, OSError):
        assert store.objects["dstl/0"] == bytes(cache.get("dstl/0"))
    else:
        with pytest.raises(MemoryError):
            cache.get("dstl/0")
    assert ([], 0) == (files_in(tmp_path), cache.used_bytes)
    monkeypatch.undo()
    cache.get("dstl/0")
    assert 1 == len(files_in(tmp_path))


def test_a_folder_below_a_file_costs_only_the_cache(store, tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = cache_of(store, tmp_path / "file" / "cache")
    for _ in range(2):
        assert store.objects["dstl/0"] == bytes(cache.get("dstl/0"))
    assert 2 == store.requests["get"]
    cache.close()


def test_the_least_recently_used_file_is_evicted(store, tmp_path):
    size = len(store.objects["dstl/0"])
    cache = cache_of(store, tmp_path, max_bytes=2 * size)
    for index in (0, 1, 0, 2):
        cache.get(f"dstl/{index}")
        assert sum((tmp_path / name).stat().st_size for name in files_in(tmp_path)) <= 2 * size
    store.requests.clear()
    cache.get("dstl/0")
    assert 0 == store.requests["get"], "used more lately than 1"
    cache.get("dstl/1")
    assert 1 == store.requests["get"]
    store.objects["dstl/large"] = changelog_file(9, 3 * size)
    cache.get("dstl/large")
    assert 2 == len(files_in(tmp_path)), "a file above the bound evicts none"


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_that_was_damaged_or_removed_is_fetched_again(store, tmp_path, compress):
    store.objects["dstl/0"] = changelog_file(0, compress=compress)
    cache = cache_of(store, tmp_path)
    cache.get("dstl/0")
    (name,) = files_in(tmp_path)
    content = bytearray(store.objects["dstl/0"])
    content[12] ^= 1
    (tmp_path / name).write_bytes(content)
    assert store.objects["dstl/0"] == bytes(cache.get("dstl/0"))
    (tmp_path / name).unlink()
    assert store.objects["dstl/0"][:5] == bytes(cache.get_range("dstl/0", 0, 5))
    assert store.objects["dstl/0"] == bytes(cache.get("dstl/0"))
    assert 3 == store.requests["get"]


def test_processes_may_share_a_directory(store, tmp_path):
    first, second = cache_of(store, tmp_path), cache_of(store, tmp_path)
    first.get("dstl/0")
    second.get("dstl/0")
    assert 1 == store.requests["get"], "a whole file is taken over"
    first.close()
    assert store.objects["dstl/0"] == bytes(second.get("dstl/0"))
    (name,) = files_in(tmp_path)
    (tmp_path / name).write_bytes(b"torn by a crash")
    assert store.objects["dstl/0"] == bytes(cache_of(store, tmp_path).get("dstl/0"))
    # A file as Flink writes it: nothing proves it whole, so it is not kept.
    store.objects["dstl/0"] = b"\0" + b"\0\0\0\1\0\0\0\1\0\0\0\5\0\0\0\1x"
    assert store.objects["dstl/0"] == bytes(cache_of(store, tmp_path / "foreign").get("dstl/0"))
    assert [] == files_in(tmp_path / "foreign")


def test_files_of_dead_processes_are_swept(store, tmp_path):
    old = tmp_path / "dstl-0123.abc.tmp"
    fresh, other = tmp_path / "dstl-4567.def.tmp", tmp_path / "notes.txt"
    for path in (old, fresh, other):
        path.write_text("x")
    for path in (old, other):
        os.utime(path, (time.time() - 7200,) * 2)
    cache = cache_of(store, tmp_path, idle_timeout=HOUR)
    cache.get("dstl/0")
    assert (False, True, True) == (old.exists(), fresh.exists(), other.exists())


def test_a_close_during_a_download_leaves_nothing(store, tmp_path):
    slow = SlowStore(store.objects)
    cache = cache_of(slow, tmp_path)
    outcomes, threads = in_threads(2, lambda: bytes(cache.get("dstl/0")))
    wait_until(lambda: slow.requests["get"] == 1)
    cache.close()
    slow.released.set()
    for thread in threads:
        thread.join(60)
    assert [store.objects["dstl/0"]] * 2 == outcomes
    assert [] == files_in(tmp_path)
    assert store.objects["dstl/0"] == bytes(cache.get("dstl/0"))
    assert [] == files_in(tmp_path)


def test_a_storage_reads_through_its_cache_and_removes_what_is_idle(store, tmp_path):
    options = cl.ChangelogOptions(download_local_cache_idle_timeout=dt.timedelta(milliseconds=40))
    with cl.FsStateChangelogStorage(
        store, options=options, job_id="job", cache_directories=[tmp_path]
    ) as storage:
        handle = persisted(storage, b"one")
        store.requests.clear()
        for _ in range(2):
            assert [b"one"] == values_of(storage.read(handle))
        assert [1] == [batch.num_rows for batch in storage.read_batches(handle)]
        assert 1 == store.requests["get"]
        wait_until(lambda: files_in(tmp_path) == [])
        wait_until(lambda: storage.metrics.snapshot()["download_cache_idle_removals"])
        assert 0 == storage.metrics.snapshot()["download_cache_bytes"]
        assert [b"one"] == values_of(cl.read_changes(cache_of(store, tmp_path), handle))


def test_a_store_on_local_disk_needs_no_cache(tmp_path):
    with cl.FsStateChangelogStorage(
        tmp_path / "store", job_id="job", cache_directories=[tmp_path / "cache"]
    ) as storage:
        assert [b"one"] == values_of(storage.read(persisted(storage, b"one")))
        assert [] == files_in(tmp_path / "cache")


def test_a_cache_without_a_place_is_refused(store, tmp_path):
    for directories, max_bytes in (([], 1), ([tmp_path], -1)):
        with pytest.raises(InvalidOptionsError):
            cl.DownloadCache(store, directories, runtime=system_runtime(), max_bytes=max_bytes)


SEEDS = 100
IDLE_MS = 100


class History(ScriptedStore):
    """
    Readers, a store and a disk, driven by a seed.

    While the store reads or the disk writes a file, other readers read other files, so that every
    order of downloads and writes happens.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__()
        self.rng = rng = random.Random(seed)
        self.folder = folder
        self.queue = EventQueue()
        self.objects = {f"f{index}": changelog_file(index, index * 40) for index in range(8)}
        self.max_bytes = rng.randrange(1, 3 * max(map(len, self.objects.values())))
        self.busy: list[str] = []
        self.last_use: dict[str, int] = {}
        self.failing = False
        self.cache = DownloadCache(
            self,
            [folder],
            max_bytes=self.max_bytes,
            idle_timeout=dt.timedelta(milliseconds=IDLE_MS),
            runtime=Runtime(
                clock=self.queue,
                ids=SimulatedIds(rng),
                lock=SimulatedLock(self.queue),
                timers=SimulatedTimers(self.queue, rng),
                upload_pool=ImmediatePool(),
                discard_pool=ImmediatePool(),
                callback_pool=ImmediatePool(),
            ),
        )

    def get(self, path: str) -> memoryview:
        self.meanwhile()
        if self.rng.random() < 0.2:
            raise OSError("the connection is lost")
        return super().get(path)

    def write(self, path: str, content: Any) -> None:
        """Write a file in place of `write_file`."""
        self.meanwhile()
        if self.rng.random() < 0.2:
            raise OSError(28, "no space left")
        write_file(path, content)

    def meanwhile(self) -> None:
        check(self.cache.used_bytes <= self.max_bytes, "the bound is broken")
        while len(self.busy) < 4 and self.rng.random() < 0.5:
            self.read()

    def read(self) -> None:
        path = self.rng.choice(sorted(self.objects.keys() - set(self.busy)))
        self.busy.append(path)
        try:
            data = self.cache.get(path)
        except OSError:
            pass
        else:
            self.last_use[path] = self.queue.now_ns()
            check(bytes(data) == self.objects[path], "other bytes")
        finally:
            self.busy.remove(path)

    def read_part(self) -> None:
        path = self.rng.choice(sorted(self.objects))
        part = self.cache.get_range(path, 3, 4)
        self.last_use[path] = self.queue.now_ns()
        check(bytes(part) == self.objects[path][3:7], "other bytes")

    def damage(self) -> None:
        for file in self.rng.sample(sorted(self.folder.glob("dstl-*")), 1) if self.files() else ():
            os.truncate(file, 5)

    def files(self) -> dict[str, int]:
        return {file.name: file.stat().st_size for file in self.folder.glob("dstl-*")}

    def pass_time(self) -> None:
        until_ns = self.queue.now_ns() + self.rng.randrange(2 * IDLE_MS) * 1_000_000
        while self.queue.step(until_ns):
            pass
        self.queue.sleep_until(until_ns)
        names = {os.path.basename(self.cache._file_of(path)): path for path in self.objects}
        for name in self.files():
            idle_ns = until_ns - self.last_use[names[name]]
            check(idle_ns <= IDLE_MS * 1_000_000 + 1000, f"{names[name]} idles for {idle_ns} ns")

    def run(self, steps: int = 60) -> None:
        moves = [self.read] * 5 + [self.read_part, self.pass_time]
        for _ in range(steps):
            self.rng.choice(moves)()
            check(sum(self.files().values()) == self.cache.used_bytes, "the disk has other bytes")
        for _ in range(20):
            self.damage()
            self.read()
        self.cache.close()
        check({} == self.files(), f"files are left: {self.files()}")
        self.read()
        check({} == self.files(), "a closed cache keeps a file")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_cache_keeps_its_bound(seed, tmp_path, monkeypatch):
    history = History(seed, tmp_path)
    monkeypatch.setattr(
        download_cache,
        "write_file",
        lambda path, content: (history.write if content else write_file)(path, content),
    )
    history.run()


def nonzero(storage: cl.FsStateChangelogStorage, family: str) -> dict[str, object]:
    """Return the values of a family that are not zero, without the family's name and a "_"."""
    start = f"{family}_"
    values = {name: value for name, value in storage.metrics.snapshot().items() if value}
    return {name.removeprefix(start): values[name] for name in values if name.startswith(start)}


def test_hits_misses_evictions_and_faults_of_the_cache(tmp_path):
    options = cl.ChangelogOptions(download_local_cache_max_bytes=3000)
    with cl.FsStateChangelogStorage(
        ScriptedStore(), options=options, job_id="job", cache_directories=[tmp_path]
    ) as storage:
        contents = (b"1" * 2000, b"2" * 2000, b"3" * 9000)
        first, second, large = (persisted(storage, content) for content in contents)
        for _ in range(3):
            list(storage.read(first))
        counts = nonzero(storage, "download_cache")
        assert 2000 < counts.pop("bytes") < 3000
        assert {"hits": 2, "misses": 1} == counts
        list(storage.read(second))
        assert 1 == nonzero(storage, "download_cache")["evictions"]
        for _ in range(2):
            list(storage.read(large))
        assert 4 == nonzero(storage, "download_cache")["misses"], "a large file passes through"
        (file,) = tmp_path.iterdir()
        file.write_bytes(b"damaged")
        assert [b"2" * 2000] == values_of(storage.read(second))
        counts = nonzero(storage, "download_cache")
        del counts["bytes"]
        assert {"errors": 1, "misses": 5, "evictions": 1, "hits": 2} == counts


def test_hits_and_misses_of_local_copies_are_counted(tmp_path):
    config = cl.LocalRecoveryConfig((str(tmp_path),))
    with cl.FsStateChangelogStorage(
        ScriptedStore(), job_id="job", local_recovery=config
    ) as storage:
        result = appended(storage, b"value").persist(0, 1).result(60)
        handle, local = handle_of(result), result.task_local
        assert local is not None
        assert 1 == storage.metrics.snapshot()["local_copies_written"]
        assert 0 == storage.metrics.snapshot()["local_copy_errors"]
        size_bytes = local.handles_and_offsets[0].handle.size_bytes
        list(storage.read(handle, local=local))
        list(storage.read(handle))
        assert {"hits": 1, "bytes": size_bytes} == nonzero(storage, "local_recovery")
        for file in Path(config.folder_of("job")).iterdir():
            os.truncate(file, 10)
        assert [b"value"] == values_of(storage.read(handle, local=local))
        assert {"hits": 1, "bytes": size_bytes, "misses": 1} == nonzero(storage, "local_recovery")
        assert 1 == storage.metrics.snapshot()["local_copy_errors"]
