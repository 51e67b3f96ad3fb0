"""
An in-memory store with configurable faults.

A `Fault` determines one operation: its duration, whether the object appears, and whether the answer
is correct.  The test sets the next fault; without one every operation succeeds.
"""

from __future__ import annotations

import datetime as dt
import enum
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from statelog.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from statelog.format.buffers import pieces_of
from statelog.store.api import Buffers, ObjectInfo

_EPOCH: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_MS: Final = 1_000_000


class FaultKind(enum.Enum):
    """How a fault affects an operation."""

    NONE = "none"
    ERROR = "error"
    """The operation has no effect and raises `StoreError`."""
    ODD_ERROR = "odd error"
    """The operation has no effect and raises an error that is not an `OSError`."""
    TORN = "torn write"
    """Half of the object appears, and the operation raises `StoreError`."""
    LOST_ANSWER = "lost answer"
    """The operation takes effect and raises `StoreError`."""
    HANG = "hang"
    """The operation has no effect and raises `StoreError`, very late or never."""
    SILENT = "done, but hangs"
    """The operation takes effect and returns very late or never."""
    CONFLICT = "conflict"
    """No effect; `put_if_absent` raises `ObjectExistsError`, as for S3's 409, although no object
    has the name.  Other operations raise `StoreError`."""
    CONFLICT_THEN_DONE = "conflict, then done"
    """Like `CONFLICT`; the object appears at the next `put_if_absent` of the name, as if an earlier
    request of the same client had completed then."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault in one operation: its kind, and how long the answer takes."""

    kind: FaultKind = FaultKind.NONE
    latency_ns: int = _MS


class OddError(Exception):
    """An error that stores are not supposed to raise."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """
    How often each kind of fault occurs.

    Args:
        error_rate: Part of all operations that fail, 0 to 1.
        slow_rate: Part of the others that take up to twenty times as long.
        latency_ns: Usual time of an operation.
        hangs: Whether operations may hang without end.
    """

    error_rate: float = 0.0
    slow_rate: float = 0.0
    latency_ns: int = 5 * _MS
    hangs: bool = True

    def draw(self, rng: random.Random) -> Fault:
        """Draw the fault for the next operation."""
        latency_ns = rng.randrange(self.latency_ns // 2, self.latency_ns * 2)
        if rng.random() < self.slow_rate:
            latency_ns *= rng.randrange(2, 20)
        if rng.random() >= self.error_rate:
            return Fault(FaultKind.NONE, latency_ns)
        kinds = [FaultKind.ERROR, FaultKind.ODD_ERROR, FaultKind.TORN, FaultKind.LOST_ANSWER]
        if self.hangs:
            kinds += [FaultKind.HANG, FaultKind.SILENT]
        return Fault(rng.choice(kinds), latency_ns)


class FaultyStore:
    """
    An `ObjectStore` in memory, whose operations can fail.

    `objects` contains the stored objects and may be read directly.  The next put, delete or get
    consumes `next_fault`.  `in_flight` contains objects that other clients are putting: the first
    `put_if_absent` of such a name raises `ObjectExistsError` while the object cannot be read yet,
    and the second one finds the object.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.next_fault: Fault | None = None
        self.deleted: list[str] = []
        self.in_flight: dict[str, bytes] = {}
        self._refused: set[str] = set()

    @property
    def url(self) -> str:
        """The URL of the store's root."""
        return "faulty://"

    def put(self, path: str, data: Buffers) -> None:
        """Write a new object, unless the next fault prevents it."""
        kind = self._fault()
        content = joined(data)
        if path in self.objects:
            raise StoreError(f"{path} was written twice", path=path)
        if kind in (FaultKind.NONE, FaultKind.LOST_ANSWER, FaultKind.SILENT):
            self.objects[path] = content
        elif kind is FaultKind.TORN:
            self.objects[path] = content[: len(content) // 2]
        self._answer(kind, path)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """Write a new object, or raise `ObjectExistsError`."""
        self._land(path)
        if path in self.objects:
            raise ObjectExistsError(f"{path} exists", path=path)
        fault = FaultKind.NONE if self.next_fault is None else self.next_fault.kind
        if fault is FaultKind.CONFLICT_THEN_DONE:
            self.in_flight[path] = joined(data)
        if path in self.in_flight:
            self._refused.add(path)
        elif fault is not FaultKind.CONFLICT:
            self.put(path, data)
            return
        self.next_fault = None
        raise ObjectExistsError(f"{path}: 409 ConditionalRequestConflict", path=path)

    def _land(self, path: str) -> None:
        """Store an object that is in flight although its put was reported as failed."""
        if path in self._refused:
            self._refused.discard(path)
            self.objects[path] = self.in_flight.pop(path)

    def get(self, path: str) -> memoryview:
        """Return the whole object, or raise `ObjectNotFoundError`."""
        self._answer(self._fault(), path)
        return memoryview(self._content(path))

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only at the end of the object."""
        return self.get(path)[start : start + length]

    def head(self, path: str) -> ObjectInfo:
        """Return the size and age of an object, or raise `ObjectNotFoundError`."""
        return ObjectInfo(path, len(self._content(path)), _EPOCH)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder *prefix*."""
        for path in sorted(self.objects):
            if not prefix or path.startswith(prefix + "/"):
                yield self.head(path)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below the folder *prefix*."""
        start = len(prefix) + 1 if prefix else 0
        names = {info.path[start:] for info in self.list(prefix)}
        return sorted({name.split("/", 1)[0] for name in names if "/" in name})

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; names that do not exist are ignored."""
        kind = self._fault()
        for path in paths:
            if kind in (FaultKind.NONE, FaultKind.LOST_ANSWER, FaultKind.SILENT):
                self.objects.pop(path, None)
                self.deleted.append(path)
            self._answer(kind, path)

    def _fault(self) -> FaultKind:
        fault = self.next_fault
        self.next_fault = None
        return FaultKind.NONE if fault is None else fault.kind

    def _answer(self, kind: FaultKind, path: str) -> None:
        if kind is FaultKind.ODD_ERROR:
            raise OddError(f"odd fault at {path}")
        if kind not in (FaultKind.NONE, FaultKind.SILENT):
            raise StoreError(f"{kind.value} at {path}", path=path)

    def _content(self, path: str) -> bytes:
        if path not in self.objects:
            raise ObjectNotFoundError(f"object {path} does not exist in {self.url}", path=path)
        return self.objects[path]


def joined(data: Buffers) -> bytes:
    """Join the content of an object into one piece."""
    return b"".join(pieces_of(data))
