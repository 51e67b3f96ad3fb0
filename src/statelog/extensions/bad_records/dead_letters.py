"""
Collect a task's keys whose processing failed, with the data needed to replay them.

A dead letter is the recording of one failed call: its key, the state before it, its rows or timers,
and the error.  It is committed with the micro-batch, so it exists if and only if the micro-batch
was committed without the effects of the call.  A call for a frozen key is not made; its dead letter
has the error of the call that froze the key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from statelog.checkpoint.attachments import Addition
from statelog.errors import (
    InvariantError,
    ProcessorError,
    RequirementError,
    StatelogError,
    UsageError,
)
from statelog.extensions.bad_records.marks import FrozenMarks
from statelog.extensions.bad_records.policy import ErrorPolicy
from statelog.extensions.recordings.format import Cells, Failure, encode_file, encode_recording
from statelog.extensions.recordings.seen_keys import RecordedKey, RecordedRows, recording_of
from statelog.spark.rows.interface import KeyedInput
from statelog.spark.rows.unfit_output import NOTHING_COMMITTED, UnfitOutputError
from statelog.spark.worker.failures import error_text, processor_lines
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import BatchContext, TaskAck, TaskSpec, part_of
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.kinds import Key
from statelog.state.schema import TIMERS_NAME
from statelog.store import PATHS

LETTERS_BYTES_MAX: Final = 64 << 20
"""Maximum bytes of the rows and the state in the dead letters of a task in one micro-batch."""
_TEXT_MAX: Final = 2_000
_LINES_MAX: Final = 4_000


class TooManyErrorsError(ProcessorError):
    """More keys failed than `maxErrors` allows, or their rows exceed the size limit."""


def is_bad_record(error: BaseException) -> bool:
    """
    Return whether an error was caused by a call's rows or by the processor's own code.

    Errors of statelog and of the store, lack of memory, and the end of the process are not: they
    say nothing about the rows.  What such an error caused is not either.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        is_of_call = isinstance(cause, UsageError | UnfitOutputError)
        if (
            not isinstance(cause, Exception)
            or isinstance(cause, MemoryError | InvariantError | RequirementError)
            or (isinstance(cause, StatelogError) and not is_of_call)
        ):
            return False
        waiting += [cause.__cause__, cause.__context__]
    return True


@dataclass(slots=True)
class DeadLetter:
    """
    One call, or the calls for several timers, whose effects were discarded.

    Args:
        key_group, key: The key, as tables hold it.
        method: The processor's method.
        timers: The timers, in milliseconds; none where the key had rows.
        before: The state of the key before the call.
        failure: The error.
        rows, initial: The rows of the call, and of its initial state; None for none.
    """

    key_group: int
    key: Key
    method: str
    timers: tuple[int, ...]
    before: Cells
    failure: Failure
    rows: pa.Table | None = None
    initial: pa.Table | None = None


FROZEN_KEY: Final = "statelog.FrozenKey"
"""The error name of a dead letter that was not processed because its key is frozen."""
NO_LETTERS: Final = Addition()


@dataclass(frozen=True, slots=True)
class FailedPart:
    """
    A task's keys whose processing failed.

    Args:
        keys: Their number.
        first: The first failure, as text.
        letters: Their dead letters.
    """

    keys: int = 0
    first: str = ""
    letters: Addition = NO_LETTERS


NO_FAILURE: Final = FailedPart()
BAD_RECORDS: Final = "bad_records"


def failures_of(ack: TaskAck) -> FailedPart:
    """Return the failed keys from the result of their task."""
    return part_of(ack.extras, BAD_RECORDS, FailedPart) or NO_FAILURE


@dataclass(slots=True)
class _Seen:
    """A dead letter with the interface of a recorder."""

    codec: OperatorCodec
    keys: list[RecordedKey]
    rows: list[tuple[int, pa.Table]] = field(default_factory=list)
    initial: list[tuple[int, pa.Table]] = field(default_factory=list)
    calls: list[tuple[int, str, int, int]] = field(default_factory=list)


class FailedKeys:
    """
    Counts a task's keys whose processing failed, and collects their dead letters.

    Attributes: `first`: the first failure, as text; `frozen`: the marks of frozen keys, or None.
    """

    def __init__(
        self, policy: ErrorPolicy, codec: OperatorCodec, context: BatchContext, checkpoint_id: int
    ) -> None:
        self._policy = policy
        self.codec = codec
        self._due_until_ms = context.due_until_ms
        self.frozen = FrozenMarks(codec, checkpoint_id) if policy.freezes else None
        self._processor = type(context.processor).__name__
        self._batch_id = context.batch_id
        self._part: tuple[RecordedRows, ...] = ()
        self._of_part: dict[tuple[int, Key], DeadLetter] = {}
        self._letters: list[DeadLetter] = []
        self._keys: set[tuple[int, Key]] = set()
        self._bytes = 0
        self.first = ""

    def __len__(self) -> int:
        return len(self._keys)

    def before(self, cells: Cells, timers: tuple[int, ...]) -> Cells:
        """Return a key's state for its dead letter; of due timers, only those already called."""
        if self.frozen is not None:
            cells.pop(self.frozen.state_id, None)  # not of the processor
        if timers:
            timers_id = self.codec.schema.state_id(TIMERS_NAME)
            until = self._due_until_ms
            registered = cells.get(timers_id, ())
            cells[timers_id] = tuple(time for time in registered if time in timers or time > until)
        return cells

    def begin_part(self, rows: KeyedInput, initial: KeyedInput | None) -> None:
        """Begin a part of the input, from which the rows of failed keys are copied."""
        if self._policy.keeps_letters:
            parts = (rows,) if initial is None else (rows, initial)
            self._part = tuple(RecordedRows(source, LETTERS_BYTES_MAX) for source in parts)

    def add(
        self,
        place: tuple[int, Key],
        method: str,
        timers: tuple[int, ...],
        before: Cells,
        error: BaseException,
    ) -> None:
        """Add a call whose effects have been rolled back."""
        self._keys.add(place)
        kind, text = error_text(error)
        if not self.first:
            key = repr(self.codec.key.from_hashable(place[1]))
            self.first = f"{method} for key {key:.200}: {kind}: {text:.500}"
        self.check(None, error)
        if not self._policy.keeps_letters:
            return
        failure = Failure(
            method=method,
            error=kind,
            message=text[:_TEXT_MAX],
            lines=processor_lines(error)[-_LINES_MAX:],
        )
        self._keep(DeadLetter(*place, method, timers, before, failure))

    def hold(
        self,
        place: tuple[int, Key],
        method: str,
        timers: tuple[int, ...],
        before: Cells,
        reason: str,
    ) -> None:
        """
        Add a call that was skipped because its key is frozen.

        *reason* says since when, and why.
        """
        failure = Failure(method=method, error=FROZEN_KEY, message=reason, lines="")
        self._keep(DeadLetter(*place, method, timers, before, failure))

    def _keep(self, letter: DeadLetter) -> None:
        if letter.timers:
            self._letters.append(letter)
        else:  # the failure of the initial state takes the place of a later one of the rows
            self._of_part[letter.key_group, letter.key] = letter

    def check(self, of_keys: int | None, error: BaseException | None = None) -> None:
        """Raise `TooManyErrorsError` if too many of the task's *of_keys* keys have failed."""
        most = self._policy.most
        failed = len(self._keys)
        if most.is_exceeded(failed, of_keys):
            of_all = "" if of_keys is None else f" of {of_keys}"
            raise self._too_many(
                f"{failed} keys{of_all} failed in one task of batch {self._batch_id}, more than maxErrors "
                f"({most}) allows; the first: {self.first}"
            ) from error

    def _too_many(self, what: str) -> TooManyErrorsError:
        return TooManyErrorsError(
            f"{self._processor}: {what}. {NOTHING_COMMITTED}. Fix the processor, or raise maxErrors",
            batch_id=self._batch_id,
        )

    def end_part(self) -> None:
        """Copy the rows of all failed keys in the part at once."""
        chosen: dict[int, list[Key]] = {}
        for key_group, key in self._of_part:
            chosen.setdefault(key_group, []).append(key)
        for rows in self._part:
            if chosen:
                rows.copy(chosen)
        for place, letter in self._of_part.items():
            copies = [self._rows(rows, place) for rows in self._part]
            letter.rows = copies[0]
            letter.initial = copies[1] if letter.method == "handleInitialState" else None
            self._letters.append(letter)
        self._of_part = {}
        self._part = ()

    def _rows(self, rows: RecordedRows, place: tuple[int, Key]) -> pa.Table | None:
        table = rows.of(*place)
        size = LETTERS_BYTES_MAX if table is None else int(table.num_rows * rows.row_bytes)
        self._bytes += size
        if table is None or self._bytes > LETTERS_BYTES_MAX:
            raise self._too_many(
                f"in one task of batch {self._batch_id}, the rows of failed and frozen keys exceed the "
                f"dead-letter limit of {LETTERS_BYTES_MAX >> 20} MiB; the first key that failed: "
                f"{self.first or 'none'}. Read fewer rows per micro-batch, or use onError='skip'"
            )
        return table if table.num_rows else None

    def answer(self, files: OutputFiles, spec: TaskSpec) -> FailedPart:
        """Return the part of the task's result; raises like `put`."""
        return FailedPart(len(self), self.first, self.put(files, spec))

    def put(self, files: OutputFiles, spec: TaskSpec) -> Addition:
        """Return the dead letters, after writing large ones to a file."""
        data = tuple(self._encoded(letter, spec) for letter in self._letters)
        if not data or sum(map(len, data)) <= spec.inline_bytes:
            return Addition(data=data, count=len(data))
        return Addition(file=files.write(PATHS.recording, encode_file(data)), count=len(data))

    def _encoded(self, letter: DeadLetter, spec: TaskSpec) -> bytes:
        key = RecordedKey(letter.key_group, letter.key, letter.before)
        seen = _Seen(self.codec, [key])
        if letter.rows is not None:
            seen.rows.append((0, letter.rows))
        if letter.initial is not None:
            seen.initial.append((0, letter.initial))
        seen.calls += [(0, letter.method, time, 0) for time in letter.timers or (-1,)]
        nothing = pa.Table.from_batches([], spec.rows.output)
        return encode_recording(recording_of(seen, spec, [0], nothing, {}, letter.failure))
