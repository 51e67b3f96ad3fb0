"""
The registry of uploaded files: who owns each, and the deletion of unneeded ones.

A thin shell around `core/file_ownership.py`.
Source: Flink, TaskChangelogRegistry.  Deviations: `offer` records that a handle was returned;
`close` waits for deletions; inline handles are accepted and ignored; the local copy of a deleted
file is deleted too (H6).
"""

from __future__ import annotations

import logging
import os
from typing import TypeGuard, assert_never

from statelog.arguments import Seconds, instance, refused, seconds, whole_number
from statelog.changelog.local.registry import LocalChangelogRegistry
from statelog.core.file_ownership import (
    DeleteFile,
    DropCopy,
    Event,
    FileConfirmed,
    FileDiscarded,
    FileOffered,
    FileOwner,
    FileOwnership,
    FileTracked,
    ReleaseCopy,
    SetReleased,
)
from statelog.errors import ClosedError
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.driver import Runtime, system_runtime
from statelog.store.api import ObjectStore
from statelog.store.opening import as_store

_log = logging.getLogger("statelog")


class TaskChangelogRegistry(ClosesAtExit):
    """
    Tracks the files of one storage and deletes those that became garbage.

    Args:
        store: The store that contains the files, or its path or URL.
        copies: Tracks the local copies of the files; None if there are none.
        discard_threads: Concurrent deletions, >= 1; ignored with a *runtime*, which has a pool.
        runtime: Lock, and the pool that deletes; None for real ones, which `close` stops.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | ObjectStore,
        *,
        copies: LocalChangelogRegistry | None = None,
        discard_threads: int = 1,
        runtime: Runtime | None = None,
    ) -> None:
        whole_number(discard_threads, "discard_threads", low=1)
        self._store = as_store(store, "store", ("delete",))
        if copies is not None:
            instance(copies, "copies", LocalChangelogRegistry, "a LocalChangelogRegistry")
        self._owns_runtime = runtime is None
        self._runtime = (
            system_runtime(discard_threads=discard_threads) if runtime is None else runtime
        )
        self._copies = copies
        self._ownership = FileOwnership()
        self._deleting = 0

    @property
    def copies(self) -> LocalChangelogRegistry | None:
        """The registry of the local copies, if there are any."""
        return self._copies

    def start_tracking(
        self, handle: StreamStateHandle, num_sets: int, copy: FileStateHandle | None = None
    ) -> None:
        """
        Track a new file that holds *num_sets* change sets of any writers.

        Args:
            handle: The file.
            num_sets: Change sets in it, > 0.
            copy: Its host-local copy, an absolute path; ignored without `copies`.

        Raises:
            UsageError: *num_sets* is not above zero, or the file is already tracked.
        """
        num_sets = whole_number(num_sets, "num_sets", low=1)
        if _is_file(handle):
            if copy is None or self._copies is None:
                self._post(FileTracked(handle.path, num_sets))
            else:
                self._copies.track(copy)
                self._post(FileTracked(handle.path, num_sets, copy.path))

    def offer(self, handle: StreamStateHandle) -> None:
        """Record that the writer returned a handle that names the file."""
        if _is_file(handle):
            self._post(FileOffered(handle.path))

    def stop_tracking(self, handle: StreamStateHandle) -> None:
        """Hand the file over to a checkpoint; this registry no longer deletes it."""
        if _is_file(handle):
            self._post(FileConfirmed(handle.path))

    def release(self, handle: StreamStateHandle) -> None:
        """Release one set of the file; without sets and checkpoint it is deleted."""
        if _is_file(handle):
            self._post(SetReleased(handle.path))

    def discard(self, handle: StreamStateHandle) -> None:
        """Delete a file that is in no result."""
        if _is_file(handle):
            self._post(FileDiscarded(handle.path))

    def owner(self, handle: StreamStateHandle) -> FileOwner | None:
        """Return who owns the file, or None if it is not tracked."""
        if not _is_file(handle):
            return None
        with self._runtime.lock:
            return self._ownership.owner(handle.path)

    def __len__(self) -> int:
        with self._runtime.lock:
            return len(self._ownership)

    def close(self, timeout_s: Seconds = 5.0) -> None:
        """
        Wait for running deletions; those that exceed the time-out are left running.

        Blocks: At most *timeout_s*, which is in seconds or a `timedelta`.
        """
        limit_s = seconds(timeout_s, "timeout_s", low=0)
        with self._runtime.lock:
            self._runtime.lock.wait_for(lambda: self._deleting == 0, limit_s)
        if self._owns_runtime:
            self._runtime.close(0.0)

    def _post(self, event: Event) -> None:
        with self._runtime.lock:
            actions = self._ownership.handle(event, self._runtime.clock.now_ns())
            self._deleting += sum(isinstance(action, DeleteFile) for action in actions)
        for action in actions:
            match action:
                case DeleteFile(path):
                    self._delete(path)
                case DropCopy(copy):
                    if self._copies is not None:
                        self._copies.drop(copy)
                case ReleaseCopy(copy):
                    if self._copies is not None:
                        self._copies.release(copy)
                case _:
                    assert_never(action)

    def _delete(self, path: str) -> None:
        def deleted(_: None, error: BaseException | None) -> None:
            with self._runtime.lock:
                self._deleting -= 1
                self._runtime.lock.notify_all()
            if error is not None and not isinstance(error, ClosedError):
                _log.warning(
                    "could not delete %s; it stays until the next clean-up: %s", path, error
                )

        self._runtime.discard_pool.submit(lambda: self._store.delete([path]), deleted)


def _is_file(handle: object) -> TypeGuard[FileStateHandle]:
    """Return whether there is a file to track; inline state has none."""
    if isinstance(handle, FileStateHandle):
        return True
    if not isinstance(handle, ByteStreamStateHandle):
        raise refused("handle", "a FileStateHandle or ByteStreamStateHandle", handle)
    return False
