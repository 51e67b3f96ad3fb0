"""
A task's file on the local disk, for data that does not fit into memory.

The file has no name: it is deleted when it is created, and the system frees its space when the task
ends, also by a crash.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import BinaryIO, Final

import pyarrow as pa

from statelog.errors import StoreError

_SPARK_FOLDERS: Final = "SPARK_LOCAL_DIRS"


@dataclass(frozen=True, slots=True)
class Piece:
    """
    The position of a piece in the file.

    Args:
        offset: Position of its first byte in the file.
        size: Its bytes.
        rows: Its number of rows, if it is a record batch.
        cost: Estimated bytes of these rows as Python objects.
    """

    offset: int
    size: int
    rows: int = 0
    cost: int = 0


class SpillFile:
    """
    Stores bytes and record batches as pieces of one unnamed file.

    Thread: one at a time.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder or os.environ.get(_SPARK_FOLDERS, "").split(",")[0] or None
        self._file: BinaryIO | None = None
        self._end = 0

    @property
    def size_bytes(self) -> int:
        """The number of bytes written so far."""
        return self._end

    def write(self, data: bytes | memoryview | pa.Buffer) -> Piece:
        """Append bytes and return their position."""
        view = memoryview(data)
        try:
            if self._file is None:
                if self._folder is not None:
                    os.makedirs(self._folder, mode=0o700, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            written = 0
            # An unbuffered write may take a part of the bytes only.
            while written < len(view):
                written += self._file.write(view[written:]) or 0
        except OSError as error:
            where = self._folder or tempfile.gettempdir()
            raise StoreError(
                f"the task cannot write its input to the local disk in {where}: {error}. The input "
                f"is larger than the memory budget and needs {self._end + len(view)} bytes or more "
                "there. Free disk space, set state.local-directory, or read fewer rows per micro-batch "
                "(maxFilesPerTrigger, maxOffsetsPerTrigger)"
            ) from error
        piece = Piece(self._end, len(view))
        self._end += len(view)
        return piece

    def write_batch(self, batch: pa.RecordBatch, cost: int) -> Piece:
        """Append a record batch; raises and blocks in the same way as `write`."""
        piece = self.write(batch.serialize())
        return Piece(piece.offset, piece.size, batch.num_rows, cost)

    def read(self, piece: Piece) -> bytes:
        """Read the bytes of a piece."""
        if self._file is None or not piece.size:
            return b""
        parts: list[bytes] = []
        start = piece.offset
        missing = piece.size
        while missing:
            data = os.pread(self._file.fileno(), missing, start)
            if not data:
                raise StoreError(f"the task's file on the local disk ends before byte {start}")
            parts.append(data)
            start = start + len(data)
            missing = missing - len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_batch(self, piece: Piece, schema: pa.Schema) -> pa.RecordBatch:
        """Read the record batch stored in a piece."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.read(piece)), schema)

    def close(self) -> None:
        """Free the disk space; may be called more than once."""
        if self._file is not None:
            self._file.close()
            self._file = None
