"""
A stream for one piece of state: small state stays in the handle, large state becomes one object.

Source: Flink, FsCheckpointStateOutputStream: ten attempts with new names, and an unfinished stream
leaves nothing.  Deviations:

* An object store cannot append.  The stream keeps its bytes in memory and puts them at once in
  `close_and_get_handle`.  Only the size decides between inline and object, and no object exists
  before.  Small writes are collected in pieces of the buffer's size, so that many of them take
  little more memory than their bytes.
* An attempt covers the whole put: one request creates the object and writes it.
* The handle carries the CRC-32C of the object.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from statelog.checkpoint.object_names import Entropy, random_name
from statelog.errors import ClosedError, StoreError, UsageError
from statelog.flink_names import FlinkNames
from statelog.format.buffers import Buffer, checksum
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.store import ObjectStore

MAX_ATTEMPTS: Final = 10

PutObject = Callable[[Callable[[], str], Sequence[Buffer]], str]
"""Puts an object under a new name of its first argument, and returns the name."""


class FsCheckpointStateOutputStream(io.RawIOBase, FlinkNames):
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
        put: Puts the object, by a policy of its own; None for ten attempts at once.

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
        put: PutObject | None = None,
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
        self._buffer_bytes = buffer_bytes
        self._buffer = bytearray()
        self._entropy = entropy
        self._new_name = new_name
        self._put_object = put
        self._pieces: list[bytes] = []
        self._pieces_size = 0
        self._discarded = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Buffer, /) -> int:  # type: ignore[override]
        """
        Write bytes, which are copied.

        Raises:
            ClosedError: The stream is closed (an empty write is allowed).
        """
        piece = data if data.__class__ is bytes else bytes(memoryview(data))
        size = len(piece)
        if not size:
            return 0
        if self._discarded:
            self._check_open("closed")
        buffer = self._buffer
        if len(buffer) + size > self._buffer_bytes:
            self._end_piece()
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
        """Do nothing: an object appears whole, at `close_and_get_handle`."""

    def sync(self) -> None:
        """Do nothing, as `flush`: `close_and_get_handle` makes the bytes durable."""

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """
        Make the state durable, close the stream, and return its handle.

        Returns:
            None if no byte was written; the stream then stays open, as in Flink.  Up to the
            threshold a handle with the bytes, without a request to the store.  Above it the handle
            of one new object.

        Raises:
            ClosedError: The stream was closed before.
            StoreError: Ten puts under ten names failed; their objects were deleted as far as
                possible.
            UploadFailedError: The same, where the stream has a policy of its own.

        Blocks: On the store, above the threshold.   Thread: the stream's.
        Source: Flink, FsCheckpointStateOutputStream.closeAndGetHandle; deviates as the module says.
        """
        self._check_open("Stream has already been closed and discarded.")
        self._end_piece()
        size = self._pieces_size
        if not size:
            return None
        try:
            if size <= self._threshold:
                return ByteStreamStateHandle(self._new_path(), b"".join(self._pieces))
            return FileStateHandle(self._put(), size, checksum(self._pieces))
        finally:
            self.close()

    def _put(self) -> str:
        if self._put_object is not None:
            return self._put_object(self._new_path, self._pieces)
        cause: OSError | None = None
        path = ""
        for _ in range(MAX_ATTEMPTS):
            path = self._new_path()
            try:
                self._store.put_if_absent(path, self._pieces)
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
            f"could not write {self._pieces_size} bytes of state to {path} in {self._store.url} "
            f"({MAX_ATTEMPTS} attempts, each under a new name): {cause}",
            path=path,
        ) from cause

    def _delete_quietly(self, path: str) -> None:
        """Delete the object of a put with unknown outcome, if possible."""
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
        """Close the stream and drop its bytes; never raises."""
        self._discarded = True
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
