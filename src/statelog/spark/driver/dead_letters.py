"""
The dead letters of a micro-batch: which tasks keep them, their commit, and a bounded log.

Dead letters are recordings that must not be lost: a micro-batch whose dead letters cannot be written
is not committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from statelog.checkpoint.batch_record import RecordingEntry
from statelog.errors import UsageError
from statelog.spark.query.columnar_processor import ColumnarProcessor
from statelog.spark.query.error_policy import ErrorPolicy, OnError
from statelog.spark.query.query import Query
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskAck
from statelog.state.recordings.format import encode_file

_log = logging.getLogger("statelog.spark")
LETTER_FILES_MAX: Final = 1_000
"""Most files with dead letters that a checkpoint names."""
_LOG_INTERVAL_S: Final = 60.0


def check_error_policy(query: Query) -> None:
    """Raise `UsageError` if a processor takes all keys at once, so that no single key can fail."""
    on_error = query.settings.on_error
    if on_error is OnError.FAIL:
        return
    for operator in query.operators:
        if isinstance(operator.processor, ColumnarProcessor):
            is_aggregate = operator.pre_aggregation is not None
            name = "aggregate" if is_aggregate else type(operator.processor).__name__
            raise UsageError(
                f"onError={on_error.value!r} cannot be used with {name}: it takes all keys of a task at "
                "once, so a failure is not of one key. Leave onError out, or use a processor of Rows "
                "or pandas frames"
            )


def error_policy(settings: QuerySettings) -> ErrorPolicy | None:
    """Return what the tasks do with keys that fail; None where they fail with them."""
    if settings.on_error is OnError.FAIL:
        return None
    return ErrorPolicy(settings.on_error is OnError.DEAD_LETTER, settings.max_errors)


def committed_letters(
    files: Callable[[], AbstractContextManager[OutputFiles]],
    acks: Sequence[TaskAck],
    checkpoint_id: int,
    now_ms: int,
) -> list[RecordingEntry]:
    """
    Write the dead letters of a micro-batch, and return how its checkpoint names them.

    Args:
        files: Opens what writes files of the state location; see `recording_files`.
        acks: The answers of the tasks of all operators.
        checkpoint_id: The checkpoint being made.
        now_ms: The wall clock.

    Raises:
        StoreError, UnavailableError: They could not be written.

    Blocks: For the store, where there are dead letters.
    """

    def entry(path: str, size: int, count: int) -> RecordingEntry:
        return RecordingEntry(
            checkpoint=checkpoint_id,
            path=path,
            size=size,
            at_ms=now_ms,
            keys=count,
            dead_letters=count,
        )

    entries = []
    inline = [letter for ack in acks for letter in ack.letters]
    if inline:
        with files() as opened:
            handle = opened.put_recording(encode_file(inline))
        entries.append(entry(handle.path, handle.size_bytes, len(inline)))
    for ack in acks:
        if ack.letters_file is not None:
            file = ack.letters_file
            entries.append(entry(file.path, file.size_bytes, ack.letter_count))
    return entries


def newest_letters(entries: Sequence[RecordingEntry]) -> Sequence[RecordingEntry]:
    """Return the newest files with dead letters, at most `LETTER_FILES_MAX`; *entries* are oldest first."""
    kept, dropped = entries[-LETTER_FILES_MAX:], entries[:-LETTER_FILES_MAX]
    if dropped:
        _log.warning(
            "%d dead letters of checkpoint %d and before are dropped: a location has at most %d files "
            "with dead letters",
            sum(entry.dead_letters for entry in dropped),
            dropped[-1].checkpoint,
            LETTER_FILES_MAX,
        )
    return kept


class FailureLog:
    """
    Logs that keys failed, at most once a minute.

    Args:
        location: The state location, for the command in the message.
        clock: Returns seconds.
    """

    def __init__(self, location: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._location = location
        self._clock = clock
        self._logged_s: float | None = None
        self._batches = self._keys = 0

    def committed(self, batch_id: int, acks: Sequence[TaskAck]) -> None:
        """
        Take a micro-batch that was committed.

        Args:
            batch_id: Spark's id of it.
            acks: The answers of its tasks.
        """
        failed = sum(ack.failed_keys for ack in acks)
        if not failed:
            return
        self._keys += failed
        self._batches += 1
        now = self._clock()
        if self._logged_s is not None and now < self._logged_s + _LOG_INTERVAL_S:
            return
        self._logged_s = now
        first = next(ack.first_failure for ack in acks if ack.failed_keys)
        in_batches = "" if self._batches == 1 else f" in {self._batches} micro-batches"
        is_kept = any(ack.letter_count for ack in acks)
        how = (
            f"`statelog dead-letters {self._location}` lists them"
            if is_kept
            else "they are left out"
        )
        _log.warning(
            "processing failed for %d keys%s up to batch %d; the first of this batch: %s; %s",
            self._keys,
            in_batches,
            batch_id,
            first,
            how,
        )
        self._batches = self._keys = 0
