"""
Commit the recordings of a micro-batch with it.

The recordings in the answers of the tasks become one object, which the checkpoint names.  Each later
checkpoint names the objects that are still kept, so that the clean-up deletes an object with the last
retained checkpoint that names it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint.batch_record import RecordingEntry
from statelog.errors import StoreError, UnavailableError, UsageError
from statelog.options import ChangelogOptions, Options
from statelog.runtime.ids import RandomIds
from statelog.spark.query.faces import face_of
from statelog.spark.query.query import Query
from statelog.spark.query.record import RecordSpec, key_bytes_of, keys_of_operators
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskAck
from statelog.spark.worker.recording import recorded_by
from statelog.state.recordings.format import encode_file
from statelog.store import ObjectStore

_log = logging.getLogger("statelog.spark")


def record_keys(query: Query) -> list[tuple[tuple[object, ...], ...]]:
    """
    Return the keys to record of each operator.

    Raises:
        UsageError: A key is a key of no operator, or an operator is columnar.
    """
    rule = query.settings.record
    if rule is None:
        return [() for _ in query.operators]
    for operator in query.operators:
        if not face_of(operator.processor).handles_single_keys:
            raise UsageError(
                f"record has no effect on {type(operator.processor).__name__}: what single keys see is "
                "recorded of processors of Rows and pandas frames only"
            )
    return keys_of_operators(rule, [operator.schema.key_schema for operator in query.operators])


def record_spec(
    query: Query, operator: int, keys: tuple[tuple[object, ...], ...], tasks: int
) -> RecordSpec | None:
    """Return what the tasks of an operator record; None for nothing."""
    settings = query.settings
    if settings.record is None:
        return None
    each = max(settings.record_bytes // (tasks * len(query.operators)), 1)
    return RecordSpec(
        rate=settings.record.rate,
        keys=keys,
        batch_bytes=each,
        key_bytes=min(key_bytes_of(settings.record_bytes), each),
        operator_id=query.operators[operator].schema.operator_id
        if len(query.operators) > 1
        else "",
    )


@contextlib.contextmanager
def recording_files(store: ObjectStore, options: ChangelogOptions) -> Iterator[OutputFiles]:
    """Yield what writes recordings, by the policy of the tasks."""
    # Opened for one put: few micro-batches have one, and no thread remains.
    with FsStateChangelogStorage.from_options(
        Options(changelog=options), store, job_id=""
    ) as storage:
        yield OutputFiles(storage.objects.put, RandomIds())


def committed_recordings(
    files: Callable[[], AbstractContextManager[OutputFiles]],
    acks: Sequence[TaskAck],
    checkpoint_id: int,
    now_ms: int,
) -> list[RecordingEntry]:
    """
    Write the recordings of a micro-batch, and return how its checkpoint names them.

    Args:
        files: Opens what writes files of the state location; see `recording_files`.
        acks: The answers of the tasks of all operators.
        checkpoint_id: The checkpoint being made.
        now_ms: The wall clock.

    Blocks: For the store, where keys were recorded.
    """
    entries = []
    inline = [ack for ack in acks if recorded_by(ack).data]
    try:
        if inline:
            with files() as opened:
                handle = opened.put_recording(
                    encode_file([recorded_by(ack).data for ack in inline])
                )
            entries.append(_entry(handle.path, handle.size_bytes, inline, checkpoint_id, now_ms))
    except (
        StoreError,
        UnavailableError,
        UsageError,
    ) as error:  # a query does not stop for want of its recordings
        _log.warning("checkpoint %d has no recordings: %s", checkpoint_id, error)
    for ack in acks:
        file = recorded_by(ack).file
        if file is not None:
            entries.append(_entry(file.path, file.size_bytes, [ack], checkpoint_id, now_ms))
    dropped = sum(recorded_by(ack).dropped for ack in acks)
    if dropped:
        _log.warning(
            "checkpoint %d: %d keys were not recorded, because they exceed recordBytes",
            checkpoint_id,
            dropped,
        )
    return entries


def _entry(
    path: str, size: int, acks: Sequence[TaskAck], checkpoint_id: int, now_ms: int
) -> RecordingEntry:
    return RecordingEntry(
        checkpoint=checkpoint_id,
        path=path,
        size=size,
        at_ms=now_ms,
        keys=sum(recorded_by(ack).keys for ack in acks),
        dropped=sum(recorded_by(ack).dropped for ack in acks),
    )


def kept_recordings(
    before: Sequence[RecordingEntry],
    fresh: Sequence[RecordingEntry],
    settings: QuerySettings,
    now_ms: int,
) -> tuple[RecordingEntry, ...]:
    """Return the recordings that a checkpoint names but dead letters: its own, and kept earlier ones."""
    oldest_ms = now_ms - settings.record_age.total_seconds() * 1000
    kept = (each for each in before if not each.dead_letters and each.at_ms > oldest_ms)
    recorded = [*kept, *fresh]
    ids = sorted({each.checkpoint for each in recorded})[-settings.record_checkpoints :]
    return tuple(each for each in recorded if each.checkpoint in ids)
