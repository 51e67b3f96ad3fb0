"""
Track who owns each uploaded file, and delete files that are no longer needed.

::

    task ──> offered ──> checkpoint          a checkpoint owns it: only the checkpoint side deletes
      │         │
      └────┬────┘   last set released
           ▼
        garbage                              delete it

A file contains sets of several writers.  They are counted; each set is released exactly once, by
its writer.  One confirmed set protects the whole file from then on, because the checkpoint's handle
names the file, not the set.  A file may have a host-local copy.  The copy is deleted with the file,
and released when the file is handed over.
Source: Flink, TaskChangelogRegistry.  Deviations: `offer` records that a handle was returned;
`close` waits for deletions; inline handles are accepted and ignored; a file confirmed and then
released is no longer tracked; nor is a discarded file, whose copy is deleted (in Flink both remain,
H6).
"""

from __future__ import annotations

import enum
import logging
import os
from dataclasses import dataclass
from typing import TypeGuard

from statelog.arguments import Seconds, instance, refused, seconds, whole_number
from statelog.changelog.local_registry import LocalChangelogRegistry
from statelog.errors import ClosedError, UsageError
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.runtime import Runtime, system_runtime
from statelog.store.api import ObjectStore
from statelog.store.object_store import as_store

_log = logging.getLogger("statelog")


class FileOwner(enum.Enum):
    """Who may delete a file."""

    TASK = "owned by the task"
    OFFERED = "offered to the checkpoint coordinator"
    CHECKPOINT = "owned by a checkpoint"


@dataclass(slots=True)
class _File:
    """A tracked file: *num_sets* of its sets are still needed; *copy* is its local copy."""

    num_sets: int
    copy: str | None
    owner: FileOwner = FileOwner.TASK


class TaskChangelogRegistry(ClosesAtExit):
    """
    Tracks the files of one storage, and deletes them once they are garbage.

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
        self._files: dict[str, _File] = {}
        self._deleting = 0

    @property
    def copies(self) -> LocalChangelogRegistry | None:
        """The registry of the local copies, or None."""
        return self._copies

    def start_tracking(
        self, handle: StreamStateHandle, num_sets: int, copy: FileStateHandle | None = None
    ) -> None:
        """
        Track a new file that contains *num_sets* change sets of one or more writers.

        Args:
            handle: The file.
            num_sets: Change sets in it, > 0.
            copy: Its host-local copy, an absolute path; ignored without `copies`.

        Raises:
            UsageError: *num_sets* is not above zero, or the file is already tracked.
        """
        num_sets = whole_number(num_sets, "num_sets", low=1)
        if not _is_file(handle):
            return
        copy_path = None
        if copy is not None and self._copies is not None:
            # Before the file: a release of the file must find the copy.
            self._copies.track(copy)
            copy_path = copy.path
        with self._runtime.lock:
            if handle.path in self._files:
                raise UsageError(
                    f"file {handle.path} is already tracked; give each file a new name",
                    path=handle.path,
                )
            self._files[handle.path] = _File(num_sets, copy_path)

    def offer(self, handle: StreamStateHandle) -> None:
        """Record that the writer has returned a handle that references the file."""
        if _is_file(handle):
            with self._runtime.lock:
                file = self._files.get(handle.path)
                # An offer never takes a file back from a checkpoint.
                if file is not None and file.owner is FileOwner.TASK:
                    file.owner = FileOwner.OFFERED

    def stop_tracking(self, handle: StreamStateHandle) -> None:
        """Hand over the file to a checkpoint, so that this registry no longer deletes it."""
        if _is_file(handle):
            with self._runtime.lock:
                file = self._files.get(handle.path)
                if file is not None:
                    file.owner = FileOwner.CHECKPOINT

    def release(self, handle: StreamStateHandle) -> None:
        """Release one set of the file; delete the file if no set or checkpoint needs it."""
        if _is_file(handle):
            with self._runtime.lock:
                file = self._files.get(handle.path)
                if file is None:
                    return
                # The last needed set of a file ends the tracking, whichever writer it belongs to.
                file.num_sets -= 1
                if file.num_sets:
                    return
                self._remove(handle.path, file)
            self._clean_up(handle.path, file)

    def discard(self, handle: StreamStateHandle) -> None:
        """Delete a file that no result references."""
        if _is_file(handle):
            with self._runtime.lock:
                # An attempt may fail before its file is tracked, and may have written it all the
                # same.
                file = self._files.get(handle.path, _File(0, None))
                self._remove(handle.path, file)
            self._clean_up(handle.path, file)

    def owner(self, handle: StreamStateHandle) -> FileOwner | None:
        """Return who owns the file, or None if it is not tracked."""
        if not _is_file(handle):
            return None
        with self._runtime.lock:
            file = self._files.get(handle.path)
            return None if file is None else file.owner

    def __len__(self) -> int:
        with self._runtime.lock:
            return len(self._files)

    def close(self, timeout_s: Seconds = 5.0) -> None:
        """
        Wait for running deletions, at most for the time-out; slower ones continue.

        Blocks: At most *timeout_s*, which is in seconds or a `timedelta`.
        """
        limit_s = seconds(timeout_s, "timeout_s", low=0)
        with self._runtime.lock:
            self._runtime.lock.wait_for(lambda: self._deleting == 0, limit_s)
        if self._owns_runtime:
            self._runtime.close(0.0)

    def _remove(self, path: str, file: _File) -> None:
        """Stop tracking a file, under the lock, so that `close` waits for its deletion."""
        self._files.pop(path, None)
        self._deleting += file.owner is not FileOwner.CHECKPOINT

    def _clean_up(self, path: str, file: _File) -> None:
        """Delete a file that is no longer tracked, and its copy, unless a checkpoint owns it."""
        # The checkpoint's file stays, and its copy for as long as a checkpoint uses it.
        owned = file.owner is FileOwner.CHECKPOINT
        if not owned:
            self._delete(path)
        if file.copy is not None and self._copies is not None:
            if owned:
                self._copies.release(file.copy)
            else:
                self._copies.drop(file.copy)

    def _delete(self, path: str) -> None:
        def deleted(_: None, error: BaseException | None) -> None:
            with self._runtime.lock:
                self._deleting -= 1
                self._runtime.lock.notify_all()
            if error is not None and not isinstance(error, ClosedError):
                _log.warning(
                    "could not delete %s; it remains until the next clean-up: %s", path, error
                )

        self._runtime.discard_pool.submit(lambda: self._store.delete([path]), deleted)


def _is_file(handle: object) -> TypeGuard[FileStateHandle]:
    """Return whether the handle has a file to track, unlike inline state."""
    if isinstance(handle, FileStateHandle):
        return True
    if not isinstance(handle, ByteStreamStateHandle):
        raise refused("handle", "a FileStateHandle or ByteStreamStateHandle", handle)
    return False
