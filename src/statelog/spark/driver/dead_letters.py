"""
The dead letters of a micro-batch: which tasks keep them, their commit, and a bounded log.

Dead letters are recordings that must not be lost: a micro-batch whose dead letters cannot be written
is not committed.  Small ones go through the driver into one object.  While that is small and young, the
next micro-batch with dead letters writes it again with its own, and names it in the place of the one
before.  So a query with a few bad records in each micro-batch has few objects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import msgspec

from statelog.checkpoint.batch_record import RecordingEntry
from statelog.errors import UsageError
from statelog.model.handles import FileStateHandle
from statelog.spark.query.error_policy import ErrorPolicy, OnError
from statelog.spark.query.faces import face_of
from statelog.spark.query.query import Query
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.dead_letters import failures_of
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskAck
from statelog.state.recordings.format import encode_file

_log = logging.getLogger("statelog.spark")
LETTER_FILES_MAX: Final = 1_000
"""Most files with dead letters that a checkpoint names."""
TAIL_BYTES: Final = 1 << 20
"""A file is written again with later dead letters, as long as all have up to this many bytes, uncompressed."""
_PARTS_OF_AGE: Final = 8
"""A file has dead letters of at most this part of the time for which they are kept."""
_LOG_INTERVAL_S: Final = 60.0


def check_error_policy(query: Query) -> None:
    """Raise `UsageError` if a processor takes all keys at once, so that no single key can fail."""
    on_error = query.settings.on_error
    if on_error is OnError.FAIL:
        return
    for operator in query.operators:
        if not face_of(operator.processor).handles_single_keys:
            reduction = operator.reduction
            name = type(operator.processor).__name__ if reduction is None else reduction.call
            raise UsageError(
                f"onError={on_error.value!r} cannot be used with {name}: it takes all keys of a task at "
                "once, so a failure is not of one key. Leave onError out, or use a processor of Rows "
                "or pandas frames"
            )


def error_policy(settings: QuerySettings) -> ErrorPolicy | None:
    """Return what the tasks do with keys that fail; None where they fail with them."""
    on_error = settings.on_error
    if on_error is OnError.FAIL:
        return None
    return ErrorPolicy(
        on_error.keeps_letters, settings.max_errors, freezes=on_error is OnError.FREEZE
    )


@dataclass(frozen=True, slots=True)
class _Tail:
    """
    The newest object with dead letters, while it is small.

    Args:
        entry: How the checkpoint names it.
        since_ms: When the oldest in it was written.
        letters: What is in it, oldest first.
    """

    entry: RecordingEntry
    since_ms: int
    letters: tuple[bytes, ...]


class LetterLog:
    """
    Writes the dead letters for the checkpoints of one run.

    Args:
        files: Opens what writes files of the state location; see `recording_files`.
        age_ms: How long dead letters are kept, in milliseconds.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self, files: Callable[[], AbstractContextManager[OutputFiles]], age_ms: float
    ) -> None:
        self._files = files
        self._age_ms = age_ms
        self._tail: _Tail | None = None
        self._next: _Tail | None = None

    def entries(
        self,
        before: Sequence[RecordingEntry],
        acks: Sequence[TaskAck],
        checkpoint_id: int,
        now_ms: int,
    ) -> tuple[RecordingEntry, ...]:
        """
        Write the dead letters of a micro-batch, and return those that its checkpoint names.

        Args:
            before: The entries of the checkpoint before, also of other recordings.
            acks: The answers of the tasks of all operators.
            checkpoint_id: The checkpoint being made.
            now_ms: The wall clock.

        Raises:
            StoreError, UnavailableError: They could not be written: the micro-batch must not be committed.

        Blocks: For the store, where there are dead letters.
        """
        oldest_ms = now_ms - self._age_ms
        kept = [each for each in before if each.dead_letters and each.at_ms > oldest_ms]
        fresh = []
        self._next = self._tail
        inline = tuple(letter for ack in acks for letter in failures_of(ack).letters.data)
        if inline:
            tail = self._to_join(inline, now_ms)
            if tail is not None:
                kept = [each for each in kept if each.path != tail.entry.path]
            fresh.append(self._write(tail, inline, checkpoint_id, now_ms))
        for ack in acks:
            letters = failures_of(ack).letters
            if letters.file is not None:
                fresh.append(_entry(letters.file, letters.count, checkpoint_id, now_ms))
                self._next = None  # what is joined must be newer than all before it
        return _newest([*kept, *fresh])

    def committed(self) -> None:
        """Note that the checkpoint of the last `entries` was committed."""
        self._tail = self._next

    def _to_join(self, letters: tuple[bytes, ...], now_ms: int) -> _Tail | None:
        """Return the tail, if dead letters are to be written after what it has."""
        tail = self._tail
        # Dead letters of one object are dropped together, so they are of about the same age.
        if tail is None or now_ms - tail.since_ms > self._age_ms / _PARTS_OF_AGE:
            return None
        return tail if sum(map(len, tail.letters + letters)) <= TAIL_BYTES else None

    def _write(
        self, tail: _Tail | None, letters: tuple[bytes, ...], checkpoint_id: int, now_ms: int
    ) -> RecordingEntry:
        """Write dead letters, after the ones in *tail*, as the next tail."""
        every = letters if tail is None else tail.letters + letters
        with self._files() as files:
            handle = files.put_recording(encode_file(every))
        entry, since_ms = _entry(handle, len(every), checkpoint_id, now_ms), now_ms
        if tail is not None:
            oldest = tail.entry.oldest or tail.entry.checkpoint
            entry, since_ms = msgspec.structs.replace(entry, oldest=oldest), tail.since_ms
        self._next = _Tail(entry, since_ms, every)
        return entry


def _entry(file: FileStateHandle, count: int, checkpoint_id: int, now_ms: int) -> RecordingEntry:
    return RecordingEntry(
        checkpoint=checkpoint_id,
        path=file.path,
        size=file.size_bytes,
        at_ms=now_ms,
        keys=count,
        dead_letters=count,
    )


def _newest(entries: Sequence[RecordingEntry]) -> tuple[RecordingEntry, ...]:
    """Return the newest entries, at most `LETTER_FILES_MAX`; *entries* are oldest first."""
    kept, dropped = entries[-LETTER_FILES_MAX:], entries[:-LETTER_FILES_MAX]
    if dropped:
        _log.warning(
            "%d dead letters of checkpoint %d and before are dropped: a location has at most %d files "
            "with dead letters",
            sum(entry.dead_letters for entry in dropped),
            dropped[-1].checkpoint,
            LETTER_FILES_MAX,
        )
    return tuple(kept)


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
        failed = sum(failures_of(ack).keys for ack in acks)
        if not failed:
            return
        self._keys += failed
        self._batches += 1
        now = self._clock()
        if self._logged_s is not None and now < self._logged_s + _LOG_INTERVAL_S:
            return
        self._logged_s = now
        first = next(failures_of(ack).first for ack in acks if failures_of(ack).keys)
        in_batches = "" if self._batches == 1 else f" in {self._batches} micro-batches"
        is_kept = any(failures_of(ack).letters.count for ack in acks)
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
