"""
Streams for writing the state of one checkpoint.

Small state stays in the handle, large state becomes one object.

Source: Flink, FsCheckpointStreamFactory: scopes, threshold (inclusive, at most 1 MiB), entropy in
names, no creation of directories; FsCheckpointStateOutputStream: ten attempts with new
names, and an unfinished stream leaves nothing.  Deviations:

* Paths are relative to the store, so there are no relative handles.
* An object store cannot append.  The stream keeps its bytes in memory and puts them at once in
  `close_and_get_handle`.  Only the size decides between inline and object, and no object exists
  before.  Small writes are collected in pieces of the buffer's size, so that many of them take
  little more memory than their bytes.
* A directory is a name in the store; an absolute one is taken as absolute, within the store's root.
* An attempt covers the whole put: one request creates the object and writes it.
* The handle carries the CRC-32C of the object.
"""

from __future__ import annotations

import enum
import io
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import ClassVar, Final

from statelog.arguments import instance, refused, text, whole_number
from statelog.checkpoint.state_stream import Entropy, random_name, read_stream
from statelog.errors import ClosedError, StoreError, UsageError
from statelog.format.buffers import Buffer, checksum
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.options import MIB, StreamOptions
from statelog.store import LocationPaths, ObjectStore
from statelog.store.location import local_path
from statelog.store.object_store import as_store
from statelog.store.verified import create

MAX_ATTEMPTS: Final = 10
"""Number of names to try for one object, as in Flink."""

PutObject = Callable[[Callable[[], str], Sequence[Buffer]], str]
"""Puts an object under a new name of its first argument, and returns the name."""

MAX_FILE_STATE_THRESHOLD: Final = MIB
"""The highest threshold, in bytes, up to which state may be stored in its handle."""
DEFAULT_THRESHOLD_BYTES: Final = StreamOptions().data_inline_threshold_bytes
"""State up to this size is stored in its handle, if the caller does not set a threshold."""
DEFAULT_WRITE_BUFFER_BYTES: Final = StreamOptions().write_buffer_size_bytes
"""Size of the pieces in which small writes are collected, if the caller does not set one."""


class FsCheckpointStateOutputStream(io.RawIOBase):
    """
    Collects the bytes of one piece of state; `close_and_get_handle` makes them durable.

    `close` alone discards them: an unfinished stream in a `with` block leaves nothing.

    Args:
        store: The store of a large state.
        directory: Folder of its object.
        threshold_bytes: State up to this size, inclusive, is stored in the handle.
        buffer_bytes: Size of the pieces that small writes are collected in; not below the
            threshold.
        entropy: Marker to replace in the folder, or None.
        new_name: Makes unique names.
        put: Puts the object, with its own retries; None for ten attempts at once.
        make_directory: Create a missing folder on local disk.

    Raises:
        UsageError: The buffer is smaller than the threshold.

    Thread: one at a time, except `close`, which any thread may call.
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
        put: PutObject | None = None,
        make_directory: bool = False,
    ) -> None:
        super().__init__()
        if buffer_bytes < threshold_bytes:
            raise UsageError(
                f"the write buffer ({buffer_bytes} bytes) is smaller than the threshold "
                f"({threshold_bytes} bytes); use a larger buffer"
            )
        self._store = store
        self._directory = directory
        self._threshold = threshold_bytes
        self._buffer_bytes = buffer_bytes
        self._buffer = bytearray()
        self._entropy = entropy
        self._new_name = new_name
        self._put_object = put
        self._make_directory = make_directory
        self._pieces: list[bytes] = []
        self._pieces_size = 0
        self._discarded = False

    def writable(self) -> bool:
        """Return True: the stream is writable."""
        return True

    def write(self, data: Buffer, /) -> int:  # type: ignore[override]
        """
        Write bytes, which are copied.

        Raises:
            ClosedError: The stream is closed (an empty write is allowed).
        """
        # Bytes are immutable, so only other buffers are copied.
        piece = data if data.__class__ is bytes else bytes(memoryview(data))
        size = len(piece)
        if not size:
            return 0
        if self._discarded:
            self._check_open("closed")
        buffer = self._buffer
        if len(buffer) + size > self._buffer_bytes:
            self._end_piece()
            # A large write is a piece of its own; copying it into the buffer would gain nothing.
            if size >= self._buffer_bytes:
                self._add_piece(piece)
                return size
        buffer += piece
        return size

    def _end_piece(self) -> None:
        if self._buffer:
            self._add_piece(bytes(self._buffer))
            self._buffer.clear()

    def _add_piece(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._pieces_size += len(piece)

    def get_pos(self) -> int:
        """Return the number of bytes written so far; Flink's name for `tell`."""
        return self.tell()

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._pieces_size + len(self._buffer)

    def flush(self) -> None:
        """Do nothing; `close_and_get_handle` writes the whole object."""

    def sync(self) -> None:
        """Do nothing, like `flush`; `close_and_get_handle` makes the bytes durable."""

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """
        Make the state durable, close the stream, and return its handle.

        Returns:
            None if no byte was written; the stream then stays open, as in Flink.  Up to the
            threshold a handle with the bytes, without a request to the store.  Above it the handle
            of one new object.

        Raises:
            ClosedError: The stream was closed before.
            StoreError: The directory does not exist on local disk; or ten puts under ten names
                failed, and their objects were deleted as far as possible.
            UploadFailedError: The attempts of *put* failed.

        Blocks: On the store, above the threshold.   Thread: the stream's.
        Source: Flink, FsCheckpointStateOutputStream.closeAndGetHandle; deviates: one put, here,
        writes all bytes.
        """
        self._end_piece()
        pieces = self._pieces  # `close` of another thread replaces the list
        size = sum(map(len, pieces))
        self._check_open("Stream has already been closed and discarded.")
        if not size:
            return None
        try:
            if size <= self._threshold:
                return ByteStreamStateHandle(self._new_path(), b"".join(pieces))
            return FileStateHandle(self._put(pieces, size), size, checksum(pieces))
        finally:
            self.close()

    def _put(self, pieces: Sequence[bytes], size: int) -> str:
        if not self._make_directory:
            _check_directory(self._store, self._directory, self._entropy)
        if self._put_object is not None:
            return self._put_object(self._new_path, pieces)
        cause: OSError | None = None
        path = ""
        # A new name for each attempt: the object of a failed one may still arrive.
        for _ in range(MAX_ATTEMPTS):
            path = self._new_path()
            try:
                create(self._store, path, pieces)
            except FileExistsError as error:  # the object of another writer: another name
                cause = error
            except OSError as error:  # also the error of a caller's own store
                cause = error
                self._delete_quietly(path)
            except BaseException:
                self._delete_quietly(path)
                raise
            else:
                return path
        raise StoreError(
            f"could not write {size} bytes of state to {path} in {self._store.url} "
            f"({MAX_ATTEMPTS} attempts, each under a new name): {cause}",
            path=path,
        ) from cause

    def _delete_quietly(self, path: str) -> None:
        """Try to delete the object of a put whose outcome is unknown."""
        try:
            self._store.delete([path])
        except Exception:
            return  # the error of the put is raised

    def _new_path(self) -> str:
        path = f"{self._directory}/{self._new_name()}"
        return path if self._entropy is None else self._entropy.inject(path)

    def _check_open(self, message: str) -> None:
        if self._discarded:
            raise ClosedError(f"{message} (state in {self._directory})", path=self._directory)

    def close(self) -> None:
        """
        Close the stream and discard its bytes; never raises.

        Thread: any.  During `close_and_get_handle` it returns its handle, or raises `ClosedError`.
        """
        self._discarded = True  # first: the other thread looks at it after it took the pieces
        self._pieces = []
        self._buffer.clear()
        super().close()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()


# The folders of `FsCheckpointStreamFactory`.


def _name_in_store(store: ObjectStore, directory: str | os.PathLike[str], name: str) -> str:
    """Return the name of a folder within the store; the folder may be an absolute path."""
    written = text(os.fspath(directory) if isinstance(directory, os.PathLike) else directory, name)
    root = local_path(store.url)
    if "://" in written:
        below = written.removeprefix(store.url.rstrip("/") + "/")
    elif (
        not written.startswith("/")
        or root is None
        or os.path.commonpath([root, os.path.normpath(written)]) != root
    ):
        below = written
    else:
        below = os.path.relpath(written, root)
    if "://" in below or below.startswith("/"):
        raise UsageError(
            f"{name} is {written}, which is not below {store.url}, the root of the store: pass a "
            "directory below the root, or open the store at a directory above"
        )
    if below in ("", "."):
        raise UsageError(f"{name} is {written!r}; pass a directory below {store.url}")
    return below


def _check_directory(store: ObjectStore, directory: str, entropy: Entropy | None) -> None:
    """Check that a folder exists, unless the store has no folders or paths are randomized."""
    root = local_path(store.url)
    if root is None or entropy is not None or os.path.isdir(os.path.join(root, directory)):
        return
    raise StoreError(
        f"the directory {directory} for checkpoint streams does not exist in {store.url}: create it, "
        "or correct the name",
        path=directory,
        url=store.url,
        operation="put",
    )


# Copy state between folders of one store, for `FsCheckpointStreamFactory.duplicate`.


def duplicate_state(
    store: ObjectStore,
    handles: Sequence[StreamStateHandle],
    new_path: Callable[[str | None], str],
    attempts: int,
) -> list[StreamStateHandle]:
    """Copy all objects of *handles*, or none if one fails."""
    copies: list[StreamStateHandle] = []
    try:
        for handle in handles:
            if isinstance(handle, ByteStreamStateHandle):
                copies.append(handle)
            elif isinstance(handle, FileStateHandle):
                copies.append(_copy(store, handle, new_path, attempts))
            else:
                raise refused("each of handles", "a stream state handle", handle)
    except BaseException:
        _delete_quietly(store, [copy.path for copy in copies if isinstance(copy, FileStateHandle)])
        raise
    return copies


def _copy(
    store: ObjectStore,
    handle: FileStateHandle,
    new_path: Callable[[str | None], str],
    attempts: int,
) -> FileStateHandle:
    # Without a checksum it may be a changelog file, whose handle counts uncompressed bytes.
    is_verifiable = handle.crc32c is not None
    data = read_stream(store, handle) if is_verifiable else store.get(handle.path)
    # The file's own name first, then new ones.
    with suppress(OSError):  # an object of this name may be another copy: it is not deleted
        path = new_path(handle.path.rpartition("/")[2])
        store.put_if_absent(path, data)
        return replace(handle, path=path)
    for _ in range(attempts - 1):
        path = new_path(None)
        try:
            create(store, path, data)
        except FileExistsError:
            continue
        except BaseException:
            _delete_quietly(store, [path])
            raise
        return replace(handle, path=path)
    raise StoreError(
        f"could not copy {handle.path} in {store.url}: all {attempts} names that were tried exist already; "
        "try again",
        path=handle.path,
    )


def _delete_quietly(store: ObjectStore, paths: list[str]) -> None:
    """Try to delete copies; garbage collection deletes the ones that remain."""
    try:
        store.delete(paths)
    except Exception:
        return  # the first error is raised


class CheckpointedStateScope(enum.Enum):
    """Who may use the bytes besides the checkpoint that wrote them."""

    EXCLUSIVE = "exclusive"
    """No other checkpoint: they are deleted with the checkpoint that wrote them."""
    SHARED = "shared"
    """Later checkpoints."""


class FsCheckpointStreamFactory:
    """
    Creates output streams for the state of one checkpoint.

    Construction of the factory or of a stream sends no request.

    Args:
        store: The store of the objects, or its path or URL.
        exclusive_directory: Folder for state of this checkpoint alone (`chk-<id>`): a name in the
            store, or an absolute path or URL below its root.
        shared_directory: Folder for state shared among checkpoints, likewise.
        threshold_bytes: State up to this size, inclusive, is stored in the handle; 0 to 1 MiB.
        write_buffer_bytes: Small writes are collected in pieces of this size, >= 0; raised to the
            threshold.
        task_owned_directory: Folder for state that tasks own (snapshots); None for the shared one.
        entropy: Marker to replace in the folders, or None.
        new_name: Makes unique names.
        put: Puts the objects, such as `FsStateChangelogStorage.objects.put`; None for ten attempts
            at once.
        make_directories: Create missing folders on local disk; without it they must exist.

    Raises:
        UsageError: A size is out of range, or a folder is empty or not below the root of the store.

    Source: Flink, FsCheckpointStreamFactory; deviates: paths are relative to the store.
    """

    MAX_FILE_STATE_THRESHOLD: ClassVar = MAX_FILE_STATE_THRESHOLD
    """Largest *threshold_bytes*."""

    def __init__(
        self,
        store: str | os.PathLike[str] | ObjectStore,
        exclusive_directory: str | os.PathLike[str],
        shared_directory: str | os.PathLike[str],
        threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        write_buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES,
        *,
        task_owned_directory: str | os.PathLike[str] | None = None,
        entropy: Entropy | None = None,
        new_name: Callable[[], str] = random_name,
        put: PutObject | None = None,
        make_directories: bool = False,
    ) -> None:
        self._store = as_store(store, "store", ("put_if_absent", "get", "delete"))
        self._exclusive, self._shared, self._task_owned = (
            _name_in_store(self._store, directory, name)
            for name, directory in (
                ("exclusive_directory", exclusive_directory),
                ("shared_directory", shared_directory),
                (
                    "task_owned_directory",
                    shared_directory if task_owned_directory is None else task_owned_directory,
                ),
            )
        )
        if entropy is not None:
            instance(entropy, "entropy", Entropy, "an Entropy")
        whole_number(threshold_bytes, "threshold_bytes")
        whole_number(write_buffer_bytes, "write_buffer_bytes")
        if threshold_bytes < 0:
            raise UsageError(f"threshold_bytes is {threshold_bytes}; it must be at least 0")
        if write_buffer_bytes < 0:
            raise UsageError(f"write_buffer_bytes is {write_buffer_bytes}; it must be at least 0")
        if threshold_bytes > MAX_FILE_STATE_THRESHOLD:
            raise UsageError(
                f"threshold_bytes is {threshold_bytes}; it must be at most "
                f"{MAX_FILE_STATE_THRESHOLD}"
            )
        self._threshold = threshold_bytes
        self._write_buffer = write_buffer_bytes
        self._entropy = entropy
        self._new_name = new_name
        self._put = put
        self._make_directories = make_directories

    @classmethod
    def for_checkpoint(
        cls,
        store: ObjectStore,
        checkpoint_id: int,
        *,
        paths: LocationPaths | None = None,
        threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        write_buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES,
        put: PutObject | None = None,
    ) -> FsCheckpointStreamFactory:
        """
        Return the factory for a checkpoint in a location; raises like the class.

        Its folders are created on local disk with the first object.

        Args:
            store: The store of the objects.
            checkpoint_id: The checkpoint, >= 0; its exclusive folder is `chk-<id>`.
            paths: Names below a folder of the store; None for its root.
            threshold_bytes: As for the class.
            write_buffer_bytes: As for the class.
            put: As for the class.
        """
        paths = paths if paths is not None else LocationPaths()
        return cls(
            store,
            exclusive_directory=paths.checkpoint(checkpoint_id),
            shared_directory=paths.shared(),
            task_owned_directory=paths.task_owned(),
            threshold_bytes=threshold_bytes,
            write_buffer_bytes=write_buffer_bytes,
            put=put,
            make_directories=True,
        )

    @classmethod
    def from_options(
        cls,
        store: ObjectStore,
        checkpoint_id: int,
        options: StreamOptions,
        *,
        paths: LocationPaths | None = None,
    ) -> FsCheckpointStreamFactory:
        """
        Return the factory for one checkpoint, with the sizes set in *options*.

        Args:
            store: Where objects are written.
            checkpoint_id: The checkpoint, >= 0; its exclusive folder is `chk-<id>`.
            options: The section `stream` of the options.
            paths: Names below a folder of the store; None for its root.

        Raises:
            UsageError: An argument is of another class.
        """
        instance(options, "options", StreamOptions, "StreamOptions")
        return cls.for_checkpoint(
            store,
            checkpoint_id,
            paths=paths,
            threshold_bytes=options.data_inline_threshold_bytes,
            write_buffer_bytes=options.write_buffer_size_bytes,
        )

    def __repr__(self) -> str:
        return f"File Stream Factory @ {self._exclusive}"

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> FsCheckpointStateOutputStream:
        """
        Return a stream for state with the given scope, without sending a request.

        Raises:
            UsageError: *scope* is not a `CheckpointedStateScope`.

        Thread: any; the stream then belongs to one.
        """
        return self._stream(self._directory_of(scope))

    def _directory_of(self, scope: CheckpointedStateScope) -> str:
        instance(scope, "scope", CheckpointedStateScope, "a CheckpointedStateScope")
        exclusive = scope is CheckpointedStateScope.EXCLUSIVE
        return self._exclusive if exclusive else self._shared

    def create_task_owned_state_stream(self) -> FsCheckpointStateOutputStream:
        """
        Return a stream for state that the task owns, without sending a request.

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
            put=self._put,
            make_directory=self._make_directories,
        )

    def can_fast_duplicate(self, handle: StreamStateHandle, scope: CheckpointedStateScope) -> bool:
        """Return False, because `duplicate` reads and writes the bytes."""
        del handle, scope
        return False

    def duplicate(
        self, handles: Sequence[StreamStateHandle], scope: CheckpointedStateScope
    ) -> list[StreamStateHandle]:
        """
        Copy state to the folder for *scope*, and return the handles of the copies.

        Objects keep their file names if these are free and the store answers the first request;
        else they get new names.  Inline state is returned unchanged.

        Raises:
            UsageError: *scope* or a handle is of another class.
            ObjectNotFoundError: An object does not exist.
            CorruptionError: An object does not have the checksum of its handle.
            StoreError: The folder does not exist on local disk, or the store failed.  After any of
                these errors no copy remains.

        Blocks: On the store, once to read and once to write each object.   Thread: any.
        Source: Flink, FsCheckpointStreamFactory.duplicate; deviates: every store supports it,
        because the bytes pass through this process.
        """
        directory = self._directory_of(scope)
        if not self._make_directories:
            _check_directory(self._store, directory, self._entropy)

        def new_path(name: str | None) -> str:
            path = f"{directory}/{self._new_name() if name is None else name}"
            return path if self._entropy is None else self._entropy.inject(path)

        return duplicate_state(self._store, handles, new_path, MAX_ATTEMPTS)
