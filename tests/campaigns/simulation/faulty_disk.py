"""
A disk in memory with faults: errors, hangs, torn writes, and damaged bytes.

The test sets the `Fault` of the next write, as with `FaultyStore`.  A torn write raises no error, as
on a real disk.
"""

from __future__ import annotations

import random

from statelog.errors import ObjectNotFoundError
from statelog.store.api import Buffers
from statelog.testing.faulty_store import Fault, FaultKind, OddError, joined


class FaultyDisk:
    """
    A `LocalDisk` in memory.

    `files` contains the stored bytes.  The next write consumes `next_fault`.
    """

    url = "faulty-disk://"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.files: dict[str, bytes] = {}
        self.next_fault: Fault | None = None
        self.refusal_rate = 0.0

    def get(self, path: str) -> memoryview:
        if path not in self.files:
            raise ObjectNotFoundError(f"no local file {path}", path=path)
        return memoryview(self.files[path])

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only where the file ends."""
        return self.get(path)[start : start + length]

    def put(self, path: str, content: Buffers, temporary: str) -> None:
        del temporary  # here a write is one step
        fault, self.next_fault = self.next_fault, None
        kind = FaultKind.NONE if fault is None else fault.kind
        data = joined(content)
        match kind:
            case FaultKind.NONE | FaultKind.SILENT:
                self.files[path] = data
            case FaultKind.TORN:
                self.files[path] = data[: len(data) // 2]
            case FaultKind.ODD_ERROR:
                raise OddError(f"odd fault at {path}")
            case (
                FaultKind.ERROR
                | FaultKind.LOST_ANSWER
                | FaultKind.HANG
                | FaultKind.CONFLICT
                | FaultKind.CONFLICT_THEN_DONE
            ):
                raise OSError(28, f"no space left for {path}")

    def remove(self, path: str) -> None:
        if self._rng.random() < self.refusal_rate:
            raise OSError(5, f"input/output error at {path}")
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]

    def rot(self) -> None:
        whole = sorted(path for path, data in self.files.items() if data)
        if whole:
            path = self._rng.choice(whole)
            data = bytearray(self.files[path])
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            self.files[path] = bytes(data)
