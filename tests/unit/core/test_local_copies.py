"""Which local copies stay: corners, and many histories against a plain model."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from statelog.core.file_ownership import (
    DeleteFile,
    DropCopy,
    FileConfirmed,
    FileDiscarded,
    FileOwnership,
    FileTracked,
    ReleaseCopy,
    SetReleased,
)
from statelog.core.local_copies import (
    CheckpointAborted,
    CheckpointConfirmed,
    CopiesClosed,
    CopyDropped,
    CopyReleased,
    CopyUsed,
    CopyWritten,
    DeleteCopy,
    LocalCopies,
)
from statelog.errors import InvariantError, check

SEEDS = 150


def test_registering_raises_the_id_to_the_highest() -> None:
    core = LocalCopies()
    for checkpoint_id in (5, 3, 5):
        core.handle(CopyUsed("a", checkpoint_id), 0)
    assert 5 == core.last_use("a")
    assert core.last_use("b") is None
    core.check_invariants()


def test_discarding_is_strict() -> None:
    core = LocalCopies()
    for path, checkpoint_id in (("a", 1), ("b", 2), ("c", 3)):
        core.handle(CopyUsed(path, checkpoint_id), 0)
    assert [DeleteCopy("a")] == core.handle(CheckpointConfirmed(2), 0)
    assert [] == core.handle(CheckpointConfirmed(2), 0)
    assert [] == core.handle(CheckpointConfirmed(1), 0)
    assert ("b" in core, "c" in core) == (True, True)


def test_h9_an_abort_takes_back_one_use_only() -> None:
    core = LocalCopies()
    for checkpoint_id in (1, 2, 3):
        core.handle(CopyUsed("shared", checkpoint_id), 0)
    core.handle(CopyUsed("own", 2), 0)
    core.handle(CheckpointConfirmed(1), 0)
    assert [DeleteCopy("own")] == core.handle(CheckpointAborted(2), 0)
    assert 3 == core.last_use("shared")
    assert [] == core.handle(CheckpointAborted(3), 0)
    assert 1 == core.last_use("shared")


def test_h9_an_abort_that_comes_after_the_confirmation_is_none() -> None:
    core = LocalCopies()
    core.handle(CopyUsed("a", 2), 0)
    core.handle(CheckpointConfirmed(2), 0)
    for late in (1, 2):
        assert [] == core.handle(CheckpointAborted(late), 0)
    assert "a" in core


def test_what_the_log_holds_stays_and_what_is_gone_remotely_goes() -> None:
    core = LocalCopies()
    for path in ("a", "b"):
        core.handle(CopyWritten(path), 0)
        core.handle(CopyUsed(path, 1), 0)
    assert [] == core.handle(CheckpointAborted(1), 0)
    assert [DeleteCopy("a")] == core.handle(CopyReleased("a"), 0)
    core.handle(CopyUsed("b", 2), 0)
    assert [DeleteCopy("b")] == core.handle(CopyDropped("b"), 0)
    for event in (CopyDropped("b"), CopyReleased("b")):
        assert [] == core.handle(event, 0)
    core.handle(CopyUsed("c", 1), 0)
    assert [] == core.handle(CopiesClosed(), 0)
    assert 0 == len(core)


def test_a_file_takes_its_copy_along_or_lets_it_go() -> None:
    core = FileOwnership()
    for path in ("garbage", "handed over", "loser"):
        core.handle(FileTracked(path, 1, f"copy of {path}"), 0)
    core.handle(FileConfirmed("handed over"), 0)
    assert [DeleteFile("garbage"), DropCopy("copy of garbage")] == core.handle(
        SetReleased("garbage"), 0
    )
    assert [ReleaseCopy("copy of handed over")] == core.handle(SetReleased("handed over"), 0)
    assert [DeleteFile("loser"), DropCopy("copy of loser")] == core.handle(
        FileDiscarded("loser"), 0
    )
    assert [] == core.handle(SetReleased("handed over"), 0)


class Job:
    """
    A log with checkpoints, as the writer and the coordinator would have it; told by a seed.

    It keeps for itself which copies each checkpoint uses, and looks after every event that
    (safety) nothing was deleted that the log, an open checkpoint or the last confirmed one needs,
    and (liveness) nothing stays that none of them needs.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.core = LocalCopies()
        self.files: dict[str, bool] = {}  # path -> the log still has it
        self.on_disk: set[str] = set()
        self.uses: dict[int, set[str]] = {}  # open or confirmed checkpoint -> copies
        self.confirmed = 0
        self.next_file = self.next_checkpoint = 1

    def post(self, event: Any) -> None:
        for action in self.core.handle(event, 0):
            check(action.path in self.on_disk, f"{action.path} is deleted twice")
            self.on_disk.discard(action.path)

    def write(self) -> None:
        path, self.next_file = f"f{self.next_file}", self.next_file + 1
        self.files[path] = True
        self.on_disk.add(path)
        self.post(CopyWritten(path))

    def start_checkpoint(self) -> None:
        number, self.next_checkpoint = self.next_checkpoint, self.next_checkpoint + 1
        held = [path for path, has in self.files.items() if has]
        self.uses[number] = set(held[self.rng.randrange(len(held) + 1) :])
        for path in sorted(self.uses[number]):
            self.post(CopyUsed(path, number))

    def confirm(self) -> None:
        if self.open():
            self.confirmed = self.rng.choice(self.open())
            for number in [each for each in self.uses if each < self.confirmed]:
                del self.uses[number]
            self.post(CheckpointConfirmed(self.confirmed))

    def abort(self) -> None:
        if self.open():
            number = self.rng.choice(self.open())
            del self.uses[number]
            for _ in range(self.rng.randrange(1, 3)):  # every writer of the storage says so
                self.post(CheckpointAborted(number))

    def truncate(self) -> None:
        for path in list(self.files)[: self.rng.randrange(3)]:
            del self.files[path]
            if any(path in uses for uses in self.uses.values()) or self.rng.random() < 0.5:
                self.post(CopyReleased(path))
            else:
                self.post(CopyDropped(path))

    def abort_late(self) -> None:
        if self.confirmed:
            self.post(CheckpointAborted(self.rng.randrange(1, self.confirmed + 1)))

    def open(self) -> list[int]:
        return [number for number in self.uses if number > self.confirmed]

    def run(self, steps: int = 120) -> None:
        moves: list[Callable[[], None]] = [
            self.write,
            self.write,
            self.start_checkpoint,
            self.start_checkpoint,
            self.confirm,
            self.abort,
            self.truncate,
            self.abort_late,
        ]
        for _ in range(steps):
            self.rng.choice(moves)()
            self.core.check_invariants()
            needed = {path for path, has in self.files.items() if has}
            needed |= set().union(*self.uses.values())
            check(needed <= self.on_disk, f"deleted too early: {sorted(needed - self.on_disk)}")
            check(self.on_disk <= needed, f"kept for nobody: {sorted(self.on_disk - needed)}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_copies_stay_exactly_as_long_as_somebody_needs_them(seed: int) -> None:
    Job(seed).run()


original = LocalCopies.handle


def flinks_abort(self: LocalCopies, event: Any, now_ns: int) -> Any:
    """An abort of N discards up to N + 1 (H9)."""
    if isinstance(event, CheckpointAborted):
        event = CheckpointConfirmed(event.checkpoint_id + 1)
    return original(self, event, now_ns)


def last_use_only(self: LocalCopies, event: Any, now_ns: int) -> Any:
    """A new use makes the older ones forgotten."""
    actions = original(self, event, now_ns)
    if isinstance(event, CopyUsed):
        self._copies[event.path].uses = [event.checkpoint_id]
    return actions


def lenient(self: LocalCopies, event: Any, now_ns: int) -> Any:
    """The bound of a confirmation is inclusive."""
    if isinstance(event, CheckpointConfirmed):
        event = CheckpointConfirmed(event.checkpoint_id + 1)
    return original(self, event, now_ns)


def late_aborts_count(self: LocalCopies, event: Any, now_ns: int) -> Any:
    """A confirmed checkpoint can still be aborted."""
    if isinstance(event, CheckpointAborted):
        self._confirmed = None
    return original(self, event, now_ns)


def aborts_free_nothing(self: LocalCopies, event: Any, now_ns: int) -> Any:
    """An abort keeps everything."""
    return [] if isinstance(event, CheckpointAborted) else original(self, event, now_ns)


@pytest.mark.parametrize(
    "mutant", [flinks_abort, last_use_only, lenient, late_aborts_count, aborts_free_nothing]
)
def test_a_mutant_is_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCopies, "handle", mutant)
    for seed in range(SEEDS):
        try:
            Job(seed).run()
        except InvariantError:
            return
    raise AssertionError(f"{mutant.__doc__} Not seen in {SEEDS} seeds")
