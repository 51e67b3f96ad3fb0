"""Which files and local copies are kept: corners, and many histories against plain models."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.support.changelogs import ScriptedStore
from tests.support.simulated_runtime import EventQueue, ImmediatePool, SimulatedLock

from statelog.changelog.local_registry import LocalChangelogRegistry, LocalFiles
from statelog.changelog.registry import FileOwner, TaskChangelogRegistry, _File
from statelog.errors import InvariantError, UsageError, check
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


@pytest.fixture
def disk() -> Files:
    return Files()


@pytest.fixture
def copies(disk: Files) -> LocalChangelogRegistry:
    return LocalChangelogRegistry(disk=disk, runtime=runtime())


def use(copies: LocalChangelogRegistry, disk: Files, path: str, *checkpoints: int) -> None:
    disk.names.add(path)
    for checkpoint in checkpoints:
        copies.register(handle(path), checkpoint)


# --- files ----------------------------------------------------------------------------------------


def test_the_last_release_deletes() -> None:
    files = Files()
    files.names |= {"a"}
    registry = TaskChangelogRegistry(files, runtime=runtime())
    registry.start_tracking(handle("a"), 2)
    assert FileOwner.TASK is registry.owner(handle("a"))
    registry.release(handle("a"))
    registry.offer(handle("a"))
    assert ({"a"}, FileOwner.OFFERED) == (files.names, registry.owner(handle("a")))
    registry.release(handle("a"))
    assert (set(), 0) == (files.names, len(registry))


def test_a_confirmed_file_is_forgotten_but_never_deleted() -> None:
    files = Files()
    files.names |= {"a"}
    registry = TaskChangelogRegistry(files, runtime=runtime())
    registry.start_tracking(handle("a"), 2)
    registry.stop_tracking(handle("a"))
    registry.offer(handle("a"))
    assert FileOwner.CHECKPOINT is registry.owner(handle("a"))
    for _ in range(2):
        registry.release(handle("a"))
    assert ({"a"}, None) == (files.names, registry.owner(handle("a")))


def test_an_untracked_file_is_deleted_only_if_it_is_in_no_result() -> None:
    files = Files()
    files.names |= {"a"}
    registry = TaskChangelogRegistry(files, runtime=runtime())
    for call in (registry.stop_tracking, registry.offer, registry.release):
        call(handle("a"))
    assert ({"a"}, 0) == (files.names, len(registry))
    registry.discard(handle("a"))
    assert set() == files.names


def test_names_are_never_reused_and_files_never_empty() -> None:
    registry = TaskChangelogRegistry(Files(), runtime=runtime())
    registry.start_tracking(handle("a"), 1)
    for path, num_sets in (("a", 1), ("b", 0)):
        with pytest.raises(UsageError):
            registry.start_tracking(handle(path), num_sets)


class Uploads:
    """
    Files of several sets with local copies, as the writers would have them; told by a seed.

    After each call a file is stored as long as one of its sets, or a checkpoint, needs it.  Its
    copy is kept with its sets, and after a hand-over as long as a checkpoint uses it.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files, self.disk = Files(), Files()
        self.copies = LocalChangelogRegistry(disk=self.disk, runtime=runtime())
        self.registry = TaskChangelogRegistry(
            self.files, copies=self.copies, runtime=self.copies._runtime
        )
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
def test_files_are_stored_as_long_as_they_are_needed(seed: int) -> None:
    Uploads(seed).run()


# --- local copies ---------------------------------------------------------------------------------


def test_discarding_is_strict(copies: LocalChangelogRegistry, disk: Files) -> None:
    for path, checkpoint in (("/a", 1), ("/b", 2), ("/c", 3)):
        use(copies, disk, path, checkpoint)
    for confirmed in (2, 2, 1):
        copies.discard_up_to_checkpoint(confirmed)
        assert {"/b", "/c"} == disk.names


def test_h9_an_abort_takes_back_one_use_only(copies: LocalChangelogRegistry, disk: Files) -> None:
    use(copies, disk, "/shared", 1, 2, 3)
    use(copies, disk, "/own", 2)
    copies.discard_up_to_checkpoint(1)
    copies.abort(2)
    assert {"/shared"} == disk.names
    copies.abort(3)
    assert {"/shared"} == disk.names, "the confirmed checkpoint uses it"


def test_h9_an_abort_that_comes_after_the_confirmation_is_none(
    copies: LocalChangelogRegistry, disk: Files
) -> None:
    use(copies, disk, "/a", 2)
    copies.discard_up_to_checkpoint(2)
    for late in (1, 2):
        copies.abort(late)
    assert {"/a"} == disk.names


def test_what_the_log_has_stays_and_what_is_gone_remotely_goes(
    copies: LocalChangelogRegistry, disk: Files
) -> None:
    for path in ("/a", "/b"):
        copies.track(handle(path))
        use(copies, disk, path, 1)
    copies.abort(1)
    assert {"/a", "/b"} == disk.names
    copies.release("/a")
    assert {"/b"} == disk.names
    copies.register(handle("/b"), 2)
    for call in (copies.drop, copies.drop, copies.release):
        call("/b")
        assert set() == disk.names
    use(copies, disk, "/c", 1)
    copies.close()
    assert ({"/c"}, 0) == (disk.names, len(copies))


class Job:
    """
    A log with checkpoints, as the writer and the coordinator would have it; told by a seed.

    It keeps for itself which copies each checkpoint uses, and looks after every event that
    (safety) nothing was deleted that the log, an open checkpoint or the last confirmed one needs,
    and (liveness) nothing stays that none of them needs.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = Files()
        self.copies = LocalChangelogRegistry(disk=self.disk, runtime=runtime())
        self.files: dict[str, bool] = {}  # path -> the log still has it
        self.uses: dict[int, set[str]] = {}  # open or confirmed checkpoint -> copies
        self.confirmed = 0
        self.next_file = self.next_checkpoint = 1

    def write(self) -> None:
        path, self.next_file = f"/f{self.next_file}", self.next_file + 1
        self.files[path] = True
        self.disk.names.add(path)
        self.copies.track(handle(path))

    def start_checkpoint(self) -> None:
        number, self.next_checkpoint = self.next_checkpoint, self.next_checkpoint + 1
        used = sorted(self.files)[self.rng.randrange(len(self.files) + 1) :]
        self.uses[number] = set(used)
        if self.rng.random() < 0.5:
            check(self.copies.claim([handle(path) for path in used], number), "a copy is gone")
        else:
            for path in used:
                self.copies.register(handle(path), number)

    def confirm(self) -> None:
        if self.open():
            self.confirmed = self.rng.choice(self.open())
            for number in [each for each in self.uses if each < self.confirmed]:
                del self.uses[number]
            self.copies.discard_up_to_checkpoint(self.confirmed)

    def abort(self) -> None:
        if self.open():
            number = self.rng.choice(self.open())
            del self.uses[number]
            for _ in range(self.rng.randrange(1, 3)):  # every writer of the storage says so
                self.copies.abort(number)

    def truncate(self) -> None:
        for path in list(self.files)[: self.rng.randrange(3)]:
            del self.files[path]
            if any(path in uses for uses in self.uses.values()) or self.rng.random() < 0.5:
                self.copies.release(path)
            else:
                self.copies.drop(path)

    def abort_late(self) -> None:
        if self.confirmed:
            self.copies.abort(self.rng.randrange(1, self.confirmed + 1))

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
            needed = self.files.keys() | set().union(*self.uses.values())
            stored = self.disk.names
            check(needed <= stored, f"deleted too early: {sorted(needed - stored)}")
            check(stored <= needed, f"stored and unneeded: {sorted(stored - needed)}")
            check(len(self.copies) == len(needed), "other copies are tracked")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_copies_stay_exactly_as_long_as_somebody_needs_them(seed: int) -> None:
    Job(seed).run()


# --- mutants --------------------------------------------------------------------------------------


release = TaskChangelogRegistry.release
clean_up = TaskChangelogRegistry._clean_up


def first_release_deletes(self: TaskChangelogRegistry, file: FileStateHandle) -> None:
    """The count of the other writers' sets is ignored (Flink before FLINK-28440)."""
    if file.path in self._files:
        self._files[file.path].num_sets = 1
    release(self, file)


def owner_ignored(self: TaskChangelogRegistry, path: str, file: _File) -> None:
    """The last release deletes even what a checkpoint has."""
    file.owner = FileOwner.TASK
    clean_up(self, path, file)


def garbage_stays(self: TaskChangelogRegistry, path: str, file: _File) -> None:
    """Files that no set needs are not deleted."""


def copy_outlives(self: TaskChangelogRegistry, path: str, file: _File) -> None:
    """The copy of a deleted file is kept for the checkpoints that use it."""
    copy, file.copy = file.copy, None
    clean_up(self, path, file)
    if copy is not None and self._copies is not None:
        self._copies.release(copy)


abort = LocalChangelogRegistry.abort
discard = LocalChangelogRegistry.discard_up_to_checkpoint
register = LocalChangelogRegistry.register


def flinks_abort(self: LocalChangelogRegistry, checkpoint_id: int) -> None:
    """An abort of N discards up to N + 1 (H9)."""
    discard(self, checkpoint_id + 1)


def abort_takes_all(self: LocalChangelogRegistry, checkpoint_id: int) -> None:
    """An abort ends older uses too, also of the last good checkpoint (Flink's H9)."""
    with self._runtime.lock:
        unneeded = self._end_uses(lambda use: use <= checkpoint_id)
    self._delete(unneeded)


def late_aborts_count(self: LocalChangelogRegistry, checkpoint_id: int) -> None:
    """A confirmed checkpoint can still be aborted."""
    self._confirmed = None
    abort(self, checkpoint_id)


def aborts_free_nothing(self: LocalChangelogRegistry, checkpoint_id: int) -> None:
    """An abort keeps everything."""


def last_use_only(self: LocalChangelogRegistry, file: FileStateHandle, checkpoint_id: int) -> None:
    """A new use makes the older ones forgotten."""
    register(self, file, checkpoint_id)
    self._copies[file.path].uses = {checkpoint_id}


def lenient(self: LocalChangelogRegistry, checkpoint_id: int) -> None:
    """The bound of a confirmation is inclusive."""
    discard(self, checkpoint_id + 1)


def log_does_not_count(self: LocalChangelogRegistry, paths: Iterable[str]) -> list[str]:
    """A copy goes with its last checkpoint, although the log will name it again."""
    unneeded = [path for path in paths if path in self._copies and not self._copies[path].uses]
    for path in unneeded:
        del self._copies[path]
    return unneeded


def copies_stay(self: LocalChangelogRegistry, paths: Iterable[str]) -> list[str]:
    """Copies are never deleted."""
    return []


Mutant = tuple[Any, Any, str, Any]
MUTANTS: list[Mutant] = [
    (Uploads, TaskChangelogRegistry, "release", first_release_deletes),
    (Uploads, TaskChangelogRegistry, "_clean_up", owner_ignored),
    (Uploads, TaskChangelogRegistry, "_clean_up", garbage_stays),
    (Uploads, TaskChangelogRegistry, "_clean_up", copy_outlives),
    (Job, LocalChangelogRegistry, "abort", flinks_abort),
    (Job, LocalChangelogRegistry, "abort", abort_takes_all),
    (Job, LocalChangelogRegistry, "abort", late_aborts_count),
    (Job, LocalChangelogRegistry, "abort", aborts_free_nothing),
    (Job, LocalChangelogRegistry, "register", last_use_only),
    (Job, LocalChangelogRegistry, "discard_up_to_checkpoint", lenient),
    (Job, LocalChangelogRegistry, "_remove_unneeded", log_does_not_count),
    (Job, LocalChangelogRegistry, "_remove_unneeded", copies_stay),
]
"""History, class, method, and the slip that replaces it."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[3].__name__)
def test_a_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    history, owner, name, slip = mutant
    assert name in owner.__dict__
    monkeypatch.setattr(owner, name, slip)
    for seed in range(SEEDS):
        try:
            history(seed).run()
        except InvariantError:
            return
    raise AssertionError(f"{slip.__doc__} Not seen in {SEEDS} seeds")
