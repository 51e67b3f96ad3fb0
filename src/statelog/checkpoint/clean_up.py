"""
Delete garbage: what an owner no longer needs, or everything that no checkpoint needs.

Garbage collection marks the objects that retained checkpoints reach and deletes the other ones that
are old enough, because a younger object may belong to a checkpoint under way.  In doubt it keeps
objects: unknown names, claims, and all objects as long as one retained checkpoint cannot be read.

An owner deletes in batches: many commits, one listing of the tags, and few requests to delete.  A
checkpoint that a commit subsumed waits in the ledger.  The tags are listed after that commit,
however much later, so a tag that counts is seen: it was put before the commit.  A deletion needs no
look at the claims: it names what a reported commit has subsumed, which no later owner restores.
Between two micro-batches only results are taken; the requests run in a thread.  What waits is
bounded: a full batch waits for the requests of the batch before it.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import Final, TypeAlias

from statelog.checkpoint.history import (
    Entries,
    may_be_claim,
    present_ids,
    read_checkpoint,
    unusable,
)
from statelog.checkpoint.restore import kept_checkpoint
from statelog.checkpoint.retained import read_pins, retained_ids
from statelog.core.checkpoint_ledger import (
    CheckpointLedger,
    CleanUpRequested,
    Deleted,
    DeleteObjects,
)
from statelog.errors import CheckpointError, CorruptionError, ObjectNotFoundError, StoreError
from statelog.runtime.pool import in_background
from statelog.store import PATHS, LocationStore, ObjectStore, ask_at_once
from statelog.store.location_store import parent_path
from statelog.store.paths import (
    DATA_FOLDERS,
    LOOSE_OBJECTS,
    parse_checkpoint_folder,
    parse_checkpoint_metadata,
    parse_copy_folder,
)

_FAILURES_MAX: Final = 3
_RETENTION: Final = dt.timedelta(days=7)
_NEVER_GARBAGE: Final = tuple(
    f"{folder}/" for folder in (PATHS.tags, PATHS.parents, PATHS.audit, PATHS.probes)
)
_PART_MAX: Final = 1000
"""The limit of S3 for one request; objects of a failed request are deleted one by one."""
BATCH_COMMITS: Final = 20
"""A batch starts when this many checkpoints are waiting; at most twice as many wait."""
BATCH_INTERVAL_MS: Final = 60_000
"""A batch starts with the first commit after this time, even with fewer checkpoints."""
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRelease:
    """
    How a location gives up its dependence on a parent that it no longer reads.

    Args:
        parent_id: The id of the parent in the location.
        parent: URL of the parent's location; "" if it was deleted.
        tags: The objects of the parent that keep a checkpoint for this location; they are
            deleted there.
        problem: Why nothing can be deleted; "" if it can.
    """

    parent_id: str
    parent: str = ""
    tags: tuple[str, ...] = ()
    problem: str = ""


def release_parent(store: LocationStore, parent_id: str, *, apply: bool) -> ParentRelease:
    """
    Delete a location's tag in its parent, and the location's reference to the parent.

    An earlier call may have deleted either of them; a parent that was deleted is no error.  A tag
    that names another location is left, and so is one in a bucket or store that the caller has not
    named.

    Returns:
        What was deleted, or would be in a dry run; or why it was not.
    """
    try:
        released = store.released_parent(parent_id)
    except CheckpointError as error:
        if error.reason != "parent":
            raise
        return ParentRelease(parent_id=parent_id, problem=str(error))
    # The tag first: if this stops between both, the reference finds the tag again.
    if released is not None and apply:
        # Imported here: only this clean-up writes a line of the audit log.
        from statelog.checkpoint.audit import audited

        parent = LocationStore(released[0])
        with audited(parent, "release", fork_id=parent_id, fork=store.url):
            parent.delete(released[1])
    if apply:
        store.delete([PATHS.parent(parent_id)])
    if released is None:
        return ParentRelease(parent_id=parent_id)
    return ParentRelease(parent_id=parent_id, parent=released[0].url, tags=released[1])


@dataclass(frozen=True, slots=True)
class CleanUpReport:
    """
    The result of a clean-up.

    Args:
        deleted: Objects deleted; in a dry run, those that would be.
        failed: Objects that could not be deleted; the next clean-up tries again.
        deleted_bytes: Summed size of `deleted`; 0 where sizes are not known (no listing).
        reachable: Number of objects that retained checkpoints need.
        too_young: Number of orphans kept because of their age.
        unknown: Number of objects kept because statelog does not make such names.
        released: Ids of parents that are needed no more.  The tags that kept it are
            deleted in the parent; in a dry run, they would be.
        outside: What that deletes outside of the location, and what was left there with the reason.
        reason: Why objects could not be deleted, or why none was tried; "" without a problem.
        dry_run: Whether deletions were only listed.
    """

    deleted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    deleted_bytes: int = 0
    reachable: int = 0
    too_young: int = 0
    unknown: int = 0
    released: tuple[str, ...] = ()
    outside: tuple[ParentRelease, ...] = ()
    reason: str = ""
    dry_run: bool = False

    def merged(self, later: CleanUpReport) -> CleanUpReport:
        """Combine this report with a *later* one from the same call."""
        return replace(
            later,
            deleted=(*self.deleted, *later.deleted),
            failed=(*self.failed, *later.failed),
            reason=self.reason or later.reason,
        )


def delete_objects(store: ObjectStore, paths: Iterable[str]) -> CleanUpReport:
    """
    Delete objects, many per request; stop after a few failures.

    The order of *paths* is kept where it matters: the metadata of a checkpoint and the objects it
    refers to never share a request, because a failed request may have deleted any part of it.  Such
    a part is then deleted again one by one, so that the report is exact.
    """
    waiting = list(paths)
    parts = deque(_parts(waiting))
    deleted: list[str] = []
    failures = 0
    reason = ""
    while parts and failures < _FAILURES_MAX:
        request_paths = parts.popleft()
        try:
            store.delete(request_paths)
            deleted += request_paths
        except StoreError as error:
            if len(request_paths) > 1:
                parts.extendleft([path] for path in reversed(request_paths))
            else:
                failures = failures + 1
                reason = str(error)
    # After too many failures the rest was not tried: it is reported as failed too.
    gone = set(deleted)
    failed = tuple(path for path in waiting if path not in gone)
    return CleanUpReport(deleted=tuple(deleted), failed=failed, reason=reason)


def _parts(paths: Iterable[str]) -> Iterator[list[str]]:
    """Split *paths*, in order, into chunks that contain either only metadata or none."""
    for _, run in groupby(paths, key=lambda path: parse_checkpoint_metadata(path) is not None):
        while request_paths := list(islice(run, _PART_MAX)):
            yield request_paths


def collect_garbage(
    store: ObjectStore,
    *,
    min_age: dt.timedelta,
    now: dt.datetime,
    apply: bool = False,
    retention: dt.timedelta = _RETENTION,
) -> CleanUpReport:
    """
    Delete objects that no retained checkpoint reaches and that are older than *min_age*.

    Safe during a running job as long as *min_age* exceeds the longest time from the upload of a
    change set to the commit of its checkpoint.

    Args:
        store: The store of the location.
        min_age: Younger objects are kept.
        now: The time, with a time zone; compared with the store's own times.
        apply: Delete them; False only reports what would be deleted.
        retention: The `LooseObjects` without an age of their own are kept this long.

    Raises:
        CheckpointError: A retained checkpoint is damaged or missing (`reason` "damaged"); nothing
            was deleted, because its needs are unknown.
        IncompatibleFormatError: One has a different format version; nothing was deleted.
        StoreError: The store failed during a read.

    Blocks: On the store (a listing, all retained checkpoints, requests to delete).
    """
    # 1. List, then mark: the objects of a checkpoint committed after the listing are marked below.
    listed = list(store.list())
    marked = reachable_objects(store)
    if marked is None:
        reason = f"{store.url} contains neither a checkpoint nor a claim by statelog"
        return CleanUpReport(unknown=len(listed), reason=reason, dry_run=not apply)
    # 2. What is not marked is an orphan, except claims, and entries newer than the newest marked one:
    #    they may be commits under way.
    ours = [info for info in listed if is_ours(info.path)]
    newest = max(filter(None, map(parse_checkpoint_metadata, marked)), default=0)
    orphans = [
        info
        for info in ours
        if info.path not in marked and not is_kept_entry(store, info.path, newest)
    ]

    # 3. A young orphan may belong to a checkpoint under way.
    def age_of(path: str) -> dt.timedelta:
        ages = (age or retention for folder, age, _ in LOOSE_OBJECTS if path.startswith(folder))
        return max(next(ages, min_age), min_age)

    old = [info for info in orphans if now - info.last_modified >= age_of(info.path)]
    old.sort(key=lambda info: info.path)
    sizes = {info.path: info.size_bytes for info in old}
    report = delete_objects(store, sizes) if apply else CleanUpReport(deleted=tuple(sizes))
    # 4. A parent is released once no object of it is marked.  Without a checkpoint, the location may
    #    be about to commit its first one.
    releases = _release_parents(store, marked, apply=apply) if marked else ()
    return replace(
        report,
        deleted_bytes=sum(sizes[path] for path in report.deleted),
        reachable=sum(info.path in marked for info in listed),
        too_young=len(orphans) - len(old),
        unknown=sum(_is_unknown(info.path) for info in listed),
        released=tuple(release.parent_id for release in releases if not release.problem),
        outside=tuple(release for release in releases if release.tags or release.problem),
        dry_run=not apply,
    )


def reachable_objects(store: ObjectStore) -> frozenset[str] | None:
    """
    Return every object that a retained checkpoint needs, including its metadata.

    Returns:
        The names; None if this is not a location of statelog.
    """
    ids = present_ids(store)
    newest = Entries(store, ids).newest()
    if newest is None:
        return frozenset() if ids else None
    marked: set[str] = set()
    for checkpoint_id in retained_ids(store, newest, ids):
        try:
            checkpoint = read_checkpoint(store, checkpoint_id).checkpoint
        except (CorruptionError, ObjectNotFoundError) as error:
            raise unusable(
                checkpoint_id,
                "damaged",
                f"retained checkpoint {checkpoint_id} cannot be read, so it is unknown which "
                f"objects it needs, and nothing was deleted: {error}",
            ) from error
        marked.add(PATHS.metadata(checkpoint_id))
        marked.update(checkpoint.referenced_paths())
    return frozenset(marked)


def is_kept_entry(store: ObjectStore, path: str, newest: int) -> bool:
    """Return whether an object that no checkpoint needs is an entry that must be kept."""
    number = parse_checkpoint_metadata(path)
    return number is not None and (number > newest or may_be_claim(store, number))


def tag_releases(store: ObjectStore) -> tuple[ParentRelease, ...]:
    """Return the objects that garbage collection would delete in parents; change nothing."""
    releases = _release_parents(store, frozenset(), apply=False)
    return tuple(release for release in releases if release.tags or release.problem)


def _release_parents(
    store: ObjectStore, needed: frozenset[str], *, apply: bool
) -> tuple[ParentRelease, ...]:
    """Unpin the checkpoints in the parents that a location no longer needs."""
    if not isinstance(store, LocationStore):
        return ()
    return tuple(
        release_parent(store, parent_id, apply=apply)
        for parent_id in store.parent_ids()
        if not any(path.startswith(parent_path(parent_id, "")) for path in needed)
    )


def is_ours(path: str) -> bool:
    """Return whether a path belongs to state, the log, output or a checkpoint."""
    folder, separator, _ = path.partition("/")
    if not separator:
        return False
    return folder in DATA_FOLDERS or parse_checkpoint_folder(folder) is not None


def _is_unknown(path: str) -> bool:
    is_never_garbage = path.startswith(_NEVER_GARBAGE) or parse_copy_folder(path) is not None
    return not (is_ours(path) or is_never_garbage)


_Result: TypeAlias = CleanUpRequested | CleanUpReport
_Start: TypeAlias = Callable[[Callable[[], _Result]], Future[_Result]]


def _in_thread(work: Callable[[], _Result]) -> Future[_Result]:
    return in_background(work, "statelog-clean-up")


class BatchedCleanUp:
    """
    Deletes, on behalf of one owner, objects that no retained checkpoint needs.

    Each batch is two requests in another thread, and two steps of the ledger in the driver's::

        driver     commits ... due ──┐          ┌── CleanUpRequested ──┐          ┌── Deleted ── due? ...
        thread                       └── _listed┘                      └── delete ┘

    `when_due` takes a result where one is ready, and starts what follows.  It waits for one only if
    twice as many checkpoints wait as make a batch.  `now` does both steps here, after the batch
    under way.

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
        self._clock_ms = clock_ms
        self._start = start
        # At most one request is under way, so results are taken in the order of their commits.
        self._running: Future[_Result] | None = None
        self._waits_since_ms: int | None = None
        self._leftovers: tuple[int, ...] = ()

    def begin(self, leftovers: tuple[int, ...] = ()) -> None:
        """Start after a restore, which has replaced the contents of the ledger."""
        self._running = None  # its results belong to the history before
        self._waits_since_ms = None
        self._leftovers = leftovers

    def now(self, ledger: CheckpointLedger) -> CleanUpReport:
        """Delete every object that is no longer needed; list only the tags."""
        # The batch under way may delete the same objects, so its result comes first.
        self._finish(ledger)
        self._waits_since_ms = None
        request = CleanUpRequested(None)
        if ledger.subsumed or self._leftovers:
            # Read after the commit: a caller that tags a checkpoint then sees that it is subsumed.
            request = self._listed(ledger.subsumed)
        report = CleanUpReport()
        # The ledger is told what was deleted; what failed stays garbage there.
        for action in self._deletions(ledger, request):
            deletion = delete_objects(self._store, action.paths)
            ledger.handle(Deleted(deletion.deleted), self._now_ns())
            report = report.merged(deletion)
        return report

    def when_due(self, ledger: CheckpointLedger) -> None:
        """Process the results of the current batch, and start the next batch if one is due."""
        while self._running is not None:
            # Twice a batch: the store is slower than the query, so the query waits for it.
            is_full = len(ledger.subsumed) >= 2 * BATCH_COMMITS
            if not self._running.done() and not is_full:
                return
            self._take_result(ledger)
        if self._is_due(ledger):
            # Fixed here: a checkpoint that is subsumed while the tags are listed belongs to the
            # next batch.
            subsumed = ledger.subsumed
            self._waits_since_ms = None
            self._running = self._start(partial(self._listed, subsumed))

    def _is_due(self, ledger: CheckpointLedger) -> bool:
        # Leftovers of an earlier owner are few and old, so they are not made to wait.
        if self._leftovers or len(ledger.subsumed) >= BATCH_COMMITS:
            return True
        now_ms = self._clock_ms()
        if ledger.subsumed and self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        since = self._waits_since_ms
        return since is not None and now_ms - since >= BATCH_INTERVAL_MS

    def _listed(self, subsumed: tuple[int, ...]) -> CleanUpRequested:
        """Return the location's pins, read after the commits that subsumed *subsumed*."""
        # The objects of a leftover are known only from its metadata.
        reads = [partial(kept_checkpoint, self._store, leftover) for leftover in self._leftovers]
        leftovers = tuple(
            checkpoint for checkpoint in ask_at_once(self._store, reads) if checkpoint is not None
        )
        return CleanUpRequested(read_pins(self._store), leftovers, subsumed)

    def _take_result(self, ledger: CheckpointLedger) -> None:
        """Wait for the current request to finish, and start the next one."""
        running = self._running
        self._running = None
        result = None if running is None else running.result()
        if isinstance(result, CleanUpReport):
            # What could not be deleted stays garbage in the ledger: the next batch tries again.
            ledger.handle(Deleted(result.deleted), self._now_ns())
            if result.failed:
                raise StoreError(result.reason)
        elif result is not None:
            for action in self._deletions(ledger, result):
                self._running = self._start(partial(delete_objects, self._store, action.paths))

    def _deletions(
        self, ledger: CheckpointLedger, request: CleanUpRequested
    ) -> list[DeleteObjects]:
        """Process a finished listing, and return the deletions that the ledger requests."""
        # With the pins the leftovers are settled, whether they were deleted or pinned.
        if request.pins is not None:
            self._leftovers = ()
        actions = ledger.handle(request, self._now_ns())
        return [action for action in actions if isinstance(action, DeleteObjects)]

    def _finish(self, ledger: CheckpointLedger) -> None:
        """Wait for the current batch; objects that could not be deleted stay in the queue."""
        while self._running is not None:
            try:
                self._take_result(ledger)
            except StoreError:
                continue

    def _now_ns(self) -> int:
        return self._clock_ms() * _NS_PER_MS
