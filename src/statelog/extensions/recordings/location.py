"""
The recordings of a location: list them, find a key's recordings, remove a key.

The newest checkpoint names the recordings of the micro-batches before it, as far as they are kept.
Recordings of keys that failed belong to no checkpoint; they are found by their folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from statelog.checkpoint.attachments import UnreadableAttachment, of_kinds
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries
from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    UsageError,
)
from statelog.extensions.recordings.format import (
    DEAD_LETTERS,
    RECORDING,
    TaskRecording,
    decode_file,
    encode_file,
    encode_recording,
    from_stream,
)
from statelog.extensions.recordings.step import (
    RecordedStep,
    check_recording,
    number_of,
    recorded_rows,
    step_of,
)
from statelog.format.arrow_data import to_stream
from statelog.format.sealed_file import part_of
from statelog.store import PATHS, ObjectStore, read_verified


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecording:
    """
    An object that contains recordings.

    Args:
        path: Its name in the store.
        size_bytes: Its length.
        recorded_at_ms: When it was written, milliseconds since 1970.
        checkpoint_id: The checkpoint with which it was committed; None for a key that failed.
        keys: Number of recorded keys; 1 for a key that failed.
        dropped: Number of keys that exceeded a bound and were left out.
    """

    path: str
    size_bytes: int
    recorded_at_ms: int
    checkpoint_id: int | None
    keys: int
    dropped: int

    @property
    def is_failure(self) -> bool:
        """Whether the object is the recording of a key that failed."""
        return self.checkpoint_id is None


@dataclass(frozen=True, slots=True)
class ForgottenRecordings:
    """
    The changes that `forget_key` made, or would make.

    Args:
        rewritten: Objects from which the key was removed.
        deleted: Objects that held nothing else.
    """

    rewritten: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


def list_recordings(store: ObjectStore) -> list[StoredRecording]:
    """Return the recordings of a location: checkpoints' first, then failures', oldest first."""
    newest = Entries(store).newest()
    stored: list[StoredRecording] = []
    if newest is not None:
        stored += [
            StoredRecording(
                path=recording.path,
                size_bytes=recording.size,
                recorded_at_ms=recording.at_ms,
                checkpoint_id=recording.newest,
                keys=recording.count,
                dropped=int(recording.info.get("dropped", 0)),
            )
            for recording in of_kinds(BatchRecord.of(newest).attachments, RECORDING, DEAD_LETTERS)
        ]
    return stored + failed_recordings(store)


def failed_recordings(store: ObjectStore) -> list[StoredRecording]:
    """Return the recordings of keys that failed, oldest first."""
    infos = sorted(
        store.list(PATHS.failed_recordings), key=lambda info: (info.last_modified, info.path)
    )
    return [
        StoredRecording(
            path=info.path,
            size_bytes=info.size_bytes,
            recorded_at_ms=int(info.last_modified.timestamp() * 1000),
            checkpoint_id=None,
            keys=1,
            dropped=0,
        )
        for info in infos
    ]


def read_recording(store: ObjectStore, stored: StoredRecording) -> list[TaskRecording]:
    """Read the recordings in an object."""
    path = stored.path
    return read_verified(store, path, lambda data: decode_file(data, where=path))


def steps_of_key(
    store: ObjectStore,
    key: object,
    *,
    unreadable: list[UnreadableAttachment],
    operator: str | None = None,
) -> list[RecordedStep]:
    """Return a key's steps in order of micro-batch, followed by its failures."""
    steps: list[RecordedStep] = []
    refused: UsageError | None = None
    fitted = False
    for stored, task in read_recordings(store, unreadable):
        if operator is not None and task.operator_id != operator:
            continue
        try:
            step = step_of(task, key)
        except UsageError as error:
            refused = error
            continue
        except CorruptionError as error:
            unreadable.append(UnreadableAttachment(stored.path, str(error)))
            continue
        fitted = True
        if step is not None:
            steps.append(step)
    if refused is not None and not fitted:
        raise refused
    return sorted(
        steps, key=lambda step_taken: (step_taken.task.batch_id, step_taken.failure is not None)
    )


def read_recordings(
    store: ObjectStore, unreadable: list[UnreadableAttachment] | None = None
) -> Iterator[tuple[StoredRecording, TaskRecording]]:
    """Yield all recordings of a location."""
    missing: list[StoredRecording] = []
    for stored in list_recordings(store):
        try:
            tasks = read_recording(store, stored)
        except ObjectNotFoundError:
            missing.append(stored)
            continue
        except (CorruptionError, IncompatibleFormatError) as error:
            if unreadable is None:
                raise
            unreadable.append(UnreadableAttachment(stored.path, str(error)))
            continue
        for task in tasks:
            yield stored, task
    if missing and unreadable is not None:
        # A query deletes old ones meanwhile, and then no longer names them.
        named = {stored.path for stored in list_recordings(store)}
        unreadable += [
            UnreadableAttachment(
                absent.path, "it does not exist, although a checkpoint references it"
            )
            for absent in missing
            if absent.path in named
        ]


def objects_with_key(store: ObjectStore, key: object, *, operator: str | None = None) -> list[str]:
    """Return the objects that contain recordings of a key."""
    paths = []
    for stored, task in read_recordings(store):
        with part_of(stored.path):
            if operator in (None, task.operator_id) and _holds(task, key):
                paths.append(stored.path)
    return list(dict.fromkeys(paths))


def forget_key(
    store: ObjectStore,
    key: object,
    *,
    operator: str | None = None,
    dry_run: bool = False,
) -> ForgottenRecordings:
    """
    Remove a key from all recordings of a location.

    The recording of a checkpoint is written again under its name without the key, so that the
    checkpoint stays complete; the recording of a key that failed is deleted.
    """
    rewritten = []
    deleted = []
    for stored in list_recordings(store):
        try:
            tasks = read_recording(store, stored)
        except ObjectNotFoundError:
            continue
        with part_of(stored.path):
            concerned = [
                operator in (None, task.operator_id) and _holds(task, key) for task in tasks
            ]
        if not any(concerned):
            continue
        if stored.is_failure:
            deleted.append(stored.path)
            if not dry_run:
                store.delete([stored.path])
            continue
        rewritten.append(stored.path)
        if not dry_run:
            remaining = [
                _without(task, key) if concerns else task
                for task, concerns in zip(tasks, concerned, strict=True)
                # A dead letter has one key, and its error may quote the rows.
                if not (concerns and task.failure is not None)
            ]
            store.put(stored.path, encode_file([encode_recording(task) for task in remaining]))
    return ForgottenRecordings(tuple(rewritten), tuple(deleted))


def _holds(task: TaskRecording, key: object) -> bool:
    check_recording(task)
    try:
        return number_of(from_stream(task.before), task.state_schema(), key) is not None
    except UsageError:  # the key of another operator
        return False


def _without(task: TaskRecording, key: object) -> TaskRecording:
    """Return a recording with one of its keys removed."""
    before = from_stream(task.before)
    gone = number_of(before, task.state_schema(), key)
    keep = pa.array([number for number in range(before.num_rows) if number != gone], pa.int32())
    numbers = {old: new for new, old in enumerate(keep.to_pylist())}
    rows: list[int] = []
    position = 0
    for record, _, _, count in task.calls:
        if record != gone:
            rows += range(position, position + count)
        position += count
    return msgspec.structs.replace(
        task,
        before=to_stream(before.take(keep)),
        after=to_stream(from_stream(task.after).take(keep)) if task.after else b"",
        input=to_stream(recorded_rows(from_stream(task.input), keep)),
        initial=to_stream(recorded_rows(from_stream(task.initial), keep)),
        calls=[(numbers[call[0]], *call[1:]) for call in task.calls if call[0] != gone],
        output=to_stream(from_stream(task.output).take(pa.array(rows, pa.int64()))),
    )
