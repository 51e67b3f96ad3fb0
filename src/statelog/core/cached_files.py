"""
Decide which remote files a cache keeps on local disk, and which it evicts.

::

    (unknown) ──wanted──> fetching ──fetched──> writing ──written──> ready ──idle, evicted, lost──┐
        ▲                    │ failed               │ failed                                     │
        └────────────────────┴──────────────────────┴────────────────────────────────────────────┘

One caller fetches a file; the others wait for it.  Space is reserved before a byte is written, so
the bound holds at every moment, unfinished files included.
Source: Flink, ChangelogStreamHandleReaderWithCache.  Deviations: the cache is bounded in bytes and
evicts the least recently used file first (in Flink, only time bounds it); a failed fetch leaves
nothing behind (FLINK PR 27969).
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, assert_never

from statelog.core.transitions import Transitions
from statelog.errors import check


class Lookup(enum.Enum):
    """What a caller that wants a file does next."""

    READ = "read"
    FETCH = "fetch"
    WAIT = "wait"
    PASS = "pass"


@dataclass(frozen=True, slots=True)
class FileFetched:
    """The bytes of the file are fetched; *whole* if their checksums prove it."""

    path: str
    size_bytes: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class FileWritten:
    """The file is stored in the cache under its name."""

    path: str


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The file could not be fetched or written; its temporary file is deleted."""

    path: str


@dataclass(frozen=True, slots=True)
class FileLost:
    """The file in the cache is missing or damaged."""

    path: str


@dataclass(frozen=True, slots=True)
class IdleChecked:
    """The time of a `CheckIdle` is reached."""


@dataclass(frozen=True, slots=True)
class CacheClosed:
    """The cache is closed; all its files are removed."""


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Space is reserved: write the file."""

    path: str


class Reason(enum.Enum):
    """Why a file leaves the cache."""

    EVICTED = "evicted"
    IDLE = "idle"
    LOST = "lost"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Delete the file from the cache."""

    path: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class CheckIdle:
    """Post `IdleChecked` at or after this moment."""

    at_ns: int


Event = FileFetched | FileWritten | FetchFailed | FileLost | IdleChecked | CacheClosed
Action = WriteFile | RemoveFile | CheckIdle


class _State(enum.Enum):
    FETCHING = "fetching"
    WRITING = "writing"
    READY = "ready"


FILES: Final = Transitions(
    {
        _State.FETCHING: {FileFetched: _State.WRITING},
        _State.WRITING: {FileWritten: _State.READY},
        _State.READY: {},
    }
)


@dataclass(slots=True)
class _File:
    state: _State = _State.FETCHING
    size_bytes: int = 0
    last_use_ns: int = 0


class CachedFiles:
    """
    The files of one cache, least recently used first.

    Invariants:
      1. `used_bytes` is the summed size of the files that are written or being written, and at
         most the bound;
      2. while a file is ready and the cache is open, an idle check is scheduled;
      3. a closed cache has no ready file.

    Args:
        max_bytes: Bound of the files on disk, >= 0.
        idle_ns: Time after its last use at which a file is removed.
    """

    def __init__(self, max_bytes: int, idle_ns: int) -> None:
        self._max_bytes = max_bytes
        self._idle_ns = idle_ns
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._passing: dict[str, None] = {}
        self._used_bytes = 0
        self._check_pending = False
        self._closed = False

    @property
    def used_bytes(self) -> int:
        """Bytes on disk, and bytes reserved for files being written."""
        return self._used_bytes

    def ready(self, path: str) -> bool:
        """Return whether the file can be read."""
        file = self._files.get(path)
        return file is not None and file.state is _State.READY

    def settled(self, path: str) -> bool:
        """Return whether the file is neither being fetched nor being written."""
        return path not in self._files or self.ready(path)

    def look_up(self, path: str, now_ns: int) -> Lookup:
        """Return what to do for *path*; after `FETCH` the caller must fetch it."""
        file = self._files.get(path)
        if path in self._passing:
            return Lookup.PASS  # never kept, so no caller waits for another's download
        if file is None:
            self._files[path] = _File()
            return Lookup.FETCH
        if file.state is not _State.READY:
            return Lookup.WAIT
        file.last_use_ns = now_ns
        self._files.move_to_end(path)
        return Lookup.READ

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Note what happened and return what to do about it.  Unknown paths are ignored."""
        match event:
            case FileFetched(path, size_bytes, whole):
                if not whole or size_bytes > self._max_bytes:
                    self._passing[path] = None
                return self._admit(event)
            case FileWritten(path):
                file = self._files.get(path)
                if file is None:
                    return [RemoveFile(path, Reason.LOST)]
                if self._closed:
                    return self._forget(Reason.CLOSED, path)
                file.state, file.last_use_ns = FILES.after(file.state, event), now_ns
                self._files.move_to_end(path)
                return self._next_check()
            case FetchFailed(path):
                self._forget(Reason.LOST, path)
                return []
            case FileLost(path):
                return self._forget(Reason.LOST, path) if self.ready(path) else []
            case IdleChecked():
                self._check_pending = False
                over = [
                    path
                    for path, file in self._files.items()
                    if self.ready(path) and file.last_use_ns + self._idle_ns <= now_ns
                ]
                return [*self._forget(Reason.IDLE, *over), *self._next_check()]
            case CacheClosed():
                self._closed = True
                ready = [path for path in self._files if self.ready(path)]
                return self._forget(Reason.CLOSED, *ready)
            case _:
                assert_never(event)

    def _admit(self, event: FileFetched) -> list[Action]:
        """Reserve space for a file, evicting others, or drop it."""
        path, size_bytes = event.path, event.size_bytes
        file = self._files.get(path)
        if file is None:
            return []
        unready = sum(each.size_bytes for key, each in self._files.items() if not self.ready(key))
        if self._closed or path in self._passing or unready + size_bytes > self._max_bytes:
            del self._files[path]  # files that cannot be evicted leave too little space
            return []
        evicted: list[str] = []
        free_bytes = self._max_bytes - self._used_bytes
        for key, each in self._files.items():
            if free_bytes >= size_bytes:
                break
            if self.ready(key):
                evicted.append(key)
                free_bytes += each.size_bytes
        actions = self._forget(Reason.EVICTED, *evicted)
        file.state, file.size_bytes = FILES.after(file.state, event), size_bytes
        self._used_bytes += size_bytes
        return [*actions, WriteFile(path)]

    def _forget(self, reason: Reason, *paths: str) -> list[Action]:
        removed: list[Action] = []
        for path in paths:
            file = self._files.pop(path, None)
            if file is not None:
                self._used_bytes -= file.size_bytes
                removed.append(RemoveFile(path, reason))
        return removed

    def _next_check(self) -> list[Action]:
        ready = [file.last_use_ns for path, file in self._files.items() if self.ready(path)]
        if self._check_pending or self._closed or not ready:
            return []
        self._check_pending = True
        return [CheckIdle(min(ready) + self._idle_ns)]

    def check_invariants(self) -> None:
        """
        Count again; for tests.

        Raises:
            InvariantError: One of the class's invariants is broken.
        """
        used = sum(file.size_bytes for file in self._files.values())
        check(used == self._used_bytes, f"{self._used_bytes} bytes recorded, {used} stored")
        check(used <= self._max_bytes, f"{used} bytes in a cache of {self._max_bytes}")
        ready = [path for path in self._files if self.ready(path)]
        check(not ready or self._closed or self._check_pending, "ready files without an idle check")
        check(not (self._closed and ready), "a closed cache has files")
