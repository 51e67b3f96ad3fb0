"""What a download cache keeps on disk: many histories of nested reads, faults and idle time."""

import datetime as dt
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.changelogs import ScriptedStore, changelog_file
from tests.support.simulated_runtime import (
    EventQueue,
    ImmediatePool,
    SimulatedIds,
    SimulatedLock,
    SimulatedTimers,
)

from statelog.changelog import download_cache
from statelog.changelog.download_cache import DownloadCache
from statelog.changelog.local_registry import write_file
from statelog.errors import InvariantError, check
from statelog.runtime.runtime import Runtime

SEEDS = 100
IDLE_MS = 100


class History(ScriptedStore):
    """
    Readers, a store and a disk, told by a seed.

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


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[History]]:
    """Histories whose cache writes through them."""
    histories: list[History] = []
    monkeypatch.setattr(
        download_cache,
        "write_file",
        lambda path, content: (histories[-1].write if content else write_file)(path, content),
    )
    yield histories


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_cache_keeps_its_bound(seed: int, tmp_path: Path, folders: list[History]) -> None:
    folders.append(History(seed, tmp_path))
    folders[-1].run()


def unbounded(self: DownloadCache, size_bytes: int) -> Any:
    """The bound is ignored."""
    return []


def never_idle(self: DownloadCache) -> Any:
    """No check for idle files is scheduled."""
    return None


def forgetful(self: DownloadCache, paths: Iterable[str], metric: str | None = None) -> Any:
    """Files are no longer counted and stay on disk."""


def space_not_reserved(self: DownloadCache) -> int:
    """Files that are being written do not count."""
    return sum(file.size_bytes for path, file in self._files.items() if self._ready(path))


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("_to_evict", unbounded),
        ("_next_check", never_idle),
        ("_remove_all", forgetful),
        ("_used_bytes", space_not_reserved),
    ],
)
def test_a_mutant_is_caught(
    name: str, mutant: Any, tmp_path: Path, folders: list[History], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DownloadCache, name, mutant)
    for seed in range(SEEDS):
        folders.append(History(seed, tmp_path / str(seed)))
        try:
            folders[-1].run()
        except (InvariantError, KeyError):
            return
    raise AssertionError(f"{mutant.__doc__} Not seen in {SEEDS} seeds")
