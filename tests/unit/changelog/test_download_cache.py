"""The download cache: bounded, shared, verified, and never in the way."""

import datetime as dt
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.changelogs import ScriptedStore, changelog_file, persisted, values_of, wait_until

from statelog import changelog as cl
from statelog.changelog.local_registry import write_file
from statelog.errors import InvalidOptionsError, ObjectNotFoundError
from statelog.runtime.runtime import system_runtime

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


def in_threads(
    count: int, work: Callable[[], object]
) -> tuple[list[object], list[threading.Thread]]:
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
