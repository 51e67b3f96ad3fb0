"""
Record the selected keys of a task as bytes, within limits on their size.

A recording is sent to the driver with the answer of its task, or written to a file of the state
location where it is large.  The driver commits it with the micro-batch.  A key that failed is
written at once, because its micro-batch commits nothing.

The keys are chosen in columns, for all keys of the input at once.  A chosen key costs a look at its
state before and after, and a copy of its rows; other keys cost nothing.  A key that exceeds a bound
is left out whole, because a part of its rows cannot be replayed, and is counted.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.checkpoint.attachments import Addition
from statelog.errors import ProcessorError, StoreError, UnavailableError, UsageError
from statelog.extensions.recordings.format import (
    Failure,
    cells_after,
    cells_of,
    encode_file,
    encode_recording,
    entry_count,
)
from statelog.extensions.recordings.seen_keys import (
    RecordedKey,
    RecordedRows,
    recording_of,
    state_tables,
)
from statelog.model import KeyGroupRange
from statelog.spark.query.record import RecordSpec
from statelog.spark.rows.interface import KeyedInput, Output, RowLike
from statelog.spark.rows.key_order import KeyedRows
from statelog.spark.worker.failures import error_text, processor_lines
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskSpec
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import KeyGroupState, Overlay
from statelog.state.keys.key_groups import key_group_of
from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds import Key
from statelog.store import PATHS

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class KeyChoice:
    """Selects the keys to record."""

    def __init__(self, spec: RecordSpec, codec: OperatorCodec, key_groups: KeyGroupRange) -> None:
        self._schema = codec.schema.key_schema
        self._key = codec.key
        self._share = spec.share
        self._wanted: dict[int | None, set[Key]] = {}
        for key in spec.keys:
            try:
                group = key_groups.start + key_group_of(key, self._schema, len(key_groups))
            except UsageError:  # only Spark hashes such a key
                self._wanted.setdefault(None, set()).add(self._key.to_hashable(key))
            else:
                self._wanted.setdefault(group, set()).add(self._key.to_hashable(key))

    def _sampled(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return which keys are in the sample, regardless of task and parallelism."""
        # The key group is the hash modulo their number: the choice takes other bits.
        mixed = hash_columns(columns, self._schema)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIX
        chosen: npt.NDArray[np.bool_] = (mixed >> np.uint64(11)).astype(np.float64) < (
            self._share * 2.0**53
        )
        return chosen

    def of_rows(self, rows: KeyedInput) -> dict[int, set[Key]]:
        """Return the selected keys of an input, grouped by key group."""
        chosen: dict[int, set[Key]] = {}
        rows_by_key = rows.kept_rows if isinstance(rows, KeyedRows) else None
        if self._share and rows_by_key is not None and rows_by_key.key_columns:
            sampled = np.flatnonzero(self._sampled(rows_by_key.key_columns))
            for key_group, (first, end) in rows_by_key.order.ranges.items() if len(sampled) else ():
                inside = sampled[np.searchsorted(sampled, first) : np.searchsorted(sampled, end)]
                if len(inside):
                    keys = list(rows.table_keys(key_group))
                    chosen[key_group] = {keys[row - first] for row in inside.tolist()}
        if self._wanted:
            for key_group in rows.key_groups():
                listed = self._wanted_of(key_group)
                if listed and (common := listed.intersection(rows.table_keys(key_group))):
                    chosen.setdefault(key_group, set()).update(common)
        return chosen

    def of_keys(self, keys: Sequence[tuple[int, Key]]) -> set[tuple[int, Key]]:
        """Return the selected (key group, key) pairs."""
        chosen = {
            keys_by_group
            for keys_by_group in keys
            if self._wanted and keys_by_group[1] in self._wanted_of(keys_by_group[0])
        }
        if self._share and keys:
            columns = self._key.encode([key for _, key in keys])
            sampled = np.flatnonzero(self._sampled(columns)).tolist()
            chosen.update(keys[number] for number in sampled)
        return chosen

    def _wanted_of(self, key_group: int) -> set[Key]:
        return self._wanted.get(key_group, set()) | self._wanted.get(None, set())


TOO_LARGE: Final = "the key exceeds its size limit"
TOO_MANY: Final = "the micro-batch exceeds its size limit"
FAILED: Final = "its processing failed, see onError"
_ENTRY_BYTES: Final = 16
"""Minimum bytes of a state entry; keys with more entries than fit are not encoded."""
_NO_KEYS: Final[frozenset[Key]] = frozenset()


@dataclass(frozen=True, slots=True)
class FailedCall:
    """
    The processor call that failed.

    Args:
        key_group: Its key group.
        key: As tables hold it.
        method: Its name, or "" where a value of the state did not fit.
        timer_ms: The timer, or -1.
        group: The state of the key group before the micro-batch.
    """

    key_group: int
    key: Key
    method: str
    timer_ms: int
    group: KeyGroupState


class _Mark(NamedTuple):
    """The size of a recording: its keys, calls, rows, batches, bytes and unsettled keys."""

    counts: tuple[int, ...]
    bytes: int
    open: frozenset[int]


class TaskRecorder:
    """
    Collects the steps of a task's selected keys.

    Attributes: `keys`: the keys, in the order in which they are numbered; `calls`, `rows` and
    `initial`: what they saw, by the number of the key; `failed`: the call that failed, or None.
    """

    def __init__(
        self, spec: RecordSpec, codec: OperatorCodec, key_groups: KeyGroupRange, output: Output
    ) -> None:
        self.spec = spec
        self.codec = codec
        self.output = output
        self._choice = KeyChoice(spec, codec, key_groups)
        self._marked: dict[int, set[Key]] = {}
        self._numbers: dict[tuple[int, Key], int] = {}
        self._open: set[int] = set()
        self._left_out: set[tuple[int, Key]] = set()
        self._part: tuple[RecordedRows, ...] = ()
        self._bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._marks: list[_Mark] = []
        self.keys: list[RecordedKey] = []
        self.calls: list[tuple[int, str, int, int]] = []
        self.rows: list[tuple[int, pa.Table]] = []
        self.initial: list[tuple[int, pa.Table]] = []
        self.failed: FailedCall | None = None

    # ------------------------------------------------------------------------------ the choice

    def begin_part(self, rows: KeyedInput, initial: KeyedInput | None) -> None:
        """Select keys from a part of the input, and copy their rows."""
        self._part = tuple(
            RecordedRows(source, self.spec.key_bytes)
            for source in (rows, initial)
            if source is not None
        )
        chosen = [self._choice.of_rows(source_rows.source) for source_rows in self._part]
        for source_rows, keys in zip(self._part, chosen, strict=True):
            source_rows.copy(keys)
        self._marked = {}
        for keys_by_group in chosen:
            for key_group, keys_of_group in keys_by_group.items():
                self._marked.setdefault(key_group, set()).update(keys_of_group)

    def marked(self, key_group: int) -> set[Key] | frozenset[Key]:
        """Return the keys selected from the part that are in a key group."""
        return self._marked.get(key_group, _NO_KEYS)

    def of_timers(self, due: Iterable[tuple[int, int, Key]]) -> set[tuple[int, Key]]:
        """Return the selected keys that have due timers, as (key group, key)."""
        keys = list(dict.fromkeys((key_group, key) for _, key_group, key in due))
        return self._choice.of_keys(keys) | self._numbers.keys()

    # ----------------------------------------------------------------------------- what is seen

    def begin(self, key_group: int, key: Key, group: KeyGroupState) -> int:
        """Begin to record a key before its first call, and return its number."""
        number = self._numbers.get((key_group, key))
        if number is None:
            number = self._numbers[key_group, key] = len(self.keys)
            recorded = RecordedKey(key_group, key, cells_of(group, key))
            self.keys.append(recorded)
            if (key_group, key) in self._left_out:
                recorded.lost = FAILED
            elif entry_count(recorded.before) * _ENTRY_BYTES > self.spec.key_bytes:
                recorded.lost = TOO_LARGE
            for source_rows, into in zip(self._part, (self.rows, self.initial), strict=False):
                self._take_rows(recorded, number, source_rows, into)
        self._open.add(number)
        return number

    def _take_rows(
        self,
        recorded: RecordedKey,
        number: int,
        rows: RecordedRows,
        into: list[tuple[int, pa.Table]],
    ) -> None:
        if recorded.lost:
            return
        rows_of_key = rows.of(recorded.key_group, recorded.key)
        if rows_of_key is None:
            recorded.lost = TOO_LARGE
        elif self._bytes + rows_of_key.num_rows * rows.row_bytes > self.spec.batch_bytes:
            recorded.lost = TOO_MANY
        elif rows_of_key.num_rows:
            self._bytes += int(rows_of_key.num_rows * rows.row_bytes)
            into.append((number, rows_of_key))

    def watch(
        self, number: int, method: str, timer_ms: int, produced: Iterable[RowLike]
    ) -> Iterator[RowLike]:
        """Yield the results of a call while recording them."""
        output = self.output
        recorded = self.keys[number]
        start = output.pending
        most = self.spec.key_bytes // _ENTRY_BYTES
        try:
            for item in produced:
                if not recorded.lost:
                    output.extend((item,))
                    if output.pending - start > most:
                        recorded.lost = TOO_LARGE
                yield item
        finally:
            self.calls.append((number, method, timer_ms, output.pending - start))

    def called(self, number: int, method: str, timer_ms: int = -1) -> None:
        """Record a call that did not return any results."""
        self.calls.append((number, method, timer_ms, 0))

    def settle(
        self, group_of: Callable[[int], KeyGroupState], overlays: Mapping[int, Overlay]
    ) -> None:
        """Record the state after the calls made so far."""
        for number in self._open:
            recorded = self.keys[number]
            if recorded.lost:
                continue
            group = group_of(recorded.key_group)
            recorded.after = cells_of(group, recorded.key)
            overlay = overlays.get(recorded.key_group)
            if overlay is not None:
                recorded.after = cells_after(recorded.after, overlay, recorded.key, group)
            if entry_count(recorded.after) * _ENTRY_BYTES > self.spec.key_bytes:
                recorded.lost = TOO_LARGE
        self._open.clear()

    def leave_out(self, key_group: int, key: Key) -> None:
        """Exclude a key whose processing failed, including its later timer calls."""
        self._left_out.add((key_group, key))
        number = self._numbers.get((key_group, key))
        if number is not None:
            self.keys[number].lost = FAILED

    def end_part(self) -> None:
        """Release the rows of a part once its changes are appended to the log."""
        self._part = ()
        self._marked = {}

    # ------------------------------------------------------------------------- what is dropped

    def mark(self) -> None:
        """Set a mark for `keep` or `roll_back`; all rows so far fit the output."""
        if len(self.output.items):
            self._batches.append(self.output.batch())
            self.output.clear()
        seen = self.keys, self.calls, self.rows, self.initial, self._batches
        counts = tuple(len(collected) for collected in seen)
        self._marks.append(_Mark(counts, self._bytes, frozenset(self._open)))

    def keep(self) -> None:
        """Remove the mark, and keep what was recorded since it was set."""
        self._marks.pop()

    def roll_back(self) -> None:
        """Remove the mark, and discard what was recorded since it was set."""
        mark = self._marks.pop()
        for recorded in self.keys[mark.counts[0] :]:
            del self._numbers[recorded.key_group, recorded.key]
        keys, calls, rows, initial, batches = mark.counts
        del self.keys[keys:], self.calls[calls:], self.rows[rows:], self.initial[initial:]
        del self._batches[batches:]
        self.output.clear()
        self._bytes, self._open, self.failed = mark.bytes, set(mark.open), None

    # -------------------------------------------------------------------------------- the result

    def fail(self, call: FailedCall) -> int | None:
        """Begin to record a failed key; return its number, or None if it is not recorded."""
        number = self.begin(call.key_group, call.key, call.group)
        return None if self.keys[number].lost else number

    def dropped(self) -> dict[str, int]:
        """Return how many keys were not recorded, by reason."""
        return dict(Counter(key.lost for key in self.keys if key.lost not in ("", FAILED)))

    def output_rows(self) -> pa.Table:
        """Return the rows that were yielded, in order of calls; raises `ProcessorError`."""
        return pa.Table.from_batches([*self._batches, self.output.batch()])

    def output_or_none(self) -> pa.Table | None:
        """Return the rows that were yielded, or None if a row does not fit."""
        try:
            return self.output_rows()
        except ProcessorError:
            return None


_log = logging.getLogger("statelog.spark")
_LINES_MAX: Final = 20_000


def put_recording(
    files: OutputFiles, recorder: TaskRecorder, spec: TaskSpec
) -> tuple[Addition, ...]:
    """Return a task's recording, after writing a large one to a file."""
    data, keys, dropped = task_recording(recorder, spec)
    if not data:
        return ()
    info = {"dropped": dropped}
    if len(data) <= spec.inline_bytes:
        return (Addition(data=(data,), count=keys, info=info),)
    try:
        return (
            Addition(file=files.write(PATHS.recording, encode_file([data])), count=keys, info=info),
        )
    except (StoreError, UnavailableError, UsageError) as error:
        # A query does not stop because it cannot record.
        _log.warning("%d keys were not recorded: %s", keys, error)
        return (Addition(info=info),)


def task_recording(recorder: TaskRecorder, spec: TaskSpec) -> tuple[bytes, int, int]:
    """Return a task's recording, and how many keys it contains and omits."""
    if not recorder.keys:
        return b"", 0, 0
    keep = _within_bounds(recorder)
    dropped = recorder.dropped()
    if not keep and not dropped:
        return b"", 0, 0
    recording = recording_of(recorder, spec, keep, recorder.output_rows(), dropped)
    return encode_recording(recording), len(keep), sum(dropped.values())


def failed_recording(
    recorder: TaskRecorder, spec: TaskSpec, error: ProcessorError
) -> tuple[str, bytes] | None:
    """
    Return the recording of the failed key: its name and its file.

    None where no key is known, or it exceeds a bound.
    """
    call = recorder.failed
    number = None if call is None else recorder.fail(call)
    if call is None or number is None:
        return None
    cause = error.__cause__
    kind, text = error_text(error)
    lines = processor_lines(cause)[-_LINES_MAX:]
    failure = Failure(method=call.method, error=kind, message=text, lines=lines)
    if call.method and not any(recorded_call[0] == number for recorded_call in recorder.calls):
        recorder.called(number, call.method, call.timer_ms)
    output = recorder.output_or_none()
    if output is None:  # a row that does not fit: the calls are recorded without their rows
        recorder.calls = [(*recorded_call[:3], 0) for recorded_call in recorder.calls]
        output = pa.Table.from_batches([], spec.rows.output)
    recording = recording_of(recorder, spec, [number], output, {}, failure)
    # The same failure of the same micro-batch has the same name, however often it is repeated.
    digest = hashlib.blake2b(recording.before, digest_size=8).hexdigest()
    name = f"{spec.context.batch_id}-{spec.state.operator}-{digest}"
    return name, encode_file([encode_recording(recording)])


def _within_bounds(recorder: TaskRecorder) -> list[int]:
    """Return the numbers of the keys to keep; record why the others are dropped."""
    keep = [number for number, recorded in enumerate(recorder.keys) if not recorded.lost]
    tables = state_tables(recorder, keep)
    rows: dict[int, int] = {}
    for number, batch in (*recorder.rows, *recorder.initial):
        rows[number] = rows.get(number, 0) + batch.nbytes
    within = []
    total = 0
    for row, number in enumerate(keep):
        size = rows.get(number, 0) + sum(table.slice(row, 1).nbytes for table in tables)
        if size > recorder.spec.key_bytes:
            recorder.keys[number].lost = TOO_LARGE
        elif total + size > recorder.spec.batch_bytes:
            recorder.keys[number].lost = TOO_MANY
        else:
            total += size
            within.append(number)
    return within
