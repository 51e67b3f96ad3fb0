"""Which files and local copies are kept: corners, and many histories against plain models."""

import random
from collections.abc import Iterable

import pytest
from tests.support.changelogs import ScriptedStore
from tests.support.simulated_runtime import EventQueue, ImmediatePool, SimulatedLock

from statelog.changelog.local_registry import LocalChangelogRegistry, LocalFiles
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.errors import UsageError, check
from statelog.model import FileStateHandle
from statelog.runtime.clock import RandomIds, SystemClock
from statelog.runtime.runtime import Runtime, ThreadTimers

SEEDS = 150


def runtime() -> Runtime:
    """Return a runtime in which a deletion is done before its call returns."""
    clock = SystemClock()
    return Runtime(
        clock=clock,
        ids=RandomIds(),
        lock=SimulatedLock(EventQueue()),
        timers=ThreadTimers(clock),
        upload_pool=ImmediatePool(),
        discard_pool=ImmediatePool(),
        callback_pool=ImmediatePool(),
    )


class Files(ScriptedStore, LocalFiles):
    """Names of files, as a store and as a disk; a file is deleted once."""

    url = "scripted://"

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.remove(path)

    def remove(self, path: str) -> None:
        check(path in self.names, f"{path} is deleted twice")
        self.names.discard(path)


def handle(path: str) -> FileStateHandle:
    return FileStateHandle(path, 1)


def test_an_untracked_file_is_deleted_only_if_it_is_in_no_result():
    files = Files()
    files.names |= {"a"}
    registry = TaskChangelogRegistry(files, runtime=runtime())
    for call in (registry.stop_tracking, registry.offer, registry.release):
        call(handle("a"))
    assert ({"a"}, 0) == (files.names, len(registry))
    registry.discard(handle("a"))
    assert set() == files.names


def test_names_are_never_reused_and_files_never_empty():
    registry = TaskChangelogRegistry(Files(), runtime=runtime())
    registry.start_tracking(handle("a"), 1)
    for path, num_sets in (("a", 1), ("b", 0)):
        with pytest.raises(UsageError):
            registry.start_tracking(handle(path), num_sets)


class Uploads:
    """
    Files of several sets with local copies, as the writers would have them; driven by a seed.

    After each call a file is stored as long as one of its sets, or a checkpoint, needs it.  Its
    copy is kept with its sets, and after a hand-over as long as a checkpoint uses it.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files, self.disk = Files(), Files()
        self.copies = LocalChangelogRegistry(disk=self.disk, runtime=runtime())
        shared = self.copies._runtime
        self.registry = TaskChangelogRegistry(self.files, copies=self.copies, runtime=shared)
        self.sets: dict[str, int] = {}
        self.confirmed: set[str] = set()
        self.used: set[str] = set()
        self.next_file = 1

    def track(self) -> None:
        path, self.next_file = f"/{self.next_file}", self.next_file + 1
        self.sets[path] = self.rng.randrange(1, 4)
        self.files.names.add(path)
        self.disk.names.add(path)
        self.registry.start_tracking(handle(path), self.sets[path], handle(path))
        if self.rng.random() < 0.5:
            self.used.add(path)
            self.copies.register(handle(path), 1)

    def offer(self) -> None:
        if self.sets:
            self.registry.offer(handle(self.rng.choice(sorted(self.sets))))

    def confirm(self) -> None:
        if self.sets:
            path = self.rng.choice(sorted(self.sets))
            self.confirmed.add(path)
            self.registry.stop_tracking(handle(path))

    def release(self) -> None:
        if self.sets:
            path = self.rng.choice(sorted(self.sets))
            self.sets[path] -= 1
            if not self.sets[path]:
                del self.sets[path]
            self.registry.release(handle(path))

    def discard(self) -> None:
        losers = sorted(self.sets.keys() - self.confirmed)
        if losers:
            path = self.rng.choice(losers)
            del self.sets[path]
            self.registry.discard(handle(path))

    def run(self, steps: int = 80) -> None:
        moves = [self.track, self.track, self.offer, self.confirm] + [self.release] * 3
        for _ in range(steps):
            self.rng.choice([*moves, self.discard])()
            check(self.files.names == self.sets.keys() | self.confirmed, "files are wrong")
            copies = self.sets.keys() | self.used & self.confirmed
            check(self.disk.names == copies, "copies are wrong")
            check(len(self.registry) == len(self.sets), "other files are tracked")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_files_are_stored_as_long_as_they_are_needed(seed):
    Uploads(seed).run()
