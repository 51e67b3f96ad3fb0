"""
The simulation finds what it is for: each mutant of the core is caught within some seeds.

A mutant is a small, believable slip; several are Flink's own.  Invariants alone let those through
that are wrong in policy, not in safety, so each kind of checker earns its place here.
"""

import logging
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.campaigns.simulation.world import World

from statelog.changelog.local_recovery import LocalBackup
from statelog.changelog.registry import FileOwner, TaskChangelogRegistry
from statelog.core.change_log import (
    ChangeLog,
    CompletePersist,
    OfferFiles,
    ReleaseSets,
    StartUpload,
    _Uploaded,
)
from statelog.core.upload_batcher import SetTimer, StartBatch, UploadBatcher
from statelog.core.upload_retry import UploadRetry, UploadWon
from statelog.errors import InvariantError

SEEDS = 150


@dataclass(frozen=True)
class Mutant:
    """
    One slip, and the verdict that it has to bring about.

    Args:
        owner, name: What is replaced.
        replacement: By what: it gets the original, then its arguments; its docstring says what is wrong.
        verdict: Words of what the checker says that speaks first.
        by_invariant: Whether this is an invariant of the core, and no checker of the simulation.
    """

    owner: type[Any]
    name: str
    replacement: Callable[..., Any]
    verdict: str
    by_invariant: bool

    def install(self, patch: pytest.MonkeyPatch) -> None:
        # A replacement of an inherited method, or under a new name, would act elsewhere or never.
        original, replacement = self.owner.__dict__[self.name], self.replacement
        patch.setattr(
            self.owner, self.name, lambda *given, **named: replacement(original, *given, **named)
        )


MUTANTS: list[Mutant] = []


def mutant(owner: type[Any], name: str, verdict: str, *, by_invariant: bool = False) -> Any:
    """Make a mutant of a function."""

    def add(replacement: Callable[..., Any]) -> Callable[..., Any]:
        MUTANTS.append(Mutant(owner, name, replacement, verdict, by_invariant))
        return replacement

    return add


@mutant(UploadBatcher, "_has_capacity", "bytes in flight exceed", by_invariant=True)
def no_limit(original, self):
    """Tasks are admitted without end."""
    return True


@mutant(UploadBatcher, "_admit", "a task waits although there is capacity", by_invariant=True)
def only_what_fits(original, self, now_ns):
    """A task waits until it fits, although the batcher says that it is available."""
    size_bytes = next(iter(self._waiting.values()), 0)
    room = self._limit_bytes - self._in_flight_bytes
    return original(self, now_ns) if size_bytes <= room else []


@mutant(UploadBatcher, "_enqueue", "a batch started without a reason")
def eager(original, self, task_id, size_bytes, now_ns):
    """Each task goes alone: safe, and useless."""
    self._queued[task_id] = size_bytes
    self._queued_since_ns = now_ns
    self._queued_bytes += size_bytes
    self._in_flight_bytes += size_bytes
    return self._drain(now_ns)


@mutant(UploadBatcher, "_enqueue", "a second timer for one batch")
def timer_per_task(original, self, task_id, size_bytes, now_ns):
    """Every queued task sets a timer of its own."""
    actions = original(self, task_id, size_bytes, now_ns)
    return actions or [SetTimer(now_ns + self._delay_ns)]


@mutant(UploadBatcher, "_enqueue", "a full queue waits")
def no_threshold(original, self, task_id, size_bytes, now_ns):
    """A full queue waits for the delay."""
    threshold, self._threshold_bytes = self._threshold_bytes, 2**62
    try:
        return original(self, task_id, size_bytes, now_ns)
    finally:
        self._threshold_bytes = threshold


@mutant(UploadBatcher, "_enqueue", "a second timer for one batch")
def extended_delay(original, self, task_id, size_bytes, now_ns):
    """Each new task makes the queue wait longer."""
    actions = original(self, task_id, size_bytes, now_ns)
    if self._deadline_ns is not None:
        self._deadline_ns = now_ns + self._delay_ns
        return [SetTimer(self._deadline_ns)]
    return actions


@mutant(UploadBatcher, "_admit", "a task (waits|was admitted)")
def last_come_first_served(original, self, now_ns):
    """The newest waiting task is looked at first."""
    self._waiting = dict(reversed(self._waiting.items()))
    return original(self, now_ns)


@mutant(UploadBatcher, "_drain", "not the whole queue in order")
def half_batch(original, self, now_ns):
    """A task of the batch is forgotten."""
    actions = original(self, now_ns)
    (start,) = actions
    return [StartBatch(start.batch_id, start.task_ids[:1], start.waited_ns)]


@mutant(UploadBatcher, "_done", "the limit was passed")
def room_at_the_end(original, self, batch_id, held, now_ns):
    """The bytes of an upload that has ended are free, although attempts of it hang."""
    return original(self, batch_id, False, now_ns)


@mutant(UploadRetry, "_end", "attempts that hold a thread are not counted")
def nobody_is_out(original, self):
    """Attempts that hang at the end of an upload are not told of."""
    original(self)
    return 0


@mutant(UploadRetry, "_released", "a thread is out and not waited for", by_invariant=True)
def never_released(original, self):
    """The return of the last attempt is not told."""
    return []


@mutant(UploadRetry, "_attempt_succeeded", "neither winner nor discarded")
def keep_losers(original, self, event):
    """A late success is nobody's business."""
    number, actions = event.attempt, self._return_thread(event)
    if self._has_ended:
        return [*actions, *self._released()]
    return [*actions, UploadWon(number, len(self._attempts), self._end())]


@mutant(UploadRetry, "_attempt_succeeded", "an upload ended twice")
def everybody_wins(original, self, event):
    """A second success wins again."""
    number, actions = event.attempt, self._return_thread(event)
    return [*actions, UploadWon(number, len(self._attempts), self._end())]


@mutant(UploadRetry, "_attempt_failed", "a retry before its delay")
def impatient(original, self, event, now_ns):
    """The delay after an error is left out."""
    actions = original(self, event, now_ns)
    if self._retry_at_ns is not None and not self._has_ended:
        self._retry_at_ns = None
        return [action for action in actions if not hasattr(action, "at_ns")] + self._start()
    return actions


@mutant(UploadRetry, "_attempt_failed", "attempts that hold a thread are not counted")
def swallow(original, self, event, now_ns):
    """An error that is no OSError is lost (Flink's H5)."""
    return original(self, event, now_ns) if event.retryable else []


@mutant(UploadRetry, "_may_retry", "given up with attempts left")
def discouraged(original, self):
    """The first error or time-out is the end."""
    return False


@mutant(UploadRetry, "_may_retry", "too many attempts", by_invariant=True)
def one_more(original, self):
    """One attempt too many."""
    return len(self._attempts) <= self._policy.max_attempts and self._retry_at_ns is None


@mutant(ChangeLog, "_upload_failed", "sets .* instead of", by_invariant=True)
def drop_failed(original, self, sqns, error):
    """A failed set is gone, as in Flink."""
    gone = [sqn for sqn in sqns if self._uploading.pop(sqn, None) is not None]
    return self._fail_persists(gone, error)


@mutant(ChangeLog, "_truncate", "sets .* instead of", by_invariant=True)
def truncate_back(original, self, to_sqn):
    """Truncation moves back (H11)."""
    actions = original(self, to_sqn)
    self._lowest = to_sqn
    return actions


@mutant(ChangeLog, "_complete", "the incremental size is wrong")
def complete_with_last_size(original, self, persist_id, persist):
    """The incremental size counts the last set alone (H11)."""
    results = tuple(persist.ready[sqn] for sqn in range(persist.from_sqn, persist.to_sqn))
    for result in results:
        if result.sqn.value in self._uploaded:
            self._uploaded[result.sqn.value].offered = True
    incremental = results[-1].size_bytes if results else 0
    return [OfferFiles(results), CompletePersist(persist_id, results, incremental)]


@mutant(ChangeLog, "_close", "lost a file")
def release_all_on_close(original, self, unwanted_from_sqn):
    """The close deletes what a handle names."""
    actions = original(self, unwanted_from_sqn)
    return [action for action in actions if type(action).__name__ != "HandOver"]


@mutant(ChangeLog, "_succeeded", "unneeded files exist")
def late_is_lost(original, self, results):
    """What comes after a truncation or a close is not released."""
    actions = original(self, results)
    return [action for action in actions if not isinstance(action, ReleaseSets)]


@mutant(ChangeLog, "_succeeded", "sets .* instead of", by_invariant=True)
def uploaded_by_number(original, self, results):
    """Late results come back to life."""
    for result in results:
        if result.sqn.value not in self._uploading:
            self._uploaded[result.sqn.value] = _Uploaded(result)
    return original(self, results)


@mutant(ChangeLog, "_start_upload", "a set is sent that is uploading or uploaded")
def send_twice(original, self, from_sqn):
    """Sets on their way are sent again by the next persist."""
    again = tuple(self._uploading[sqn] for sqn in self._uploading if sqn >= from_sqn)
    actions = original(self, from_sqn)
    return [*actions, StartUpload(again)] if again else actions


@mutant(TaskChangelogRegistry, "_clean_up", "belongs to a checkpoint")
def owner_forgotten(original, self, path, file):
    """The last release deletes even what a checkpoint has."""
    self._deleting += file.owner is FileOwner.CHECKPOINT
    file.owner = FileOwner.TASK
    original(self, path, file)


@mutant(TaskChangelogRegistry, "_clean_up", "unneeded files exist")
def never_deletes(original, self, path, file):
    """Garbage stays."""


@mutant(LocalBackup, "settle", "which does not exist")
def take_the_unfinished(original, self, copy, *, wanted):
    """A copy is named whether it is written or not (Flink's fate of errors in the close)."""
    return wanted


@mutant(LocalBackup, "_written", "untracked local files exist")
def abandoned(original, self, copy, error):
    """A copy that was given up is finished all the same, and nobody knows of it."""
    with self._runtime.lock:
        self._writing -= 1
        copy.state = type(copy.state)("failed" if error else "complete")
        self._runtime.lock.notify_all()


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
    mutant.install(monkeypatch)
    verdict = first_verdict()
    assert verdict is not None, f"{mutant.replacement.__doc__} Not seen in {SEEDS} seeds"
    assert re.search(mutant.verdict, str(verdict)), str(verdict)
    frames = [frame.name for frame in traceback.extract_tb(verdict.__traceback__)]
    assert mutant.by_invariant == ("check_invariants" in frames)
