"""
The registry of host-local copies: which checkpoint uses which, and deletion of the others.

A thin shell around `core/local_copies.py`.
Source: Flink, LocalChangelogRegistry and LocalChangelogRegistryImpl.  Deviations: `abort` beside
`discard_up_to_checkpoint` (H9); deletions run on the same pool as deletions of remote files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

from statelog.arguments import Seconds, instance, seconds, whole_number
from statelog.changelog.local.files import LocalDisk, LocalFiles
from statelog.core.local_copies import (
    CheckpointAborted,
    CheckpointConfirmed,
    CopiesClosed,
    CopyDropped,
    CopyReleased,
    CopyUsed,
    CopyWritten,
    Event,
    LocalCopies,
)
from statelog.errors import ClosedError, UsageError
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.driver import Runtime, system_runtime

_log = logging.getLogger("statelog")

_NO_CHECKPOINT: Final = 0
"""The id in a handle without a checkpoint, which is never confirmed or aborted."""


class LocalChangelogRegistry(ClosesAtExit):
    """
    Tracks the local copies of one storage and deletes unneeded ones.

    Handles contain absolute paths of this host; inline handles are accepted and ignored.

    Args:
        disk: Stores the copies; None for this host's.
        runtime: Lock, and the pool that deletes; None for real ones, which `close` stops.
    """

    def __init__(self, *, disk: LocalDisk | None = None, runtime: Runtime | None = None) -> None:
        self._owns_runtime = runtime is None
        self._runtime = system_runtime() if runtime is None else runtime
        self._disk = disk if disk is not None else LocalFiles()
        self._copies = LocalCopies()
        self._deleting = 0

    def register(self, handle: StreamStateHandle, checkpoint_id: int) -> None:
        """
        Record that a checkpoint uses the copy, and keep it for that checkpoint.

        Raises:
            UsageError: The handle's path is not absolute.

        Thread: any.
        """
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        instance(handle, "handle", (FileStateHandle, ByteStreamStateHandle), "a state handle")
        if isinstance(handle, FileStateHandle):
            self._post(CopyUsed(_absolute(handle), checkpoint_id))

    def claim(self, handles: Sequence[StreamStateHandle], checkpoint_id: int) -> bool:
        """
        Register all of *handles*, or none if one of their copies was deleted.

        Args:
            handles: Handles that are about to be returned.
            checkpoint_id: The checkpoint that uses them; 0 for none, and then the copies are kept
                only as long as the log has them.

        Returns:
            Whether all copies exist.

        Thread: any.
        """
        paths = [handle.path for handle in handles if isinstance(handle, FileStateHandle)]
        with self._runtime.lock:
            alive = all(path in self._copies for path in paths)
            for path in paths if alive and checkpoint_id != _NO_CHECKPOINT else ():
                self._copies.handle(CopyUsed(path, checkpoint_id), self._runtime.clock.now_ns())
        return alive

    def discard_up_to_checkpoint(self, checkpoint_id: int) -> None:
        """
        Record that a checkpoint is complete.

        No restore begins at an older one.  Copies that only older checkpoints (id < *checkpoint_id*) use are deleted, unless a writer's
        log still has sets of them.

        Thread: any.
        """
        self._post(CheckpointConfirmed(whole_number(checkpoint_id, "checkpoint_id", low=0)))

    def abort(self, checkpoint_id: int) -> None:
        """
        Record that a checkpoint was aborted; copies of other checkpoints are kept.

        Thread: any.
        Source: Flink, FsStateChangelogWriter.reset, which discards up to *checkpoint_id* + 1 and
        so the copies of the last confirmed checkpoint (H9).
        """
        self._post(CheckpointAborted(whole_number(checkpoint_id, "checkpoint_id", low=0)))

    def track(self, handle: FileStateHandle) -> None:
        """
        Track a new copy that a log holds, until `release` or `drop`.

        Raises:
            UsageError: The handle's path is not absolute.

        Thread: any.
        """
        self._post(CopyWritten(_absolute(handle)))

    def release(self, path: str) -> None:
        """Record that no log has sets of the file.   Thread: any."""
        self._post(CopyReleased(path))

    def drop(self, path: str) -> None:
        """Delete a copy whose remote file was deleted, in use or not.   Thread: any."""
        self._post(CopyDropped(path))

    def __contains__(self, handle: StreamStateHandle) -> bool:
        with self._runtime.lock:
            return isinstance(handle, FileStateHandle) and handle.path in self._copies

    def __len__(self) -> int:
        with self._runtime.lock:
            return len(self._copies)

    def close(self, timeout_s: Seconds = 5.0) -> None:
        """
        Stop tracking, keep the files for a restore, and wait for running deletions.

        Blocks: At most *timeout_s*, which is in seconds or a `timedelta`.   Thread: any.
        """
        limit_s = seconds(timeout_s, "timeout_s", low=0)
        self._post(CopiesClosed())
        with self._runtime.lock:
            self._runtime.lock.wait_for(lambda: self._deleting == 0, limit_s)
        if self._owns_runtime:
            self._runtime.close(0.0)

    def _post(self, event: Event) -> None:
        with self._runtime.lock:
            actions = self._copies.handle(event, self._runtime.clock.now_ns())
            self._deleting += len(actions)
        for action in actions:
            self._delete(action.path)

    def _delete(self, path: str) -> None:
        def deleted(_: None, error: BaseException | None) -> None:
            with self._runtime.lock:
                self._deleting -= 1
                self._runtime.lock.notify_all()
            if isinstance(error, ClosedError):
                error = self._removed(path)  # the pool is closed, so it is deleted here
            if error is not None and not isinstance(error, FileNotFoundError):
                _log.warning("could not delete the local copy %s: %s", path, error)

        self._runtime.discard_pool.submit(lambda: self._disk.remove(path), deleted)

    def _removed(self, path: str) -> OSError | None:
        try:
            self._disk.remove(path)
        except OSError as error:
            return error
        return None


def _absolute(handle: FileStateHandle) -> str:
    if not os.path.isabs(handle.path):
        raise UsageError(
            f"{handle.path} is not an absolute path; pass the handle of a local copy, not of an "
            "object in a store",
            path=handle.path,
        )
    return handle.path
