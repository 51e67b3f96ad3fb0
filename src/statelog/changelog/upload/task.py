"""
Upload tasks from writers, and the results that uploaders return.

Source: Flink, StateChangeUploadScheduler.UploadTask and UploadTasksResult.  Deviation: results are
sequences in file order instead of maps keyed by tasks, and a failing callback does not prevent the
callbacks of other tasks of the file (H4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from statelog.arguments import given, refused
from statelog.errors import UploadFailedError, UploadTimeoutError, UsageError
from statelog.format.change_set_encoder import EncodedChangeSet, encode_change_set
from statelog.format.trailer import SetEntry
from statelog.model import FileStateHandle, SequenceNumber, StateChangeSet, StreamStateHandle
from statelog.model.handles import UploadResult
from statelog.runtime.pool import Pool, call_later
from statelog.store.api import ObjectStore

_log = logging.getLogger("statelog")


class UploadTask:
    """
    Change sets to upload together, with callbacks for success and failure.

    A task ends once: the first `complete` or `fail` counts, later ones are ignored.

    Args:
        change_sets: Sets of one writer, copied.
        on_success: Called with one result for each set, on the thread that ends the upload.
        on_failure: Called with the numbers of all sets and the error, likewise.
        quick: The callbacks neither block nor call code of users, so they run on the thread that
            ends the upload.  Others run on the storage's callback threads.
    """

    __slots__ = ("_armed", "_on_failure", "_on_success", "change_sets", "quick", "size_bytes")

    def __init__(
        self,
        change_sets: Sequence[StateChangeSet],
        on_success: Callable[[Sequence[UploadResult]], None],
        on_failure: Callable[[Sequence[SequenceNumber], BaseException], None],
        *,
        quick: bool = False,
    ) -> None:
        self.quick = quick
        if isinstance(change_sets, str | bytes) or not isinstance(change_sets, Iterable):
            raise refused("change_sets", "a sequence of StateChangeSet", change_sets)
        self.change_sets = tuple(change_sets)
        for member in self.change_sets:
            if not isinstance(member, StateChangeSet):
                raise refused("each of change_sets", "a StateChangeSet", member)
        if not callable(on_success) or not callable(on_failure):
            raise UsageError(
                "on_success and on_failure must be functions, not "
                f"{given(on_success)} and {given(on_failure)}"
            )
        self.size_bytes = sum(change_set.size_bytes for change_set in self.change_sets)
        self._on_success = on_success
        self._on_failure = on_failure
        # A list and not a flag, because `pop` tests and clears in one atomic step.
        self._armed = [True]

    @property
    def finished(self) -> bool:
        """Whether the task has ended."""
        return not self._armed

    def in_order(self) -> Iterator[tuple[StateChangeSet, EncodedChangeSet]]:
        """Yield the sets and their bytes in the order in which a file contains them."""
        for change_set in sorted(self.change_sets, key=_place):
            yield change_set, encode_change_set(change_set)

    def complete(self, results: Sequence[UploadResult]) -> None:
        """Complete the task. Exceptions from the callback propagate."""
        if self._first():
            self._on_success(results)

    def fail(self, error: BaseException) -> None:
        """Fail the task. Exceptions from the callback propagate."""
        if self._first():
            self._on_failure([change_set.sqn for change_set in self.change_sets], error)

    def _first(self) -> bool:
        try:
            self._armed.pop()  # atomic: of two threads, one succeeds
        except IndexError:
            return False
        return True


Place = SetEntry | int
"""Where a set is in a file: what `StateChangeFormat.write` returned, or its payload offset."""


def _one_place(place: Place | tuple[int, int]) -> Place:
    """Return the offset of a set; also accepts Flink's pair of offsets."""
    if isinstance(place, SetEntry) or not isinstance(place, tuple):
        return place
    if len(place) != 2 or place[0] != place[1]:
        expected = "one offset, or the same offset twice, because a local copy has the same bytes"
        raise refused("the offset of a set", expected, place)
    return place[0]


@dataclass(frozen=True, slots=True)
class TaskResults:
    """One task of an upload, with the results for its change sets."""

    task: UploadTask
    results: Sequence[UploadResult]


@dataclass(frozen=True, slots=True, init=False)
class UploadTasksResult:
    """
    One file, or one piece of inline state, that contains the sets of several tasks.

    Pass the first three arguments, as in Flink, or the other three.

    Args:
        tasks_offsets: For each task, the place of each of its sets, as for `of`; or Flink's pair of
            the offsets in the file and in its local copy, which are the same.
        handle: The file or inline bytes.
        local_handle: Its host-local copy, an absolute path, or None.
        tasks: The tasks in file order.
        handles: The file, or the inline handles.
        payload_bytes: Encoded size, before compression.

    Raises:
        UsageError: As for `of`, or a pair of two offsets.
    """

    tasks: tuple[TaskResults, ...]
    handles: tuple[StreamStateHandle, ...]
    payload_bytes: int

    def __init__(
        self,
        tasks_offsets: Mapping[UploadTask, Mapping[StateChangeSet, Place | tuple[int, int]]]
        | None = None,
        handle: StreamStateHandle | None = None,
        local_handle: FileStateHandle | None = None,
        *,
        tasks: tuple[TaskResults, ...] = (),
        handles: tuple[StreamStateHandle, ...] = (),
        payload_bytes: int = 0,
    ) -> None:
        if tasks_offsets is not None:
            if not isinstance(tasks_offsets, Mapping) or handle is None:
                expected = "a mapping of tasks to the offsets of their sets, followed by a handle"
                raise refused("tasks_offsets", expected, tasks_offsets)
            places = {
                change_set: _one_place(place)
                for offsets in tasks_offsets.values()
                for change_set, place in offsets.items()
            }
            result = UploadTasksResult.of(list(tasks_offsets), places, handle, local_handle)
            tasks = result.tasks
            handles = result.handles
            payload_bytes = result.payload_bytes
        object.__setattr__(self, "tasks", tasks)
        object.__setattr__(self, "handles", handles)
        object.__setattr__(self, "payload_bytes", payload_bytes)

    @classmethod
    def of(
        cls,
        tasks: Sequence[UploadTask],
        places: Mapping[StateChangeSet, Place],
        handle: StreamStateHandle,
        local_handle: FileStateHandle | None = None,
    ) -> UploadTasksResult:
        """
        Return the result for one file that contains the sets of *tasks*.

        Args:
            tasks: All tasks of the file.
            places: For each of their sets the result of `StateChangeFormat.write`, or only its
                payload offset; then readers decode the whole file to find the set.
            handle: The file or inline bytes.
            local_handle: Its host-local copy, an absolute path, or None.

        Raises:
            UsageError: A set of a task has no place, or an argument is of another class.
        """
        entries = []
        size = 0
        for task in tasks:
            results = []
            for change_set in task.change_sets:
                place = places.get(change_set)
                if place is None:
                    raise UsageError(
                        f"change set {change_set.sqn} of log {change_set.log_id} has no offset in "
                        f"{handle}; pass an offset for every set of every task"
                    )
                # Only the offset is known: readers decode the whole file to find the set.
                if not isinstance(place, SetEntry):
                    place = SetEntry(place, -1, -1)
                is_sized = place.size_bytes >= 0
                size += max(place.size_bytes, 0)
                results.append(
                    UploadResult.of(
                        handle,
                        change_set,
                        place.offset,
                        encoded_bytes=place.size_bytes if is_sized else None,
                        crc32c=place.crc32c if is_sized else None,
                        local_handle=local_handle,
                    )
                )
            entries.append(TaskResults(task, tuple(results)))
        return cls(tasks=tuple(entries), handles=(handle,), payload_bytes=size or handle.size_bytes)

    @property
    def state_size(self) -> int:
        """Encoded size before compression; this is Flink's name for `payload_bytes`."""
        return self.payload_bytes

    def discard(self, store: ObjectStore) -> None:
        """
        Delete this upload's files from *store*; inline handles do not have files.

        Only for an upload whose tasks have not been completed, so that no handle names the files.

        Raises:
            StoreError: The store failed.

        Blocks: For the store.
        """
        paths = [handle.path for handle in self.handles if isinstance(handle, FileStateHandle)]
        if paths:
            store.delete(paths)

    def complete(self) -> None:
        """
        Complete every task in this thread; log exceptions from callbacks.

        Raises:
            BaseException: An interrupt of a callback, after all callbacks ran.
        """
        end_tasks(
            [(entry.task, partial(entry.task.complete, entry.results)) for entry in self.tasks]
        )


KEPT_CHANGES: Final = "the changes are kept and the next persist sends them again"
"""The consequence of a failed upload for the owner of the writer."""


def upload_failure(num_sets: int, error: BaseException | None, attempts: str) -> UploadFailedError:
    """Return the error for a failed upload, which is the same in all schedulers."""
    kind = UploadTimeoutError if isinstance(error, TimeoutError) else UploadFailedError
    failure = kind(f"upload of {num_sets} change sets failed ({attempts}); {KEPT_CHANGES}")
    failure.__cause__ = error
    return failure


Ends = Sequence[tuple[UploadTask, Callable[[], None]]]
"""Tasks, each with the call that ends it."""


def fail_tasks(tasks: Sequence[UploadTask], error: BaseException) -> None:
    """Fail every task in this thread; log exceptions from callbacks."""
    end_tasks([(task, partial(task.fail, error)) for task in tasks])


def end_tasks(ends: Ends, callbacks: Pool | None = None) -> None:
    """End several tasks; log exceptions from callbacks."""
    interrupt: BaseException | None = None
    for task, end in ends:
        # Code of users may block, and this thread has other tasks to end.
        if callbacks is not None and not task.quick:
            call_later(callbacks, _end, end)
            continue
        try:
            end()
        except Exception:
            _log.exception("the callback of an upload failed; other tasks continue")
        except BaseException as caught:
            _log.exception("the callback of an upload was interrupted; other tasks continue")
            interrupt = interrupt or caught
    if interrupt is not None:
        raise interrupt


def _end(end: Callable[[], None]) -> None:
    end()


def check_answer(uploader: object, result: object) -> UploadTasksResult:
    """Check the result that an uploader returned, and return it."""
    if isinstance(result, UploadTasksResult):
        return result
    raise TypeError(
        f"{type(uploader).__name__}.upload returned {result!r:.80}; it must return an "
        "UploadTasksResult with all tasks, or raise an exception"
    )


def ends_of(uploader: object, tasks: Sequence[UploadTask], result: UploadTasksResult) -> Ends:
    """
    Return how each task of an upload ends, based on the uploader's result.

    A task is completed if the result has one entry for each of its sets, and no other.  Otherwise
    it fails, with an error that describes what is wrong with the result.
    """
    # By identity: two tasks with equal sets are still two tasks.  The first entry of a task counts.
    answers: dict[int, Sequence[UploadResult]] = {}
    try:
        # The uploader may be the user's, so any shape of answer is possible.
        for entry in result.tasks:
            answers.setdefault(id(entry.task), entry.results)
    except (AttributeError, TypeError):
        answers = {}  # not TaskResults, so no task has a result
    ends: list[tuple[UploadTask, Callable[[], None]]] = []
    for task in tasks:
        results = answers.get(id(task))
        fault = (
            f"it lists {len(answers)} of {len(tasks)} tasks; this task is missing"
            if results is None
            else _fault(task, results)
        )
        if results is None or fault is not None:
            error = UploadFailedError(
                f"the result of {type(uploader).__name__}.upload does not match its tasks: {fault}; "
                f"{KEPT_CHANGES}"
            )
            ends.append((task, partial(task.fail, error)))
        else:
            ends.append((task, partial(task.complete, results)))
    return ends


def _fault(task: UploadTask, results: Sequence[UploadResult]) -> str | None:
    """Return what is wrong with a task's results, or None if they are as expected."""
    change_sets = [_place(change_set) for change_set in task.change_sets]
    try:
        got = [(result.log_id, result.sqn.value) for result in results]
    except (AttributeError, TypeError) as error:
        return f"a result of a task is not an UploadResult ({error})"
    # The usual order first; sorting is for uploaders that keep another one.
    if got == change_sets or sorted(got) == sorted(change_sets):
        return None
    missing = sorted(set(change_sets) - set(got))
    foreign = sorted(set(got) - set(change_sets))
    return (
        f"a task has {len(change_sets)} change sets but the uploader returned {len(got)} results; "
        f"missing (writer, number): {missing[:3]}, from other tasks: {foreign[:3]}"
    )


def _place(change_set: StateChangeSet) -> tuple[int, int]:
    return change_set.log_id, change_set.sqn.value
