"""
Clean-up of an owner in batches: many commits, one listing of the tags, and few requests to delete.

A checkpoint that a commit subsumed waits in the ledger.  The tags are listed after that commit, however
much later, so a tag that counts is seen: it was put before the commit.  A deletion needs no look at the
claims: it names what a reported commit has subsumed, which no later owner restores.  Between two
micro-batches only results are taken; the requests run in a thread.  What waits is bounded: a full batch waits for the
requests of the batch before it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, TypeAlias

from statelog.checkpoint.clean_up import CleanUpReport, delete_objects
from statelog.checkpoint.restore import kept_checkpoint
from statelog.checkpoint.tags import read_pins
from statelog.core.checkpoint_events import (
    CleanUpRequested,
    Deleted,
    DeleteObjects,
)
from statelog.core.checkpoint_ledger import CheckpointLedger
from statelog.errors import StoreError
from statelog.runtime.background import in_background
from statelog.store import ObjectStore, ask_at_once

BATCH_COMMITS: Final = 20
"""A batch begins when this many checkpoints wait; twice as many wait at most."""
BATCH_INTERVAL_MS: Final = 60_000
"""A batch begins with the first commit after this time, with fewer checkpoints too."""
_NS_PER_MS: Final = 1_000_000


_Result: TypeAlias = CleanUpRequested | CleanUpReport
_Start: TypeAlias = Callable[[Callable[[], _Result]], Future[_Result]]


def _in_thread(work: Callable[[], _Result]) -> Future[_Result]:
    return in_background(work, "statelog-clean-up")


class BatchedCleanUp:
    """
    Deletes what no retained checkpoint needs, for one owner.

    Args:
        store: The store of the location.
        clock_ms: Milliseconds of any clock; decides when a batch begins, nothing else.
        start: Runs requests in another thread.

    Thread: The driver's; requests of a batch run in a thread of their own.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock_ms: Callable[[], int],
        start: _Start = _in_thread,
    ) -> None:
        self._store = store
        self._clock_ms, self._start = clock_ms, start
        self._running: Future[_Result] | None = None
        self._waits_since_ms: int | None = None
        self._leftovers: tuple[int, ...] = ()

    def begin(self, leftovers: tuple[int, ...] = ()) -> None:
        """
        Begin after a restore, which has replaced what the ledger knew.

        Args:
            leftovers: Older checkpoints that are neither retained nor needed.
        """
        self._running = None  # its results belong to the history before
        self._waits_since_ms = None
        self._leftovers = leftovers

    def now(self, ledger: CheckpointLedger) -> CleanUpReport:
        """
        Delete everything that is unneeded; list nothing but the tags.

        Raises:
            StoreError: The tags could not be read; nothing was deleted.

        Blocks: On the store.
        """
        self._finish(ledger)
        self._waits_since_ms = None
        request = CleanUpRequested(None)
        if ledger.subsumed or self._leftovers:
            # Read after the commit: a caller that tags a checkpoint then sees that it is subsumed.
            request = self._listed(ledger.subsumed)
        report = CleanUpReport()
        for action in self._deletions(ledger, request):
            done = delete_objects(self._store, action.paths)
            ledger.handle(Deleted(done.deleted), self._now_ns())
            report = report.merged(done)
        return report

    def when_due(self, ledger: CheckpointLedger) -> None:
        """
        Take the results of the batch under way, and begin the next one if it is due.

        Raises:
            StoreError: A request of the batch failed.  Its objects are deleted with a later one.

        Blocks: On the store, if a full batch waits.
        """
        while self._running is not None:
            is_full = len(ledger.subsumed) >= 2 * BATCH_COMMITS
            if not self._running.done() and not is_full:
                return
            self._take_result(ledger)
        if self._is_due(ledger):
            subsumed, self._waits_since_ms = ledger.subsumed, None
            self._running = self._start(partial(self._listed, subsumed))

    def _is_due(self, ledger: CheckpointLedger) -> bool:
        if self._leftovers or len(ledger.subsumed) >= BATCH_COMMITS:
            return True
        now_ms = self._clock_ms()
        if ledger.subsumed and self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        since = self._waits_since_ms
        return since is not None and now_ms - since >= BATCH_INTERVAL_MS

    def _listed(self, subsumed: tuple[int, ...]) -> CleanUpRequested:
        """Return the pins of the location, read after the commits that subsumed *subsumed*."""
        reads = [partial(kept_checkpoint, self._store, each) for each in self._leftovers]
        leftovers = tuple(each for each in ask_at_once(self._store, reads) if each is not None)
        return CleanUpRequested(read_pins(self._store), leftovers, subsumed)

    def _take_result(self, ledger: CheckpointLedger) -> None:
        running, self._running = self._running, None
        result = None if running is None else running.result()
        if isinstance(result, CleanUpReport):
            ledger.handle(Deleted(result.deleted), self._now_ns())
            if result.failed:
                raise StoreError(result.reason)
        elif result is not None:
            for action in self._deletions(ledger, result):
                self._running = self._start(partial(delete_objects, self._store, action.paths))

    def _deletions(
        self, ledger: CheckpointLedger, request: CleanUpRequested
    ) -> list[DeleteObjects]:
        if request.pins is not None:
            self._leftovers = ()
        actions = ledger.handle(request, self._now_ns())
        return [action for action in actions if isinstance(action, DeleteObjects)]

    def _finish(self, ledger: CheckpointLedger) -> None:
        """Wait for the batch under way; what it could not delete remains to be deleted."""
        while self._running is not None:
            try:
                self._take_result(ledger)
            except StoreError:
                continue

    def _now_ns(self) -> int:
        return self._clock_ms() * _NS_PER_MS
