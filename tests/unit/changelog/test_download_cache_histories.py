"""What a download cache keeps on disk: many histories of nested reads, faults and idle time."""

import datetime as dt
import os
import random
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
from statelog.errors import check
from statelog.runtime.runtime import Runtime

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
