"""
The simulation finds what it is for: each mutant of the core is caught within some seeds.

A mutant is a small, believable slip; several are Flink's own.  Invariants alone let those through
that are wrong in policy, not in safety, so each kind of checker earns its place here.
"""

import enum
import logging
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.campaigns.simulation.world import World

from statelog.changelog.local_recovery import LocalBackup, LocalCopy
from statelog.changelog.registry import FileOwner, TaskChangelogRegistry, _File
from statelog.core.change_log import (
    Action,
    ChangeLog,
    CompletePersist,
    OfferFiles,
    ReleaseSets,
    StartUpload,
    _Uploaded,
)
from statelog.core.upload_batcher import SetTimer, StartBatch, UploadBatcher
from statelog.core.upload_retry import AttemptFailed, AttemptSucceeded, UploadRetry, UploadWon
from statelog.errors import InvariantError

SEEDS = 150


def no_limit(self: UploadBatcher) -> bool:
    """Tasks are admitted without end."""
    return True


def only_what_fits(self: UploadBatcher, now_ns: int) -> list[Any]:
    """A task waits until it fits, although the batcher says that it is available."""
    size_bytes = next(iter(self._waiting.values()), 0)
    room = self._limit_bytes - self._in_flight_bytes
    return original_admit(self, now_ns) if size_bytes <= room else []


def eager(self: UploadBatcher, task_id: int, size_bytes: int, now_ns: int) -> list[Any]:
    """Each task goes alone: safe, and useless."""
    self._queued[task_id] = size_bytes
    self._queued_since_ns = now_ns
    self._queued_bytes += size_bytes
    self._in_flight_bytes += size_bytes
    return self._drain(now_ns)


original_admit = UploadBatcher._admit
original_enqueue = UploadBatcher._enqueue


def timer_per_task(self: UploadBatcher, task_id: int, size_bytes: int, now_ns: int) -> list[Any]:
    """Every queued task sets a timer of its own."""
    actions = original_enqueue(self, task_id, size_bytes, now_ns)
    return actions or [SetTimer(now_ns + self._delay_ns)]


def no_threshold(self: UploadBatcher, task_id: int, size_bytes: int, now_ns: int) -> list[Any]:
    """A full queue waits for the delay."""
    threshold, self._threshold_bytes = self._threshold_bytes, 2**62
    try:
        return original_enqueue(self, task_id, size_bytes, now_ns)
    finally:
        self._threshold_bytes = threshold


def extended_delay(self: UploadBatcher, task_id: int, size_bytes: int, now_ns: int) -> list[Any]:
    """Each new task makes the queue wait longer."""
    actions = original_enqueue(self, task_id, size_bytes, now_ns)
    if self._deadline_ns is not None:
        self._deadline_ns = now_ns + self._delay_ns
        return [SetTimer(self._deadline_ns)]
    return actions


def last_come_first_served(self: UploadBatcher, now_ns: int) -> list[Any]:
    """The newest waiting task is looked at first."""
    self._waiting = dict(reversed(self._waiting.items()))
    return original_admit(self, now_ns)


def half_batch(self: UploadBatcher, now_ns: int) -> list[Any]:
    """A task of the batch is forgotten."""
    actions = original_drain(self, now_ns)
    (start,) = actions
    return [StartBatch(start.batch_id, start.task_ids[:1], start.waited_ns)]


original_drain = UploadBatcher._drain
original_done = UploadBatcher._done


def room_at_the_end(self: UploadBatcher, batch_id: int, held: bool, now_ns: int) -> list[Any]:
    """The bytes of an upload that has ended are free, although attempts of it hang."""
    return original_done(self, batch_id, False, now_ns)


def keep_losers(self: UploadRetry, event: AttemptSucceeded) -> list[Any]:
    """A late success is nobody's business."""
    number, actions = event.attempt, self._return_thread(event)
    if self._has_ended:
        return [*actions, *self._released()]
    return [*actions, UploadWon(number, len(self._attempts), self._end())]


def everybody_wins(self: UploadRetry, event: AttemptSucceeded) -> list[Any]:
    """A second success wins again."""
    number, actions = event.attempt, self._return_thread(event)
    return [*actions, UploadWon(number, len(self._attempts), self._end())]


original_failed = UploadRetry._attempt_failed


def impatient(self: UploadRetry, event: AttemptFailed, now_ns: int) -> list[Any]:
    """The delay after an error is left out."""
    actions = original_failed(self, event, now_ns)
    if self._retry_at_ns is not None and not self._has_ended:
        self._retry_at_ns = None
        return [action for action in actions if not hasattr(action, "at_ns")] + self._start()
    return actions


def swallow(self: UploadRetry, event: AttemptFailed, now_ns: int) -> list[Any]:
    """An error that is no OSError is lost (Flink's H5)."""
    return original_failed(self, event, now_ns) if event.retryable else []


original_end = UploadRetry._end


def nobody_is_out(self: UploadRetry) -> int:
    """Attempts that hang at the end of an upload are not told of."""
    original_end(self)
    return 0


def never_released(self: UploadRetry) -> list[Any]:
    """The return of the last attempt is not told."""
    return []


def discouraged(self: UploadRetry) -> bool:
    """The first error or time-out is the end."""
    return False


def one_more(self: UploadRetry) -> bool:
    """One attempt too many."""
    return len(self._attempts) <= self._policy.max_attempts and self._retry_at_ns is None


def drop_failed(self: ChangeLog, sqns: tuple[int, ...], error: BaseException) -> list[Action]:
    """A failed set is gone, as in Flink."""
    gone = [sqn for sqn in sqns if self._uploading.pop(sqn, None) is not None]
    return self._fail_persists(gone, error)


original_truncate = ChangeLog._truncate


def truncate_back(self: ChangeLog, to_sqn: int) -> list[Action]:
    """Truncation moves back (H11)."""
    actions = original_truncate(self, to_sqn)
    self._lowest = to_sqn
    return actions


def complete_with_last_size(self: ChangeLog, persist_id: int, persist: Any) -> list[Action]:
    """The incremental size counts the last set alone (H11)."""
    results = tuple(persist.ready[sqn] for sqn in range(persist.from_sqn, persist.to_sqn))
    for result in results:
        if result.sqn.value in self._uploaded:
            self._uploaded[result.sqn.value].offered = True
    incremental = results[-1].size_bytes if results else 0
    return [OfferFiles(results), CompletePersist(persist_id, results, incremental)]


original_close = ChangeLog._close


def release_all_on_close(self: ChangeLog, unwanted_from_sqn: int | None) -> list[Action]:
    """The close deletes what a handle names."""
    actions = original_close(self, unwanted_from_sqn)
    return [action for action in actions if type(action).__name__ != "HandOver"]


original_succeeded = ChangeLog._succeeded


def late_is_lost(self: ChangeLog, results: tuple[Any, ...]) -> list[Action]:
    """What comes after a truncation or a close is not released."""
    actions = original_succeeded(self, results)
    return [action for action in actions if not isinstance(action, ReleaseSets)]


def uploaded_by_number(self: ChangeLog, results: tuple[Any, ...]) -> list[Action]:
    """Late results come back to life."""
    for result in results:
        if result.sqn.value not in self._uploading:
            self._uploaded[result.sqn.value] = _Uploaded(result)
    return original_succeeded(self, results)


original_start_upload = ChangeLog._start_upload


def send_twice(self: ChangeLog, from_sqn: int) -> list[Action]:
    """Sets on their way are sent again by the next persist."""
    again = tuple(self._uploading[sqn] for sqn in self._uploading if sqn >= from_sqn)
    actions = original_start_upload(self, from_sqn)
    return [*actions, StartUpload(again)] if again else actions


original_clean_up = TaskChangelogRegistry._clean_up


def owner_forgotten(self: TaskChangelogRegistry, path: str, file: _File) -> None:
    """The last release deletes even what a checkpoint has."""
    self._deleting += file.owner is FileOwner.CHECKPOINT
    file.owner = FileOwner.TASK
    original_clean_up(self, path, file)


def never_deletes(self: TaskChangelogRegistry, path: str, file: _File) -> None:
    """Garbage stays."""


def take_the_unfinished(self: LocalBackup, copy: LocalCopy, *, wanted: bool) -> bool:
    """A copy is named whether it is written or not (Flink's fate of errors in the close)."""
    return wanted


def abandoned(self: LocalBackup, copy: LocalCopy, error: BaseException | None) -> None:
    """A copy that was given up is finished all the same, and nobody knows of it."""
    with self._runtime.lock:
        self._writing -= 1
        copy.state = type(copy.state)("failed" if error else "complete")
        self._runtime.lock.notify_all()


class Kind(enum.Enum):
    """What notices a mutant."""

    SAFETY = "safety"
    LIVENESS = "liveness"
    POLICY = "policy"
    INVARIANT = "invariant"


@dataclass(frozen=True)
class Mutant:
    """
    One slip, and the verdict that it has to bring about.

    Args:
        owner, name: What is replaced.
        replacement: By what; its docstring says what is wrong.
        kind: Of the checker that speaks first.
        verdict: Words of what it says.
    """

    owner: type[Any]
    name: str
    replacement: Callable[..., Any]
    kind: Kind
    verdict: str


SAFE, LIVE, RULE, BOOKS = Kind.SAFETY, Kind.LIVENESS, Kind.POLICY, Kind.INVARIANT
MUTANTS = [
    Mutant(UploadBatcher, "_has_capacity", no_limit, BOOKS, "bytes in flight exceed"),
    Mutant(
        UploadBatcher, "_admit", only_what_fits, BOOKS, "a task waits although there is capacity"
    ),
    Mutant(UploadBatcher, "_enqueue", eager, RULE, "a batch started without a reason"),
    Mutant(UploadBatcher, "_enqueue", timer_per_task, RULE, "a second timer for one batch"),
    Mutant(UploadBatcher, "_enqueue", no_threshold, RULE, "a full queue waits"),
    Mutant(UploadBatcher, "_enqueue", extended_delay, RULE, "a second timer for one batch"),
    Mutant(UploadBatcher, "_admit", last_come_first_served, RULE, "a task (waits|was admitted)"),
    Mutant(UploadBatcher, "_drain", half_batch, RULE, "not the whole queue in order"),
    Mutant(UploadBatcher, "_done", room_at_the_end, RULE, "the limit was passed"),
    Mutant(UploadRetry, "_end", nobody_is_out, SAFE, "attempts that hold a thread are not counted"),
    Mutant(UploadRetry, "_released", never_released, BOOKS, "a thread is out and not waited for"),
    Mutant(UploadRetry, "_attempt_succeeded", keep_losers, SAFE, "neither winner nor discarded"),
    Mutant(UploadRetry, "_attempt_succeeded", everybody_wins, SAFE, "an upload ended twice"),
    Mutant(UploadRetry, "_attempt_failed", impatient, RULE, "a retry before its delay"),
    Mutant(
        UploadRetry, "_attempt_failed", swallow, SAFE, "attempts that hold a thread are not counted"
    ),
    Mutant(UploadRetry, "_may_retry", discouraged, RULE, "given up with attempts left"),
    Mutant(UploadRetry, "_may_retry", one_more, BOOKS, "too many attempts"),
    Mutant(ChangeLog, "_upload_failed", drop_failed, BOOKS, "sets .* instead of"),
    Mutant(ChangeLog, "_truncate", truncate_back, BOOKS, "sets .* instead of"),
    Mutant(ChangeLog, "_complete", complete_with_last_size, SAFE, "the incremental size is wrong"),
    Mutant(ChangeLog, "_close", release_all_on_close, SAFE, "lost a file"),
    Mutant(ChangeLog, "_succeeded", late_is_lost, LIVE, "unneeded files exist"),
    Mutant(ChangeLog, "_succeeded", uploaded_by_number, BOOKS, "sets .* instead of"),
    Mutant(
        ChangeLog, "_start_upload", send_twice, RULE, "a set is sent that is uploading or uploaded"
    ),
    Mutant(TaskChangelogRegistry, "_clean_up", owner_forgotten, SAFE, "belongs to a checkpoint"),
    Mutant(TaskChangelogRegistry, "_clean_up", never_deletes, LIVE, "unneeded files exist"),
    Mutant(LocalBackup, "settle", take_the_unfinished, SAFE, "which does not exist"),
    Mutant(LocalBackup, "_written", abandoned, LIVE, "untracked local files exist"),
]


def first_verdict() -> AssertionError | None:
    """
    Return what the first history that breaks was charged with; None if all of them hold.

    Any other error comes through: a core that stumbles over itself was not caught by a checker.
    """
    for seed in range(SEEDS):
        try:
            World(seed).run()
        except InvariantError as error:
            return error
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.replacement.__name__)
def test_a_mutant_is_caught_by_its_checker(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("statelog", "concurrent.futures"):
        caplog.set_level(logging.CRITICAL, name)
    monkeypatch.setattr(mutant.owner, mutant.name, mutant.replacement)
    verdict = first_verdict()
    assert verdict is not None, f"{mutant.replacement.__doc__} Not seen in {SEEDS} seeds"
    assert re.search(mutant.verdict, str(verdict)), str(verdict)
    frames = [frame.name for frame in traceback.extract_tb(verdict.__traceback__)]
    assert (mutant.kind is Kind.INVARIANT) == ("check_invariants" in frames)


def test_a_mutant_replaces_what_its_class_defines() -> None:
    """A replacement of an inherited method, or under a new name, would act elsewhere or never."""
    assert [] == [mutant for mutant in MUTANTS if mutant.name not in mutant.owner.__dict__]
