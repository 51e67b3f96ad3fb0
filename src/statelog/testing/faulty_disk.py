"""
A disk of a host in memory, which may fail, hang, lie about what it wrote, and rot.

What becomes of a write is a `Fault`, put in place by whoever drives the disk, as with
`FaultyStore`.  A torn write raises nothing: that is how disks lie.
"""

from __future__ import annotations

import random

from statelog.errors import ObjectNotFoundError
from statelog.store.api import Buffers
from statelog.testing.faulty_store import Fault, FaultKind, OddError, joined


class FaultyDisk:
    """
    A `LocalDisk` in memory.

    `files` is the truth.  `next_fault` is used up by the next write.

    Args:
        rng: Decides which removals are refused.
    """

    url = "faulty-disk://"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.files: dict[str, bytes] = {}
        self.next_fault: Fault | None = None
        self.refusal_rate = 0.0

    def get(self, path: str) -> memoryview:
        """Return the whole file, or raise `ObjectNotFoundError`."""
        if path not in self.files:
            raise ObjectNotFoundError(f"no local file {path}", path=path)
        return memoryview(self.files[path])

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only where the file ends."""
        return self.get(path)[start : start + length]

    def put(self, path: str, content: Buffers, temporary: str) -> None:
        """Write a file, as far as the fault lets it."""
        del temporary  # what has no name yet does not outlive the write here
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
                | FaultKind.CONFLICT
                | FaultKind.CONFLICT_THEN_DONE
            ):
                raise OSError(28, f"no space left for {path}")
            case FaultKind.HANG:
                pass

    def remove(self, path: str) -> None:
        """Remove a file, or refuse."""
        if self._rng.random() < self.refusal_rate:
            raise OSError(5, f"input/output error at {path}")
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]

    def rot(self) -> None:
        """Flip a bit of some file."""
        whole = sorted(path for path, data in self.files.items() if data)
        if whole:
            path = self._rng.choice(whole)
            data = bytearray(self.files[path])
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            self.files[path] = bytes(data)
