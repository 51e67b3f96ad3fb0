"""
A cache of downloaded changelog files on local disk.

After a rescale every task of a host reads the files of all former tasks that it overlaps.  Readers
use a `DownloadCache` in place of the store, so each file is fetched once.  If the disk fails, the
bytes of the store are returned all the same.

::

    (unknown) ──wanted──> fetching ──fetched──> writing ──written──> ready ──idle, evicted, lost──┐
        ▲                    │ failed               │ failed                                     │
        └────────────────────┴──────────────────────┴────────────────────────────────────────────┘

One caller fetches a file; the others wait for it.  Space is reserved before a byte is written, so
the bound holds at every moment, unfinished files included.

The name of a cached file is derived from the store and the path of its object, and the file is
renamed to it when it is complete.  So processes of one host may share a directory: each may find,
overwrite (with the same bytes) or remove the files of another, which then fetches again.
Source: Flink, ChangelogStreamHandleReaderWithCache.  Deviations: the cache is bounded in bytes and
evicts the least recently used file first (in Flink, only time bounds it); a file is stored
unchanged, and verified after the download and at each read (in Flink it is decompressed and
trusted); temporary files are always removed (FLINK PR 27969); a file may be removed while it is
read, which the system allows, so readers are not counted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from statelog import arguments
from statelog.changelog.local_registry import LocalFiles, write_file
from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    InvalidOptionsError,
    StoreError,
    UnavailableError,
)
from statelog.format.buffers import checksum
from statelog.format.segment import parse_segment
from statelog.metrics import Metrics
from statelog.options import ChangelogOptions
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.runtime import Runtime, system_runtime
from statelog.store.api import ObjectStore
from statelog.store.object_store import as_store
from statelog.store.verified import get_again

_log = logging.getLogger("statelog")

_DEFAULTS: Final = ChangelogOptions()
_PREFIX: Final = "dstl-"
_TEMPORARY: Final = ".tmp"
_LEFT_BEHIND_S: Final = 3600
"""Age at which an unfinished file, or one of a process that died, is removed."""


class _State(enum.Enum):
    FETCHING = "fetching"
    WRITING = "writing"
    READY = "ready"


@dataclass(slots=True)
class _File:
    state: _State = _State.FETCHING
    size_bytes: int = 0
    checksum: int = 0
    last_use_ns: int = 0


class DownloadCache(ClosesAtExit):
    """
    Caches a store's changelog files on local disk.

    Invariants:
      1. the files that are written or being written have at most *max_bytes* together;
      2. while a file is ready and the cache is open, an idle check is scheduled;
      3. `close` leaves no file, and none is kept after it.

    Args:
        store: The store to cache, or its path or URL.
        directories: Created when needed; the name of a file determines its directory.
        max_bytes: Bound of this process's files on disk; larger files are not kept.
        idle_timeout: Time after its last use at which a file is removed.
        metrics: Counts hits, misses and errors; None disables it.
        runtime: Clock, lock, timers and ids, of a storage or others; None for real ones, which
            `close` stops.

    Raises:
        InvalidOptionsError: No directory, or a negative bound.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | ObjectStore,
        directories: Sequence[str | os.PathLike[str]],
        *,
        max_bytes: int = _DEFAULTS.download_local_cache_max_bytes,
        idle_timeout: dt.timedelta = _DEFAULTS.download_local_cache_idle_timeout,
        metrics: Metrics | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._store = as_store(store, "store", ("get", "get_range"))
        arguments.paths(directories, "directories", error=InvalidOptionsError)
        arguments.whole_number(max_bytes, "max_bytes", error=InvalidOptionsError)
        arguments.duration(idle_timeout, "idle_timeout", error=InvalidOptionsError)
        if not directories or max_bytes < 0:
            raise InvalidOptionsError(
                f"a download cache needs at least one directory and a max_bytes value of at least 0; "
                f"got {list(directories)} and {max_bytes}"
            )
        self._directories = [os.path.abspath(os.fspath(directory)) for directory in directories]
        self._owns_runtime = runtime is None
        self._runtime = system_runtime() if runtime is None else runtime
        self._max_bytes = max_bytes
        self._idle_s = idle_timeout.total_seconds()
        self._idle_ns = round(self._idle_s * 1e9)
        self._local = LocalFiles()
        self._files: OrderedDict[str, _File] = OrderedDict()  # least recently used first
        self._not_kept: set[str] = set()
        self._check_pending = False
        self._metrics = metrics if metrics is not None else Metrics()
        self._metrics.gauge("download_cache_bytes", lambda: self.used_bytes)
        self._cleaned = False
        self._closed = False
        self._warned = False

    @property
    def url(self) -> str:
        """URL of the store's root."""
        return self._store.url

    @property
    def used_bytes(self) -> int:
        """Size of this process's files on disk, including files that are still being written."""
        with self._runtime.lock:
            return self._used_bytes()

    def get(self, path: str) -> memoryview:
        """
        Return the whole file, read from disk if it is cached and intact.

        A file that cannot be verified (a damaged one, or one of Flink's, which has no checksum of
        the file) is returned for the reader to check, and not kept.  Of several concurrent callers
        one fetches and the others wait for it; if its fetch fails, the next one fetches.  A closed
        cache reads from the store, and so does one whose fetch a signal handler interrupted.

        Raises:
            ObjectNotFoundError: The store has no such object.
            StoreError: The store failed.

        Blocks: For the disk or the store.   Thread: any.
        """
        try:
            return self._get(path)
        except Exception:
            raise
        except BaseException:  # a signal handler: others may wait for this fetch
            self._give_up()
            raise

    def _get(self, path: str) -> memoryview:
        while True:
            with self._runtime.lock:
                if self._closed or path in self._not_kept:
                    break
                # Three cases: unknown, so this caller fetches; ready, so it is read; else another
                # fetches.
                file = self._files.get(path)
                if file is None:
                    # From here on other callers of this file wait for this one.
                    self._files[path] = _File()
                elif file.state is _State.READY:
                    self._use(path, file)
                else:
                    self._runtime.lock.wait_for(
                        lambda: self._closed or path not in self._files or self._ready(path), None
                    )
                    continue
            # Disk and store are used without the lock.
            if file is None:
                return self._fetch(path)
            data = self._read(path)
            # Another process or a bad disk may have changed the file, so each read is verified.
            if data is not None and checksum([data]) == file.checksum:
                self._metrics.count("download_cache_hits")
                return data
            # Forgotten, so that the next round of the loop fetches it again.
            self._lost(path)
        self._metrics.count("download_cache_misses")
        return self._store.get(path)

    def get_again(self, path: str) -> memoryview:
        """
        Return the whole file from the store, and delete its copy on disk; raises like `get`.

        Blocks: For the store.   Thread: any.
        """
        with self._runtime.lock:
            here = self._ready(path)
        if here:
            self._lost(path)
        return get_again(self._store, path)

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """
        Return part of the file, read from disk if it is cached, otherwise from the store.

        A part is not kept.  The caller, which knows the checksum of the part, verifies it.

        Raises:
            ObjectNotFoundError: The store has no such object.
            StoreError: The store failed.

        Blocks: For the disk or the store.   Thread: any.
        """
        with self._runtime.lock:
            here = self._ready(path)
            if here:
                self._use(path, self._files[path])
        if here:
            try:
                data = self._local.get_range(self._file_of(path), start, length)
            except StoreError:
                self._lost(path)
            else:
                self._metrics.count("download_cache_hits")
                return data
        self._metrics.count("download_cache_misses")
        return self._store.get_range(path, start, length)

    def close(self) -> None:
        """
        Remove all files; later reads use the store. May be called more than once.

        A running download completes for its caller, and its file is removed.

        Blocks: For the disk.   Thread: any.
        """
        with self._runtime.lock:
            self._closed = True
            paths = [path for path in self._files if self._ready(path)]
            self._forget(paths)
            self._runtime.lock.notify_all()
        self._remove_all(paths)
        if self._owns_runtime:
            self._runtime.close(0.0)

    def _give_up(self) -> None:
        """Read everything from the store from now on; `close` removes the files."""
        with self._runtime.lock:
            self._closed = True
            self._runtime.lock.notify_all()

    def _lost(self, path: str) -> None:
        self._metrics.count("download_cache_errors")
        with self._runtime.lock:
            here = self._ready(path)
            if here:
                self._forget([path])
        if here:
            self._remove(self._file_of(path))

    def _fetch(self, path: str) -> memoryview:
        """Get the file from the cache of a different process, or from the store, and cache it."""
        try:
            # 1. A file of this name may be here already, from another process of this host.
            self._remove_leftovers()
            data = self._read(path)
            whole = found_on_disk = data is not None and _proves_whole(data)
            if data is not None and found_on_disk:
                self._metrics.count("download_cache_hits")
            else:
                self._metrics.count("download_cache_misses")
                data = self._store.get(path)
                whole = _proves_whole(data)
            # 2. Remember what the bytes must be, for later reads.
            proof = checksum([data])
        except BaseException:
            self._failed(path)
            raise
        # 3. Keep the file if there is space for it; its caller gets the bytes in any case.
        if self._reserve(path, len(data), whole):
            if found_on_disk or self._write(path, data):
                self._written(path, proof)
            else:
                self._failed(path)
        elif found_on_disk:
            self._remove(self._file_of(path))
        return data

    # --- the files, under the lock ---------------------------------------------------------------

    def _used_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files.values())

    def _ready(self, path: str) -> bool:
        file = self._files.get(path)
        return file is not None and file.state is _State.READY

    def _use(self, path: str, file: _File) -> None:
        file.last_use_ns = self._runtime.clock.now_ns()
        self._files.move_to_end(path)

    def _forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            del self._files[path]

    def _to_evict(self, size_bytes: int) -> list[str] | None:
        """Return the files to evict to free *size_bytes*; None if that does not free enough."""
        free_bytes = self._max_bytes - self._used_bytes()
        evicted = []
        # The oldest use first.  A file that is being written cannot be evicted.
        for path, file in self._files.items():
            if free_bytes >= size_bytes:
                break
            if file.state is _State.READY:
                evicted.append(path)
                free_bytes += file.size_bytes
        return evicted if free_bytes >= size_bytes else None

    def _next_check(self) -> int | None:
        """Return when to check for idle files; None if a check is pending or unnecessary."""
        uses_ns = [file.last_use_ns for path, file in self._files.items() if self._ready(path)]
        # One timer at a time: when it fires, it schedules the next check.
        if self._check_pending or self._closed or not uses_ns:
            return None
        self._check_pending = True
        return min(uses_ns) + self._idle_ns

    # --- what happens to a file -------------------------------------------------------------------

    def _failed(self, path: str) -> None:
        """Remove the entry of a file that could not be fetched or written."""
        with self._runtime.lock:
            self._files.pop(path, None)
            self._runtime.lock.notify_all()

    def _reserve(self, path: str, size_bytes: int, whole: bool) -> bool:
        """Reserve space for a file, evicting others; return False if it does not fit."""
        with self._runtime.lock:
            if not whole or size_bytes > self._max_bytes:
                self._not_kept.add(path)  # no caller waits for another's download of it
            refused = self._closed or path in self._not_kept
            evicted = None if refused else self._to_evict(size_bytes)
            if evicted is None:
                del self._files[path]
            else:
                self._forget(evicted)
                file = self._files[path]
                # The size counts from here on, so two writers cannot reserve the same space.
                file.state = _State.WRITING
                file.size_bytes = size_bytes
            self._runtime.lock.notify_all()
        self._remove_all(evicted or (), "download_cache_evictions")
        return evicted is not None

    def _written(self, path: str, proof: int) -> None:
        """Make a stored file available to readers."""
        with self._runtime.lock:
            closed = self._closed
            if closed:
                del self._files[path]
            else:
                file = self._files[path]
                file.state = _State.READY
                file.checksum = proof
                self._use(path, file)
            check_ns = self._next_check()
            self._runtime.lock.notify_all()
        # `close` could not remove this file, because it was not complete.
        if closed:
            self._remove(self._file_of(path))
        self._schedule(check_ns)

    def _remove_idle(self) -> None:
        with self._runtime.lock:
            self._check_pending = False
            # A use since the timer was set moved the file's time, so each file is checked again.
            until_ns = self._runtime.clock.now_ns() - self._idle_ns
            idle = [
                path
                for path, file in self._files.items()
                if self._ready(path) and file.last_use_ns <= until_ns
            ]
            self._forget(idle)
            check_ns = self._next_check()
        self._remove_all(idle, "download_cache_idle_removals")
        self._schedule(check_ns)

    def _schedule(self, check_ns: int | None) -> None:
        if check_ns is not None:
            with contextlib.suppress(UnavailableError):  # no thread: files are kept longer
                self._runtime.timers.schedule(check_ns, self._remove_idle)

    # --- the disk ---------------------------------------------------------------------------------

    def _read(self, path: str) -> memoryview | None:
        try:
            return self._local.get(self._file_of(path))
        except StoreError:
            return None

    def _write(self, path: str, data: memoryview) -> bool:
        """Write a temporary file and rename it; return whether both succeeded."""
        target = self._file_of(path)
        temporary = f"{target}.{self._runtime.ids.new_id()}{_TEMPORARY}"
        try:
            # A reader of another process must never see half a file under its name.
            os.makedirs(os.path.dirname(target), exist_ok=True)
            write_file(temporary, data)
            os.replace(temporary, target)
        except BaseException as error:
            self._remove(temporary)
            if not isinstance(error, OSError):
                self._failed(path)
                raise
            level = logging.DEBUG if self._warned else logging.WARNING  # once: a full disk stays so
            self._warned = True
            self._metrics.count("download_cache_errors")
            _log.log(level, "cannot keep %s in the download cache: %s", path, error)
            return False
        return True

    def _file_of(self, path: str) -> str:
        # The store is part of the name: two stores may have the same path with different bytes.
        digest = hashlib.sha256(f"{self._store.url}\n{path}".encode()).hexdigest()
        directory = self._directories[int(digest[-8:], 16) % len(self._directories)]
        return os.path.join(directory, _PREFIX + digest[:40])

    def _remove_leftovers(self) -> None:
        """On first use, remove files that processes that no longer run left in the directories."""
        with self._runtime.lock:
            if self._cleaned:
                return
            self._cleaned = True
        for directory in self._directories:
            marker = os.path.join(directory, f"{_PREFIX}{self._runtime.ids.new_id()}{_TEMPORARY}")
            try:
                os.makedirs(directory, exist_ok=True)
                write_file(marker, b"")
                # The disk's own clock: the time of a new file.
                oldest = os.stat(marker).st_mtime - max(_LEFT_BEHIND_S, self._idle_s)
                for entry in os.scandir(directory):
                    if entry.name.startswith(_PREFIX) and entry.stat().st_mtime < oldest:
                        self._remove(entry.path)
            except OSError as error:
                _log.debug("cannot clean the cache directory %s: %s", directory, error)
            finally:
                self._remove(marker)

    def _remove_all(self, paths: Iterable[str], metric: str | None = None) -> None:
        for path in paths:
            if metric is not None:
                self._metrics.count(metric)
            self._remove(self._file_of(path))

    def _remove(self, file: str) -> None:
        try:
            os.unlink(file)
        except OSError:
            return  # already removed, or removed by the next process


def _proves_whole(data: memoryview) -> bool:
    try:
        return parse_segment(data).trailer is not None
    except (CorruptionError, IncompatibleFormatError):
        return False
