"""What a cache keeps: many histories against the disk as it must be."""

import random
from typing import Any

import pytest

from statelog.core.cached_files import (
    Action,
    CacheClosed,
    CachedFiles,
    CheckIdle,
    Event,
    FetchFailed,
    FileFetched,
    FileLost,
    FileWritten,
    IdleChecked,
    Lookup,
    Reason,
    RemoveFile,
    WriteFile,
)
from statelog.errors import InvariantError, check

SEEDS = 150
IDLE_NS = 100


class Disk:
    """Readers, downloads and a disk, told by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.max_bytes = self.rng.randrange(1, 30)
        self.core = CachedFiles(self.max_bytes, IDLE_NS)
        self.sizes = {f"f{index}": self.rng.randrange(0, 12) for index in range(8)}
        self.now_ns = 0
        self.disk: dict[str, int] = {}
        self.last_use: dict[str, int] = {}
        self.fetching: list[str] = []
        self.writing: list[str] = []
        self.check_at: int | None = None
        self.closed = False

    def post(self, event: Event) -> list[Action]:
        actions = self.core.handle(event, self.now_ns)
        for action in actions:
            match action:
                case RemoveFile(path, _):
                    self.disk.pop(path, None)
                case CheckIdle(at_ns):
                    check(self.check_at is None, "two idle checks are on their way")
                    self.check_at = at_ns
                case WriteFile(path):
                    self.disk[path] = self.sizes[path]
                    self.writing.append(path)
        return actions

    def want(self) -> None:
        path = self.rng.choice(sorted(self.sizes))
        if self.closed:
            return
        match self.core.look_up(path, self.now_ns):
            case Lookup.FETCH:
                check(path not in self.fetching + self.writing, "two download one file")
                self.fetching.append(path)
            case Lookup.WAIT:
                check(path in self.fetching + self.writing, f"{path} is awaited, nobody fetches it")
            case Lookup.READ:
                check(path in self.disk, f"{path} is read but not there")
                self.last_use[path] = self.now_ns
            case Lookup.PASS:
                check(self.sizes[path] > self.max_bytes, f"{path} would fit")

    def end_fetch(self) -> None:
        if self.fetching:
            path = self.fetching.pop(self.rng.randrange(len(self.fetching)))
            if self.rng.random() < 0.2:
                self.post(FetchFailed(path))
            else:
                self.post(FileFetched(path, self.sizes[path]))

    def end_write(self) -> None:
        if self.writing:
            path = self.writing.pop(self.rng.randrange(len(self.writing)))
            if self.rng.random() < 0.2:
                del self.disk[path]
                self.post(FetchFailed(path))
            else:
                self.last_use[path] = self.now_ns
                self.post(FileWritten(path))

    def lose(self) -> None:
        self.post(FileLost(self.rng.choice(sorted(self.sizes))))

    def pass_time(self) -> None:
        self.now_ns += self.rng.randrange(2 * IDLE_NS)
        if self.check_at is not None and self.check_at <= self.now_ns:
            self.check_at = None
            self.post(IdleChecked())
            for path in self.disk:
                idle_ns = self.now_ns - self.last_use.get(path, self.now_ns)
                check(path in self.writing or idle_ns < IDLE_NS, f"{path} idles for {idle_ns} ns")

    def look(self) -> None:
        self.core.check_invariants()
        check(sum(self.disk.values()) == self.core.used_bytes, "the disk has other bytes")
        check(self.core.used_bytes <= self.max_bytes, "the bound is broken")

    def run(self, steps: int = 200) -> None:
        moves = [self.want] * 4 + [self.end_fetch, self.end_write] * 2 + [self.lose, self.pass_time]
        for _ in range(steps):
            self.rng.choice(moves)()
            self.look()
        self.closed = True
        self.post(CacheClosed())
        while self.fetching or self.writing:
            self.end_fetch()
            self.end_write()
            self.look()
        check(self.disk == {}, f"left behind: {sorted(self.disk)}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_cache_keeps_its_bound_and_leaves_nothing(seed: int) -> None:
    Disk(seed).run()


def test_the_least_recently_used_goes_first() -> None:
    core = CachedFiles(2, IDLE_NS)
    for now_ns, path in enumerate(("a", "b")):
        assert Lookup.FETCH == core.look_up(path, now_ns)
        core.handle(FileFetched(path, 1), now_ns)
        core.handle(FileWritten(path), now_ns)
    assert Lookup.READ == core.look_up("a", 3)
    core.look_up("c", 4)
    assert [RemoveFile("b", Reason.EVICTED), WriteFile("c")] == core.handle(FileFetched("c", 1), 4)


def test_what_is_not_whole_or_too_large_is_passed_on_for_ever() -> None:
    core = CachedFiles(2, IDLE_NS)
    for event in (FileFetched("torn", 1, whole=False), FileFetched("large", 3)):
        assert Lookup.FETCH == core.look_up(event.path, 0)
        assert [] == core.handle(event, 0)
        assert [Lookup.PASS] * 2 == [core.look_up(event.path, 0) for _ in range(2)]


def test_unknown_files_are_left_alone() -> None:
    core = CachedFiles(2, IDLE_NS)
    for event in (FileFetched("a", 1), FetchFailed("a"), FileLost("a")):
        assert [] == core.handle(event, 0)
    assert [RemoveFile("a", Reason.LOST)] == core.handle(FileWritten("a"), 0)


def nobody_is_evicted(self: CachedFiles, event: FileFetched) -> Any:
    """The bound is not looked at."""
    path, size_bytes = event.path, event.size_bytes
    file = self._files[path]
    file.state, file.size_bytes = type(file.state).WRITING, size_bytes
    self._used_bytes += size_bytes
    return [WriteFile(path)]


def never_idle(self: CachedFiles) -> Any:
    """Nobody looks for idle files."""
    return []


def forgetful(self: CachedFiles, *paths: str) -> Any:
    """Files leave the ledger and stay on disk."""
    for path in paths:
        file = self._files.pop(path, None)
        self._used_bytes -= 0 if file is None else file.size_bytes
    return []


@pytest.mark.parametrize(
    ("name", "mutant"),
    [("_admit", nobody_is_evicted), ("_next_check", never_idle), ("_forget", forgetful)],
)
def test_a_mutant_is_caught(name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachedFiles, name, mutant)
    for seed in range(SEEDS):
        try:
            Disk(seed).run()
        except (InvariantError, KeyError):
            return
    raise AssertionError(f"{mutant.__doc__} Not seen in {SEEDS} seeds")
