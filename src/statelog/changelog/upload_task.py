"""
What a writer asks of a scheduler, and what an uploader answers.

Source: Flink, StateChangeUploadScheduler.UploadTask and UploadTasksResult.  Deviation: results are
sequences in file order instead of maps keyed by tasks, and one failing callback does not keep the
other tasks of the file from theirs (H4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from statelog.arguments import given, refused
from statelog.core.change_log import UploadResult
from statelog.errors import UsageError
from statelog.format.change_set import EncodedChangeSet, encode_change_set
from statelog.format.segment import SetEntry
from statelog.model import FileStateHandle, SequenceNumber, StateChangeSet, StreamStateHandle
from statelog.store.api import ObjectStore

_log = logging.getLogger("statelog")


class UploadTask:
    """
    Change sets to be uploaded together, and whom to tell.

    A task ends once: the first `complete` or `fail` counts, later ones are ignored.

    Args:
        change_sets: Sets of one writer, copied.
        on_success: Gets one result for each set, on whatever thread the upload ended.
        on_failure: Gets the numbers of all sets and the error, likewise.
    """

    __slots__ = ("_armed", "_on_failure", "_on_success", "change_sets", "size_bytes")

    def __init__(
        self,
        change_sets: Sequence[StateChangeSet],
        on_success: Callable[[Sequence[UploadResult]], None],
        on_failure: Callable[[Sequence[SequenceNumber], BaseException], None],
    ) -> None:
        if isinstance(change_sets, str | bytes) or not isinstance(change_sets, Iterable):
            raise refused("change_sets", "a sequence of StateChangeSet", change_sets)
        self.change_sets = tuple(change_sets)
        for each in self.change_sets:
            if not isinstance(each, StateChangeSet):
                raise refused("each of change_sets", "a StateChangeSet", each)
        if not callable(on_success) or not callable(on_failure):
            raise UsageError(
                "on_success and on_failure must be functions, not "
                f"{given(on_success)} and {given(on_failure)}"
            )
        self.size_bytes = sum(change_set.size_bytes for change_set in self.change_sets)
        self._on_success = on_success
        self._on_failure = on_failure
        self._armed = [True]

    @property
    def finished(self) -> bool:
        """Whether the task has ended."""
        return not self._armed

    def in_order(self) -> Iterator[tuple[StateChangeSet, EncodedChangeSet]]:
        """Yield the sets and their bytes in the order they have in a file."""
        for change_set in sorted(self.change_sets, key=_place):
            yield change_set, encode_change_set(change_set)

    def complete(self, results: Sequence[UploadResult]) -> None:
        """End the task well.  Errors of the callback come through to the caller."""
        if self._first():
            self._on_success(results)

    def fail(self, error: BaseException) -> None:
        """End the task badly.  Errors of the callback come through to the caller."""
        if self._first():
            self._on_failure([change_set.sqn for change_set in self.change_sets], error)

    def _first(self) -> bool:
        try:
            self._armed.pop()  # atomic: of two threads, one gets it
        except IndexError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class TaskResults:
    """One task of a file and the results of its sets."""

    task: UploadTask
    results: tuple[UploadResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTasksResult:
    """
    One file (or one piece of inline state) with the sets of several tasks.

    Args:
        tasks: The tasks in file order.
        handles: What was written: one file, or inline handles.
        payload_bytes: Encoded size, before compression.
    """

    tasks: tuple[TaskResults, ...]
    handles: tuple[StreamStateHandle, ...]
    payload_bytes: int

    @classmethod
    def of(
        cls,
        tasks: Sequence[UploadTask],
        places: Mapping[StateChangeSet, SetEntry | int],
        handle: StreamStateHandle,
        local_handle: FileStateHandle | None = None,
    ) -> UploadTasksResult:
        """
        Return the result of one file with the sets of *tasks*.

        Args:
            tasks: All tasks of the file.
            places: For each of their sets what `StateChangeFormat.write` returned, or only its
                payload offset; then readers find it by walking through the file.
            handle: The file or inline bytes.
            local_handle: Its host-local copy, an absolute path, or None.

        Raises:
            UsageError: A set of a task has no place, or an argument is of another class.
        """
        entries, size = [], 0
        for task in tasks:
            results = []
            for change_set in task.change_sets:
                place = places.get(change_set)
                if place is None:
                    raise UsageError(
                        f"change set {change_set.sqn} of log {change_set.log_id} has no place in "
                        f"{handle}; give one for every set of every task"
                    )
                if not isinstance(place, SetEntry):
                    place = SetEntry(place, -1, -1)
                known = place.size_bytes >= 0
                size += max(place.size_bytes, 0)
                results.append(
                    UploadResult.of(
                        handle,
                        change_set,
                        place.offset,
                        encoded_bytes=place.size_bytes if known else None,
                        crc32c=place.crc32c if known else None,
                        local_handle=local_handle,
                    )
                )
            entries.append(TaskResults(task, tuple(results)))
        return cls(tasks=tuple(entries), handles=(handle,), payload_bytes=size or handle.size_bytes)

    @property
    def state_size(self) -> int:
        """Encoded size before compression; Flink's name for `payload_bytes`."""
        return self.payload_bytes

    def discard(self, store: ObjectStore) -> None:
        """
        Delete the files of this upload from *store*; inline handles have none.

        Only for an upload whose tasks have not been completed: nothing else may know the files.

        Raises:
            StoreError: The store failed.

        Blocks: For the store.
        """
        paths = [each.path for each in self.handles if isinstance(each, FileStateHandle)]
        if paths:
            store.delete(paths)

    def complete(self) -> None:
        """Complete every task; a callback that raises is logged and stops no other."""
        for entry in self.tasks:
            try:
                entry.task.complete(entry.results)
            except Exception:
                _log.exception("the callback of an upload failed; other tasks go on")


def fail_tasks(tasks: Sequence[UploadTask], error: BaseException) -> None:
    """Fail every task; a callback that raises is logged and stops no other."""
    for task in tasks:
        try:
            task.fail(error)
        except Exception:
            _log.exception("the failure callback of an upload failed; other tasks go on")


def _place(change_set: StateChangeSet) -> tuple[int, int]:
    return change_set.log_id, change_set.sqn.value
