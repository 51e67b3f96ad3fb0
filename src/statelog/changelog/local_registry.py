"""
Track which checkpoints use which local copies on this host.

A file here is not made durable: it is optional, and a torn one is detected when it is read.  Code
uses the disk through a `LocalDisk`, so that a simulation can replace it.

::

    tracked ──> in the log ─────────────────┐
                     │  a checkpoint uses it │ not in the log, not used
                     ▼                       ▼
                used by checkpoints ────> deleted

A copy is kept as long as the log still has a set of its file, or a checkpoint uses it that is in
flight or the last confirmed one.  An aborted checkpoint ends its use and no other.  When the
remote file is deleted, its copy is deleted too, because no restore can need it.
Source: Flink, LocalChangelogRegistry and LocalChangelogRegistryImpl.  Deviations: all uses are
recorded, not only the last one, and `abort` is a call beside `discard_up_to_checkpoint`, so that
the abort of checkpoint N keeps what N-1 needs (H9); a copy that the log still has is not deleted,
because the next checkpoint would name a file that does not exist; deletions run on the same pool as
deletions of remote files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from statelog.arguments import Seconds, instance, seconds, whole_number
from statelog.errors import ClosedError, ObjectNotFoundError, StoreError, UsageError
from statelog.format.buffers import Buffers, pieces_of
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.runtime import Runtime, system_runtime
from statelog.store.verified import Source


class LocalDisk(Source, Protocol):
    """Accesses files by absolute path, from any thread; a disk may hang."""

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only at the end of the file."""
        ...

    def put(self, path: str, content: Buffers, temporary: str) -> None:
        """Write a file as *temporary* and rename it; after an `OSError`, nothing is left."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; raise `OSError` if that fails."""
        ...


class LocalFiles:
    """The implementation of `LocalDisk` for this host."""

    url = "file://"

    def get(self, path: str) -> memoryview:
        """Return the whole file."""
        return _read(path, 0, -1)

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only at the end of the file."""
        return _read(path, start, length)

    def put(self, path: str, content: Buffers, temporary: str) -> None:
        """Write a file as *temporary* and rename it, creating its folder if necessary."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            write_file(temporary, content)
            os.replace(temporary, path)
        except BaseException:
            remove_quietly(self, temporary)
            raise

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)


def remove_quietly(disk: LocalDisk, path: str) -> bool:
    """Try to remove a file, and return whether it was removed."""
    try:
        disk.remove(path)
    except OSError:
        return False
    return True


def write_file(path: str, content: Buffers) -> None:
    """Write a new file."""
    with open(path, "xb") as file:
        for piece in pieces_of(content):
            file.write(piece)


def _read(path: str, start: int, length: int) -> memoryview:
    if not os.path.isabs(path):
        raise StoreError(f"{path} is not an absolute path, so it is not a local copy", path=path)
    try:
        with open(path, "rb") as file:
            # A length of -1 reads to the end.
            file.seek(start)
            return memoryview(file.read(length))
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"local file {path} does not exist", path=path) from error
    except OSError as error:
        raise StoreError(f"cannot read local file {path}: {error}", path=path) from error


_log = logging.getLogger("statelog")

_NO_CHECKPOINT: Final = 0
"""The id in a handle without a checkpoint, which is never confirmed or aborted."""


@dataclass(slots=True)
class _Copy:
    """Whether the log contains change sets of the file, and which checkpoints use the copy."""

    in_log: bool = False
    uses: set[int] = field(default_factory=set)


class LocalChangelogRegistry(ClosesAtExit):
    """
    Tracks the local copies of one storage, and deletes copies that are not needed.

    Handles contain absolute paths of this host; inline handles are accepted and ignored.

    Args:
        disk: Stores the copies; None for this host's.
        runtime: Lock, and the pool that deletes; None for real ones, which `close` stops.
    """

    def __init__(self, *, disk: LocalDisk | None = None, runtime: Runtime | None = None) -> None:
        self._owns_runtime = runtime is None
        self._runtime = system_runtime() if runtime is None else runtime
        self._disk = disk if disk is not None else LocalFiles()
        self._copies: dict[str, _Copy] = {}
        self._confirmed: int | None = None
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
            path = _absolute(handle)
            with self._runtime.lock:
                self._copies.setdefault(path, _Copy()).uses.add(checkpoint_id)

    def claim(self, handles: Sequence[StreamStateHandle], checkpoint_id: int) -> bool:
        """
        Register all of *handles*, or none if a copy of any of them was deleted.

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
            # All or none: a handle with one missing copy cannot be read locally.
            alive = all(path in self._copies for path in paths)
            for path in paths if alive and checkpoint_id != _NO_CHECKPOINT else ():
                self._copies[path].uses.add(checkpoint_id)
        return alive

    def discard_up_to_checkpoint(self, checkpoint_id: int) -> None:
        """
        Record that a checkpoint is complete.

        No restore begins at an older one.  Copies that only older checkpoints (id <
        *checkpoint_id*) use are deleted, unless a writer's log still has sets of them.

        Thread: any.
        """
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        with self._runtime.lock:
            # Confirmations may arrive out of order; an older one ends no use of a newer checkpoint.
            self._confirmed = max(checkpoint_id, self._confirmed or checkpoint_id)
            unneeded = self._end_uses(lambda use: use < checkpoint_id)
        self._delete(unneeded)

    def abort(self, checkpoint_id: int) -> None:
        """
        Record that a checkpoint was aborted; copies used by other checkpoints stay.

        Thread: any.
        Source: Flink, FsStateChangelogWriter.reset, which discards up to *checkpoint_id* + 1 and
        so the copies of the last confirmed checkpoint (H9).
        """
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        with self._runtime.lock:
            if self._confirmed is not None and checkpoint_id <= self._confirmed:
                return  # too late: a restore would use it, or a newer one
            unneeded = self._end_uses(lambda use: use == checkpoint_id)
        self._delete(unneeded)

    def track(self, handle: FileStateHandle) -> None:
        """
        Track a new copy that is used by a log, until `release` or `drop` is called.

        Raises:
            UsageError: The handle's path is not absolute.

        Thread: any.
        """
        path = _absolute(handle)
        with self._runtime.lock:
            self._copies.setdefault(path, _Copy()).in_log = True

    def release(self, path: str) -> None:
        """
        Record that no log contains change sets of the file any longer.

        Thread: any.
        """
        with self._runtime.lock:
            if path in self._copies:
                self._copies[path].in_log = False
            unneeded = self._remove_unneeded([path])
        self._delete(unneeded)

    def drop(self, path: str) -> None:
        """
        Delete a copy because its remote file was deleted, even if it is in use.

        Thread: any.
        """
        with self._runtime.lock:
            dropped = [path] if self._copies.pop(path, None) is not None else []
            self._deleting += len(dropped)
        self._delete(dropped)

    def __contains__(self, handle: StreamStateHandle) -> bool:
        with self._runtime.lock:
            return isinstance(handle, FileStateHandle) and handle.path in self._copies

    def __len__(self) -> int:
        with self._runtime.lock:
            return len(self._copies)

    def close(self, timeout_s: Seconds = 5.0) -> None:
        """
        Stop tracking, keep the files for a restore, and wait for deletions in progress.

        Blocks: At most *timeout_s*, which is in seconds or a `timedelta`.   Thread: any.
        """
        limit_s = seconds(timeout_s, "timeout_s", low=0)
        with self._runtime.lock:
            # Deletions that run have left the map already, so only they are awaited.
            self._copies.clear()
            self._runtime.lock.wait_for(lambda: self._deleting == 0, limit_s)
        if self._owns_runtime:
            self._runtime.close(0.0)

    def _end_uses(self, over: Callable[[int], bool]) -> list[str]:
        """Remove uses, and return the copies to delete. Called under the lock."""
        for copy in self._copies.values():
            copy.uses = {use for use in copy.uses if not over(use)}
        return self._remove_unneeded(list(self._copies))

    def _remove_unneeded(self, paths: Iterable[str]) -> list[str]:
        """Stop tracking copies that are not needed, and return them. Called under the lock."""
        unneeded = []
        for path in paths:
            copy = self._copies.get(path)
            if copy is not None and not copy.in_log and not copy.uses:
                del self._copies[path]
                unneeded.append(path)
        self._deleting += len(unneeded)
        return unneeded

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._delete_copy(path)

    def _delete_copy(self, path: str) -> None:
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
