"""
A cache of downloaded changelog files on local disk.

After a rescale every task of a host reads the files of all former tasks that it overlaps.  Readers
use a `DownloadCache` in place of the store, so each file is fetched once.  If the disk fails, the
bytes of the store are returned all the same.

The name of a cached file is derived from the store and the path of its object, and the file is
renamed to it when it is complete.  So processes of one host may share a directory: each may find,
overwrite (with the same bytes) or remove the files of another, which then fetches again.
Source: Flink, ChangelogStreamHandleReaderWithCache.  Deviations: the cache is bounded in bytes; a
file is stored unchanged, and verified after the download and at each read (in Flink it is
decompressed and trusted); temporary files are always removed (FLINK PR 27969); a file may be
removed while it is read, which the system allows, so readers are not counted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Final, assert_never

from statelog import arguments
from statelog.changelog.local.files import LocalFiles, write_file
from statelog.core.cached_files import (
    Action,
    CacheClosed,
    CachedFiles,
    CheckIdle,
    Event,
    FetchFailed,
    FileFetched,
    FileLost,
    FileWritten,
    IdleChecked,
    Lookup,
    Reason,
    RemoveFile,
    WriteFile,
)
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
from statelog.runtime.driver import Runtime, system_runtime
from statelog.store.api import ObjectStore
from statelog.store.opening import as_store
from statelog.store.verified import get_again

_log = logging.getLogger("statelog")

_DEFAULTS: Final = ChangelogOptions()
_PREFIX: Final = "dstl-"
_REMOVALS: Final = {
    Reason.EVICTED: "download_cache_evictions",
    Reason.IDLE: "download_cache_idle_removals",
}
_TEMPORARY: Final = ".tmp"
_LEFT_BEHIND_S: Final = 3600
"""Age at which an unfinished file, or one of a process that died, is removed."""


class DownloadCache(ClosesAtExit):
    """
    Reads changelog files of a store through files on local disk.

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
                f"a download cache needs a directory and a bound of at least 0 bytes, not "
                f"{list(directories)} and {max_bytes}"
            )
        self._directories = [os.path.abspath(os.fspath(each)) for each in directories]
        self._owns_runtime = runtime is None
        self._runtime = system_runtime() if runtime is None else runtime
        self._files = CachedFiles(max_bytes, round(idle_timeout.total_seconds() * 1e9))
        self._local = LocalFiles()
        self._idle_s = idle_timeout.total_seconds()
        self._checksums: dict[str, int] = {}
        self._metrics = metrics if metrics is not None else Metrics()
        self._metrics.gauge("download_cache_bytes", lambda: self.used_bytes)
        self._cleaned = False
        self._closed = False
        self._warned = False

    @property
    def url(self) -> str:
        """Root of the store as a URL."""
        return self._store.url

    @property
    def used_bytes(self) -> int:
        """Bytes of this process's files on disk, unfinished files included."""
        with self._runtime.lock:
            return self._files.used_bytes

    def get(self, path: str) -> memoryview:
        """
        Return the whole file, from disk if it is cached and intact.

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
                if self._closed:
                    break
                cached = self._files.look_up(path, self._runtime.clock.now_ns())
                if cached is Lookup.PASS:
                    break
                if cached is Lookup.WAIT:
                    self._runtime.lock.wait_for(
                        lambda: self._closed or self._files.settled(path), None
                    )
                    continue
            if cached is Lookup.FETCH:
                return self._fetch(path)
            data = self._read(path)
            if data is not None and checksum([data]) == self._checksums.get(path):
                self._metrics.count("download_cache_hits")
                return data
            self._lost(path)
        self._metrics.count("download_cache_misses")
        return self._store.get(path)

    def get_again(self, path: str) -> memoryview:
        """
        Return the whole file from the store, and drop a copy on disk; raises as `get`.

        Blocks: For the store.   Thread: any.
        """
        with self._runtime.lock:
            here = self._files.ready(path)
        if here:
            self._lost(path)
        return get_again(self._store, path)

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """
        Return part of the file, from disk if it is cached, else from the store.

        A part is not kept.  The caller, which knows the checksum of the part, verifies it.

        Raises:
            ObjectNotFoundError: The store has no such object.
            StoreError: The store failed.

        Blocks: For the disk or the store.   Thread: any.
        """
        with self._runtime.lock:
            here = self._files.ready(path)
            if here:
                self._files.look_up(path, self._runtime.clock.now_ns())  # a use
        if here:
            try:
                part = self._local.get_range(self._file_of(path), start, length)
            except StoreError:
                self._lost(path)
            else:
                self._metrics.count("download_cache_hits")
                return part
        self._metrics.count("download_cache_misses")
        return self._store.get_range(path, start, length)

    def close(self) -> None:
        """
        Remove all files; later reads use the store.  May be called more than once.

        A running download completes for its caller, and its file is removed.

        Blocks: For the disk.   Thread: any.
        """
        with self._runtime.lock:
            self._closed = True
        self._post(CacheClosed())
        if self._owns_runtime:
            self._runtime.close(0.0)

    def _give_up(self) -> None:
        """Read everything from the store from here on; `close` removes the files."""
        with self._runtime.lock:
            self._closed = True
            self._runtime.lock.notify_all()

    def _lost(self, path: str) -> None:
        self._metrics.count("download_cache_errors")
        self._post(FileLost(path))

    def _fetch(self, path: str) -> memoryview:
        """Return the file, left on disk by another process or from the store, and keep it."""
        try:
            self._remove_leftovers()
            data = self._read(path)
            whole = found_on_disk = data is not None and _proves_whole(data)
            if data is not None and found_on_disk:
                self._metrics.count("download_cache_hits")
            else:
                self._metrics.count("download_cache_misses")
                data = self._store.get(path)
                whole = _proves_whole(data)
            self._checksums[path] = checksum([data])
        except BaseException:
            self._post(FetchFailed(path))
            raise
        actions = self._post(FileFetched(path, len(data), whole))
        if WriteFile(path) in actions:
            written = found_on_disk or self._write(path, data)
            self._post(FileWritten(path) if written else FetchFailed(path))
        elif found_on_disk:
            self._remove(self._file_of(path))
        return data

    def _read(self, path: str) -> memoryview | None:
        try:
            return self._local.get(self._file_of(path))
        except StoreError:
            return None

    def _write(self, path: str, data: memoryview) -> bool:
        """Write a temporary file and rename it; return whether that succeeded."""
        target = self._file_of(path)
        temporary = f"{target}.{self._runtime.ids.new_id()}{_TEMPORARY}"
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            write_file(temporary, data)
            os.replace(temporary, target)
        except BaseException as error:
            self._remove(temporary)
            if not isinstance(error, OSError):
                self._post(FetchFailed(path))
                raise
            level = logging.DEBUG if self._warned else logging.WARNING  # once: a full disk stays so
            self._warned = True
            self._metrics.count("download_cache_errors")
            _log.log(level, "cannot keep %s in the download cache: %s", path, error)
            return False
        return True

    def _file_of(self, path: str) -> str:
        digest = hashlib.sha256(f"{self._store.url}\n{path}".encode()).hexdigest()
        directory = self._directories[int(digest[-8:], 16) % len(self._directories)]
        return os.path.join(directory, _PREFIX + digest[:40])

    def _post(self, event: Event) -> list[Action]:
        with self._runtime.lock:
            actions = self._files.handle(event, self._runtime.clock.now_ns())
            self._runtime.lock.notify_all()
        for action in actions:
            match action:
                case RemoveFile(path, reason):
                    if (metric := _REMOVALS.get(reason)) is not None:
                        self._metrics.count(metric)
                    self._checksums.pop(path, None)
                    self._remove(self._file_of(path))
                case CheckIdle(at_ns):
                    with contextlib.suppress(UnavailableError):  # no thread: files are kept longer
                        self._runtime.timers.schedule(at_ns, self._idle_checked)
                case WriteFile():
                    pass  # done by the caller, which has the bytes
                case _:
                    assert_never(action)
        return actions

    def _idle_checked(self) -> None:
        self._post(IdleChecked())

    def _remove_leftovers(self) -> None:
        """At the first use, remove files that dead processes left in the directories."""
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
