"""
Encode a batch of tasks and write it as one file; build the parts from options.

An uploader raises when it fails and never ends a task: only the retry core decides whether an
upload has failed (H2).  Success is reported only after the put has returned (H1).
Source: Flink, StateChangeFsUploader and DuplicatingStateChangeFsUploader.  Deviations: a failed
attempt deletes objects it may have written (H7); discarding a losing attempt also removes its
registry entry and its local copy (H6); a local fault fails no upload (H8); small state can stay
inline.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, overload, runtime_checkable

from statelog import arguments
from statelog.arguments import folder, instance, refused, switch
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.task import TaskResults, UploadTask, UploadTasksResult
from statelog.core.retry_policy import RetryPolicy
from statelog.errors import InvalidOptionsError, UsageError
from statelog.format.buffers import Buffer
from statelog.format.segment import SegmentWriter
from statelog.format.trailer import SetEntry
from statelog.metrics import Metrics
from statelog.model import FileStateHandle, HandleAndOffset, StateChangeSet, StreamStateHandle
from statelog.model.handles import UploadResult
from statelog.options import ChangelogOptions
from statelog.runtime.clock import Clock, IdSource, RandomIds, SystemClock
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.fail_points import fail_point
from statelog.store.api import ObjectStore
from statelog.store.object_store import as_store, open_store
from statelog.store.paths import LocationPaths

if TYPE_CHECKING:
    from statelog.changelog.local_recovery import LocalBackup, LocalCopy

UPLOADER_METHODS = ("upload", "discard", "close")
PREFIX_SIZE = 4
"""Encoded bytes of a change beyond its value, at least."""


@runtime_checkable
class StateChangeUploader(Protocol):
    """Writes batches of tasks. May be called by several threads at once."""

    def upload(self, tasks: Sequence[UploadTask]) -> UploadTasksResult:
        """
        Make all sets of *tasks* durable; if that fails, raise an error and leave no file.

        Must not complete or fail a task, and must not return before the bytes are durable.
        Each call writes under new names.

        Blocks: For the time of the store's put.
        """
        ...

    def discard(self, result: UploadTasksResult) -> None:
        """
        Delete the files of a successful attempt, because a different attempt won.

        Runs on an upload thread; its exceptions are logged.
        """
        raise UsageError(
            f"{type(self).__name__} does not implement discard; add a method that deletes the files"
        )

    def close(self) -> None:
        """Close the uploader.  May be called more than once."""
        ...


Write = Callable[[], UploadTasksResult]
"""Writes encoded tasks, under new names at each call."""


@runtime_checkable
class PreparingUploader(StateChangeUploader, Protocol):
    """An uploader that encodes before it writes, so that all attempts share one encoding."""

    def prepare(self, tasks: Sequence[UploadTask]) -> Write:
        """
        Encode *tasks* and return the function that writes them.

        Called once for an upload, on a pool thread, outside of any time-out.  The result is called
        once for each attempt, from several threads at once.
        """
        ...


class StateChangeFsUploader(ClosesAtExit):
    """
    Writes each batch as one changelog file.

    Args:
        store: The store of the files, or its path or URL.
        job_id: Folder of the job: files are stored in `<job_id>/dstl/`.  "" for none.
        paths: Names the files; None for `<job_id>/dstl/<unique name>`.
        ids: Makes unique names; None for random ones.
        compress: Snappy-frame the payload.
        registry: Tracks the files; None if the clean-up alone deletes files.
        backup: Writes a host-local copy of each file; None for no copies.
        metrics: Records encode and put durations; None disables it.
        clock: Measures these durations.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | ObjectStore,
        *,
        job_id: str = "",
        paths: LocationPaths | None = None,
        ids: IdSource | None = None,
        compress: bool = False,
        registry: TaskChangelogRegistry | None = None,
        backup: LocalBackup | None = None,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = as_store(store, "store", ("put", "delete"))
        switch(compress, "compress")
        if paths is not None:
            instance(paths, "paths", LocationPaths, "a LocationPaths")
        self._metrics = metrics if metrics is not None else Metrics()
        self._clock = clock if clock is not None else SystemClock()
        self._paths = paths if paths is not None else LocationPaths(checked_job_id(job_id))
        self._ids = ids if ids is not None else RandomIds()
        self._compress = compress
        self._registry = registry
        self._backup = backup

    def upload(self, tasks: Sequence[UploadTask]) -> UploadTasksResult:
        """
        Write all sets of *tasks* as one new file.

        Several files are written if the index of one is too small.

        Blocks: For the time of the store's put.

        Raises:
            StoreError: The put failed; a partial object has been deleted as far as possible.
        """
        return self.prepare(tasks)()

    def prepare(self, tasks: Sequence[UploadTask]) -> Write:
        """
        Encode *tasks* and return the function that writes them.

        Each call of the function writes under new names.

        Raises:
            StoreError: By the returned call: the put failed, see `upload`.
        """
        began_ns = self._clock.now_ns()
        # One file, and a further one only where the index of the last is full.
        files = [SegmentWriter(compress=self._compress)]
        placed = []
        for task in tasks:
            sets = []
            for change_set, encoded in task.in_order():
                if not files[-1].has_room_for(encoded):
                    files.append(SegmentWriter(compress=self._compress))
                sets.append((change_set, len(files) - 1, files[-1].add_encoded(encoded)))
            placed.append((task, sets))
        segments = [_Segment(file.finish(), file.payload_size, file.num_sets) for file in files]
        self._metrics.record("encode_durations", self._clock.now_ns() - began_ns)
        return partial(self._write, segments, placed)

    def _write(self, segments: list[_Segment], placed: _Placed) -> UploadTasksResult:
        """Put encoded files under new names."""
        began_ns = self._clock.now_ns()
        fail_point("before-upload")
        paths: list[str] = []
        copies: list[LocalCopy] = []
        try:
            for segment in segments:
                name = self._ids.new_id()
                paths.append(self._paths.changelog(name))
                if self._backup is not None:
                    copies.append(self._backup.start(name, segment.content))
                self._store.put(paths[-1], segment.content)
        except BaseException:
            # All or nothing: the attempt failed, so neither objects nor copies of it may stay.
            for copy in copies:
                copy.give_up()
            self._clean_up(paths)
            raise
        self._metrics.record("put_durations", self._clock.now_ns() - began_ns)
        fail_point("after-upload")
        # The put is durable; now wait a moment for the copies, which were written meanwhile.
        local_paths = [copy.take() for copy in copies] or [None] * len(paths)
        handles: list[FileStateHandle] = []
        locals_: list[FileStateHandle | None] = []
        for segment, path, local_path in zip(segments, paths, local_paths, strict=True):
            size = segment.payload_size
            handles.append(FileStateHandle(path, size))
            locals_.append(None if local_path is None else FileStateHandle(local_path, size))
            # Tracked before the result is returned: a handle must not name an unknown file.
            if self._registry is not None:
                self._registry.start_tracking(handles[-1], segment.num_sets, locals_[-1])
        return UploadTasksResult(
            tasks=tuple(
                TaskResults(task, _Results(sets, handles, locals_)) for task, sets in placed
            ),
            handles=tuple(handles),
            payload_bytes=sum(segment.payload_size for segment in segments),
        )

    def discard(self, result: UploadTasksResult) -> None:
        """Delete the files of a losing attempt; without a registry, garbage collection does it."""
        if self._registry is not None:
            for handle in result.handles:
                self._registry.discard(handle)

    def close(self) -> None:
        """Do nothing: the caller owns the store."""

    def _clean_up(self, paths: Iterable[str]) -> None:
        try:
            self._store.delete(paths)
        except Exception:
            return  # the error of the put is raised; the next clean-up deletes the object


@dataclass(frozen=True, slots=True)
class _Segment:
    """A file that is ready to be put any number of times."""

    content: list[Buffer]
    payload_size: int
    num_sets: int


_Placed = list[tuple[UploadTask, list[tuple[StateChangeSet, int, SetEntry]]]]
"""Each task, and for each of its sets the number of its file and its place in it."""


class _Results(Sequence[UploadResult]):
    """
    The results of one task, which are built on first access.

    That is after the end of the attempt, so its time-out does not depend on the number of sets.
    """

    __slots__ = ("_make", "_results")

    def __init__(
        self,
        sets: list[tuple[StateChangeSet, int, SetEntry]],
        handles: list[FileStateHandle],
        copies: list[FileStateHandle | None],
    ) -> None:
        self._make = (sets, handles, copies)
        self._results: tuple[UploadResult, ...] | None = None

    def _made(self) -> tuple[UploadResult, ...]:
        if self._results is None:
            sets, handles, copies = self._make
            self._results = tuple(
                [
                    upload_result(change_set, handles[file], entry, copies[file])
                    for change_set, file, entry in sets
                ]
            )
        return self._results

    def __len__(self) -> int:
        return len(self._make[0])

    @overload
    def __getitem__(self, index: int) -> UploadResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[UploadResult]: ...
    def __getitem__(self, index: int | slice) -> UploadResult | Sequence[UploadResult]:
        return self._made()[index]

    def __iter__(self) -> Iterator[UploadResult]:
        return iter(self._made())


def _pass_on(result: UploadTasksResult) -> UploadTasksResult:
    """Return the result of an upload that had no data."""
    fail_point("before-upload")
    fail_point("after-upload")
    return result


def upload_result(
    change_set: StateChangeSet,
    handle: StreamStateHandle,
    place: SetEntry,
    copy: FileStateHandle | None = None,
) -> UploadResult:
    """Return the result for one change set stored in *handle*."""
    entry = HandleAndOffset(handle, place.offset, place.size_bytes, place.crc32c)
    return UploadResult(
        log_id=change_set.log_id,
        sqn=change_set.sqn,
        size_bytes=change_set.size_bytes,
        entry=entry,
        local=None if copy is None else replace(entry, handle=copy),
    )


def checked_options(options: ChangelogOptions | None) -> ChangelogOptions:
    """Return *options*, or the defaults if *options* is None."""
    if options is None:
        return ChangelogOptions()
    if not isinstance(options, ChangelogOptions):
        expected = "ChangelogOptions (ChangelogOptions.from_mapping creates them from Flink's keys)"
        raise refused("options", expected, options, InvalidOptionsError)
    return options


def checked_job_id(job_id: str) -> str:
    """Return the folder of a job, or "" without a job."""
    return folder(job_id, "job_id", error=InvalidOptionsError)


def store_of(
    location: str | os.PathLike[str] | ObjectStore | None, options: ChangelogOptions
) -> ObjectStore:
    """
    Return the store at *location*.

    It may be a store already; None takes the base path of *options*.
    """
    place = options.base_path if location is None else location
    if place is None:
        raise InvalidOptionsError(
            "a changelog storage needs a location: pass base_path, or set changelog.base-path"
        )
    if isinstance(place, str | os.PathLike):
        return open_store(arguments.path(place, "base_path", error=InvalidOptionsError))
    if not callable(getattr(place, "put", None)):
        raise refused("base_path", "a path, a URL or an ObjectStore", place, InvalidOptionsError)
    return place


def retry_policy(options: ChangelogOptions) -> RetryPolicy:
    """Return the retry policy that *options* describe."""
    timeout_s = options.upload_timeout.total_seconds()
    delay_s = options.upload_next_attempt_delay.total_seconds()
    if options.upload_retry_policy == "none":
        return RetryPolicy.none()
    if options.upload_retry_policy == "exponential":
        return RetryPolicy.exponential(options.upload_max_attempts, timeout_s, delay_s)
    return RetryPolicy.fixed(options.upload_max_attempts, timeout_s, delay_s)
