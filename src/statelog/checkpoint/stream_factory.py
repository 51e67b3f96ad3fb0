"""
Streams for snapshots: small ones stay in the handle, large ones become one object.

Source: Flink, FsCheckpointStreamFactory and FsCheckpointStateOutputStream: scopes, threshold
(inclusive, at most 1 MiB), ten attempts with new names, no look at and no making of directories,
entropy in names, a stream that nobody finished leaves nothing.  Deviations:

* An object store cannot append.  The stream keeps its bytes in memory and puts them at once in
  `close_and_get_handle`; so only the size decides between inline and object, and an object never
  exists before.  The write buffer is kept as an option, because it bounds nothing else here but
  what Flink's checks bound.
* Paths are relative to the store, so there are no relative handles; an attempt covers the whole
  put, because making the object and writing it are one request.
* The handle carries the CRC-32C of the object.
"""

from __future__ import annotations

import enum
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from statelog.arguments import acting, instance, text, whole_number
from statelog.checkpoint.duplicate import duplicate_state
from statelog.errors import ClosedError, StoreError, UsageError
from statelog.format.buffers import checksum
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.store import LocationPaths, ObjectStore
from statelog.store.api import Buffer

MAX_FILE_STATE_THRESHOLD: Final = 1024 * 1024
DEFAULT_THRESHOLD_BYTES: Final = 20 * 1024
DEFAULT_WRITE_BUFFER_BYTES: Final = 4096
MAX_ATTEMPTS: Final = 10
_ENTROPY_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class CheckpointedStateScope(enum.Enum):
    """Who may use the bytes besides the checkpoint that wrote them."""

    EXCLUSIVE = "exclusive"
    """Nobody: they live and die with one checkpoint."""
    SHARED = "shared"
    """Later checkpoints."""


@dataclass(frozen=True, slots=True)
class Entropy:
    """
    Random characters in names, to spread objects over the partitions of a store.

    Args:
        marker: What to replace in a path, its first occurrence; not empty.
        length: How many random characters take its place, >= 1.

    Raises:
        UsageError: The marker is empty or the length not positive.
    """

    marker: str
    length: int = 4

    def __post_init__(self) -> None:
        text(self.marker, "marker")
        whole_number(self.length, "length")
        if not self.marker or self.length < 1:
            raise UsageError(f"entropy needs a marker and a length >= 1, not {self!r}")

    def inject(self, path: str) -> str:
        """Return *path* with the marker replaced; unchanged without one.  For data."""
        if self.marker not in path:
            return path
        drawn = os.urandom(self.length)
        characters = "".join(_ENTROPY_ALPHABET[byte % len(_ENTROPY_ALPHABET)] for byte in drawn)
        return path.replace(self.marker, characters, 1)

    def remove(self, path: str) -> str:
        """Return *path* without the marker (and without an empty folder).  For metadata."""
        if self.marker not in path:
            return path
        parts = path.replace(self.marker, "", 1).split("/")
        return "/".join(part for part in parts if part)


def random_name() -> str:
    """Return a random name in the form of a UUID, as Flink's files have."""
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class FsCheckpointStreamFactory:
    """
    Makes output streams for the state of one checkpoint.

    Making the factory or a stream contacts nothing.

    Args:
        store: Where objects go.
        exclusive_directory: Folder for state of this checkpoint alone (`chk-<id>`).
        shared_directory: Folder for state shared among checkpoints.
        task_owned_directory: Folder for state that tasks own (materialization).
        threshold_bytes: State up to this size, inclusive, stays in the handle; 0 to 1 MiB.
        write_buffer_bytes: As in Flink, >= 0; raised to the threshold.
        entropy: Marker to replace in the folders, or None.
        new_name: Makes unique names.

    Raises:
        UsageError: A size is out of range, or a folder is missing.

    Source: Flink, FsCheckpointStreamFactory; deviates as the module says.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        exclusive_directory: str,
        shared_directory: str,
        task_owned_directory: str | None = None,
        threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        write_buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES,
        entropy: Entropy | None = None,
        new_name: Callable[[], str] = random_name,
    ) -> None:
        acting(store, "store", ("put_if_absent", "get", "delete"), "an ObjectStore")
        text(exclusive_directory, "exclusive_directory")
        text(shared_directory, "shared_directory")
        if task_owned_directory is not None:
            text(task_owned_directory, "task_owned_directory")
        if entropy is not None:
            instance(entropy, "entropy", Entropy, "an Entropy")
        whole_number(threshold_bytes, "threshold_bytes")
        whole_number(write_buffer_bytes, "write_buffer_bytes")
        if threshold_bytes < 0:
            raise UsageError("the threshold for file state size must be zero or larger")
        if write_buffer_bytes < 0:
            raise UsageError("the write buffer size must be zero or larger")
        if threshold_bytes > MAX_FILE_STATE_THRESHOLD:
            raise UsageError(
                f"the threshold for file state size cannot be larger than "
                f"{MAX_FILE_STATE_THRESHOLD} (it is {threshold_bytes})"
            )
        if not exclusive_directory or not shared_directory:
            raise UsageError("the exclusive and the shared directory must be given")
        self._store = store
        self._exclusive = exclusive_directory
        self._shared = shared_directory
        self._task_owned = task_owned_directory or shared_directory
        self._threshold = threshold_bytes
        self._write_buffer = write_buffer_bytes
        self._entropy = entropy
        self._new_name = new_name

    @classmethod
    def for_checkpoint(
        cls,
        store: ObjectStore,
        checkpoint_id: int,
        *,
        paths: LocationPaths | None = None,
        threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        write_buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES,
    ) -> FsCheckpointStreamFactory:
        """
        Return the factory for one checkpoint of a location; raises `UsageError` like `cls`.

        Args:
            store: Where objects go.
            checkpoint_id: The checkpoint, >= 0; its exclusive folder is `chk-<id>`.
            paths: Names below a folder of the store; None for its root.
            threshold_bytes: As for the class.
            write_buffer_bytes: As for the class.
        """
        paths = paths if paths is not None else LocationPaths()
        return cls(
            store,
            exclusive_directory=paths.checkpoint(checkpoint_id),
            shared_directory=paths.shared(),
            task_owned_directory=paths.task_owned(),
            threshold_bytes=threshold_bytes,
            write_buffer_bytes=write_buffer_bytes,
        )

    def __repr__(self) -> str:
        return f"File Stream Factory @ {self._exclusive}"

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> FsCheckpointStateOutputStream:
        """
        Return a stream for state of the given scope; contacts nothing.

        Raises:
            UsageError: *scope* is no `CheckpointedStateScope`.

        Thread: any; the stream then belongs to one.
        """
        return self._stream(self._directory_of(scope))

    def _directory_of(self, scope: CheckpointedStateScope) -> str:
        instance(scope, "scope", CheckpointedStateScope, "a CheckpointedStateScope")
        exclusive = scope is CheckpointedStateScope.EXCLUSIVE
        return self._exclusive if exclusive else self._shared

    def create_task_owned_state_stream(self) -> FsCheckpointStateOutputStream:
        """
        Return a stream for state that the task owns; contacts nothing.

        Thread: any; the stream then belongs to one.
        """
        return self._stream(self._task_owned)

    def _stream(self, directory: str) -> FsCheckpointStateOutputStream:
        return FsCheckpointStateOutputStream(
            self._store,
            directory,
            threshold_bytes=self._threshold,
            buffer_bytes=max(self._write_buffer, self._threshold),
            entropy=self._entropy,
            new_name=self._new_name,
        )

    def can_fast_duplicate(self, handle: StreamStateHandle, scope: CheckpointedStateScope) -> bool:
        """Return whether the store itself can copy state: never; `duplicate` reads and writes."""
        del handle, scope
        return False

    def duplicate(
        self, handles: Sequence[StreamStateHandle], scope: CheckpointedStateScope
    ) -> list[StreamStateHandle]:
        """
        Copy state into the folder of *scope* and return the handles of the copies, in order.

        Objects keep their file names where these are free; inline state is returned as it is.

        Raises:
            UsageError: *scope* or a handle is of another class.
            ObjectNotFoundError: An object does not exist.
            CorruptionError: An object does not have the checksum of its handle.
            StoreError: The store failed.  Of all these, none leaves a copy behind.

        Blocks: On the store, once to read and once to write each object.   Thread: any.
        Source: Flink, FsCheckpointStreamFactory.duplicate; deviates: every store can do it, as the
        bytes pass through this process.
        """
        directory = self._directory_of(scope)

        def new_path(name: str | None) -> str:
            path = f"{directory}/{self._new_name() if name is None else name}"
            return path if self._entropy is None else self._entropy.inject(path)

        return duplicate_state(self._store, handles, new_path, MAX_ATTEMPTS)


class FsCheckpointStateOutputStream(io.RawIOBase):
    """
    Takes the bytes of one piece of state; `close_and_get_handle` makes them durable.

    `close` without it discards: a stream in a `with` block leaves nothing unless it was finished.

    Args:
        store: Where a large state goes.
        directory: Folder of its object.
        threshold_bytes: State up to this size, inclusive, stays in the handle.
        buffer_bytes: As in Flink; not below the threshold.
        entropy: Marker to replace in the folder, or None.
        new_name: Makes unique names.

    Raises:
        UsageError: The buffer is smaller than the threshold.

    Thread: one at a time.
    """

    def __init__(
        self,
        store: ObjectStore,
        directory: str,
        *,
        threshold_bytes: int,
        buffer_bytes: int,
        entropy: Entropy | None = None,
        new_name: Callable[[], str] = random_name,
    ) -> None:
        super().__init__()
        if buffer_bytes < threshold_bytes:
            raise UsageError(
                f"the buffer of {buffer_bytes} bytes is smaller than the threshold of "
                f"{threshold_bytes}"
            )
        self._store = store
        self._directory = directory
        self._threshold = threshold_bytes
        self._entropy = entropy
        self._new_name = new_name
        self._pieces: list[bytes] = []
        self._size = 0
        self._discarded = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Buffer, /) -> int:  # type: ignore[override]
        """
        Take bytes in; they are copied.

        Raises:
            ClosedError: The stream is closed (writing nothing is allowed all the same).
        """
        piece = data if isinstance(data, bytes) else bytes(memoryview(data))
        if piece:
            self._check_open("closed")
            self._pieces.append(piece)
            self._size += len(piece)
        return len(piece)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def flush(self) -> None:
        """Do nothing: an object store has nothing between absent and whole."""

    def sync(self) -> None:
        """Do nothing, as `flush`; durability comes with `close_and_get_handle`."""

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """
        Make the state durable, close the stream, and return its handle.

        Returns:
            Nothing (None) if nothing was written; the stream then stays open, as in Flink.  A
            handle that carries the bytes up to the threshold, without a request to the store.
            Else the handle of one new object.

        Raises:
            ClosedError: The stream was closed before.
            StoreError: Ten puts under ten names failed; nothing is left of them as far as that
                could be told to the store.

        Blocks: On the store, above the threshold.   Thread: the stream's.
        Source: Flink, FsCheckpointStateOutputStream.closeAndGetHandle; deviates as the module says.
        """
        self._check_open("Stream has already been closed and discarded.")
        if not self._size:
            return None
        try:
            if self._size <= self._threshold:
                return ByteStreamStateHandle(self._new_path(), b"".join(self._pieces))
            return FileStateHandle(self._put(), self._size, checksum(self._pieces))
        finally:
            self.close()

    def _put(self) -> str:
        cause: OSError | None = None
        path = ""
        for _ in range(MAX_ATTEMPTS):
            path = self._new_path()
            try:
                self._store.put_if_absent(path, self._pieces)
            except FileExistsError as error:  # the object of another writer: another name
                cause = error
            except OSError as error:  # also what a store of the caller raises
                cause = error
                self._delete_quietly(path)
            except BaseException:
                self._delete_quietly(path)
                raise
            else:
                return path
        raise StoreError(
            f"could not write {self._size} bytes of state to {path} in {self._store.url} "
            f"({MAX_ATTEMPTS} attempts, each under a new name): {cause}",
            path=path,
        ) from cause

    def _delete_quietly(self, path: str) -> None:
        """Take back a put whose outcome is unknown; a sweep finds it if this fails as well."""
        try:
            self._store.delete([path])
        except Exception:
            return  # the error of the put says more

    def _new_path(self) -> str:
        path = f"{self._directory}/{self._new_name()}"
        return path if self._entropy is None else self._entropy.inject(path)

    def _check_open(self, message: str) -> None:
        if self._discarded:
            raise ClosedError(f"{message} (state in {self._directory})", path=self._directory)

    def close(self) -> None:
        """Close the stream and forget its bytes unless a handle was taken; never raises."""
        self._discarded = True
        self._pieces = []
        super().close()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()
