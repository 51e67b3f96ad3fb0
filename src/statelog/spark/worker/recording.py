"""
The recording of a task: what its recorder has collected, within the bounds, as bytes.

What a task records is sent to the driver with its answer, or written to a file of the state location
where it is large.  The driver commits it with the micro-batch.  A key that failed is written at once,
because its micro-batch commits nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from statelog.errors import ProcessorError, StoreError, UnavailableError, UsageError
from statelog.format.arrow_limits import batches_of
from statelog.model import FileStateHandle
from statelog.model.json_types import Json
from statelog.spark.query.face import AnyProcessor
from statelog.spark.query.record import RecordSpec
from statelog.spark.rows.formats import KeepingFormat, PandasRowFormat, RowFormat
from statelog.spark.worker.broadcasts import broadcasts_of
from statelog.spark.worker.failures import error_text, processor_lines
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskAck, TaskSpec, part_of
from statelog.spark.worker.recorder import TOO_LARGE, TOO_MANY, RecordedKey, TaskRecorder
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.recordings.cells import cells_table
from statelog.state.recordings.format import (
    Failure,
    TaskRecording,
    encode_file,
    encode_recording,
    to_stream,
)
from statelog.state.recordings.step import RECORD_COLUMN

_log = logging.getLogger("statelog.spark")
_LINES_MAX: Final = 20_000
_RECORD_FIELD: Final = pa.field(RECORD_COLUMN, pa.int32())


@dataclass(frozen=True, slots=True)
class RecordingPart:
    """
    The recording of a task.

    Args:
        data: The recording; empty if it is in a file.
        file: The file of a large recording.
        keys: Number of recorded keys.
        dropped: Number of keys that were left out because they exceeded a bound.
    """

    data: bytes = b""
    file: FileStateHandle | None = None
    keys: int = 0
    dropped: int = 0


NOTHING_RECORDED: Final = RecordingPart()
RECORDINGS: Final = "recordings"
"""The name under which a task answers with its recording."""


def record_spec_of(spec: TaskSpec) -> RecordSpec | None:
    """Return what a task records; None for nothing."""
    return part_of(spec.extras, RECORDINGS, RecordSpec)


def recorded_by(ack: TaskAck) -> RecordingPart:
    """Return the recording in the answer of a task."""
    return part_of(ack.extras, RECORDINGS, RecordingPart) or NOTHING_RECORDED


def put_recording(files: OutputFiles, recorder: TaskRecorder, spec: TaskSpec) -> RecordingPart:
    """
    Return the recording of a task; a large one is put into a file.

    Blocks: For the store, where it is large.
    """
    data, keys, dropped = task_recording(recorder, spec)
    if len(data) <= spec.inline_bytes:
        return RecordingPart(data, None, keys, dropped)
    file = None
    try:
        file = files.put_recording(encode_file([data]))
    except (StoreError, UnavailableError, UsageError) as error:
        # A query does not stop because it cannot record.
        _log.warning("what %d keys saw was not recorded: %s", keys, error)
    return RecordingPart(b"", file, keys, dropped)


def task_recording(recorder: TaskRecorder, spec: TaskSpec) -> tuple[bytes, int, int]:
    """
    Return the recording of a task, and the numbers of its keys and of keys left out.

    Raises:
        ProcessorError: A row that the processor yielded does not fit the output.
    """
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
    Return the recording of the key that failed: a name for it, and a file.

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
    if call.method and not any(each[0] == number for each in recorder.calls):
        recorder.called(number, call.method, call.timer_ms)
    output = recorder.output_or_none()
    if output is None:  # a row that does not fit: the calls are recorded without their rows
        recorder.calls = [(*each[:3], 0) for each in recorder.calls]
        output = pa.Table.from_batches([], spec.rows.output)
    recording = recording_of(recorder, spec, [number], output, {}, failure)
    # The same failure of the same micro-batch has the same name, however often it is repeated.
    name = f"{spec.context.batch_id}-{spec.state.operator}-{_digest(recording.before)}"
    return name, encode_file([encode_recording(recording)])


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _within_bounds(recorder: TaskRecorder) -> list[int]:
    """Return the numbers of the keys to keep; note at the others why not."""
    keep = [number for number, recorded in enumerate(recorder.keys) if not recorded.lost]
    tables = _state_tables(recorder, keep)
    rows: dict[int, int] = {}
    for number, batch in (*recorder.rows, *recorder.initial):
        rows[number] = rows.get(number, 0) + batch.nbytes
    kept = []
    total = 0
    for at, number in enumerate(keep):
        size = rows.get(number, 0) + sum(table.slice(at, 1).nbytes for table in tables)
        if size > recorder.spec.key_bytes:
            recorder.keys[number].lost = TOO_LARGE
        elif total + size > recorder.spec.batch_bytes:
            recorder.keys[number].lost = TOO_MANY
        else:
            total += size
            kept.append(number)
    return kept


def _state_tables(recorder: Seen, keep: Sequence[int]) -> tuple[pa.Table, pa.Table]:
    kept = [recorder.keys[number] for number in keep]
    groups, keys = (
        [recorded.key_group for recorded in kept],
        [recorded.key for recorded in kept],
    )
    return (
        cells_table(recorder.codec, groups, keys, [recorded.before for recorded in kept]),
        cells_table(recorder.codec, groups, keys, [recorded.after for recorded in kept]),
    )


class Seen(Protocol):
    """What some keys saw; see `TaskRecorder`."""

    @property
    def codec(self) -> OperatorCodec:
        """The operator's codec."""

    @property
    def keys(self) -> Sequence[RecordedKey]:
        """The keys, in the order in which they are numbered."""

    @property
    def rows(self) -> Sequence[tuple[int, pa.Table]]:
        """Their rows, by the number of the key."""

    @property
    def initial(self) -> Sequence[tuple[int, pa.Table]]:
        """Their rows of initial state."""

    @property
    def calls(self) -> Sequence[tuple[int, str, int, int]]:
        """Number of the key, method, timer or -1, and output rows of each call."""


def recording_of(
    recorder: Seen,
    spec: TaskSpec,
    keep: Sequence[int],
    output: pa.Table,
    dropped: dict[str, int],
    failure: Failure | None = None,
) -> TaskRecording:
    """
    Return what some keys saw as one recording.

    Args:
        recorder: What they saw.
        spec: The instructions of the task.
        keep: The numbers of the keys.
        output: The rows that all calls yielded, in order.
        dropped: How many keys were left out, by reason.
        failure: Why the only key failed, or None.
    """
    numbers = {number: at for at, number in enumerate(keep)}
    before, after = _state_tables(recorder, keep)
    picked: list[int] = []
    position = 0
    for number, _, _, count in recorder.calls:
        if number in numbers:
            picked += range(position, position + count)
        position += count
    rows, context = spec.rows, spec.context
    initial = None if rows.initial is None else rows.initial.layout
    return TaskRecording(
        operator_id=recorder.codec.schema.operator_id,
        operator=spec.state.operator,
        checkpoint_id=spec.checkpoint_id,
        batch_id=context.batch_id,
        time_mode=context.time_mode,
        now_ms=context.now_ms,
        watermark_ms=context.watermark_ms,
        recorded_at_ms=time.time_ns() // 1_000_000,
        processor=processor_name(context.processor),
        source=source_of(context.processor),
        row_format="rows" if frames_of(rows.row_format) is None else "pandas",
        frames=frames_of(rows.row_format) or {},
        schema=recorder.codec.metadata_change(),
        key_positions=rows.layout.key_positions,
        first_input=rows.layout.first_input,
        initial_positions=() if initial is None else initial.key_positions,
        first_initial=0 if initial is None else initial.first_input,
        before=to_stream(before),
        after=to_stream(after) if failure is None else b"",
        input=to_stream(_numbered(recorder.rows, numbers)),
        initial=to_stream(_numbered(recorder.initial, numbers)),
        calls=[(numbers[call[0]], *call[1:]) for call in recorder.calls if call[0] in numbers],
        output=to_stream(output.take(pa.array(picked, pa.int64()))),
        failure=failure,
        dropped=dropped,
        broadcasts=broadcasts_of(spec) or UNSET,
    )


def _numbered(rows: Sequence[tuple[int, pa.Table]], numbers: dict[int, int]) -> pa.Table:
    """Return rows with the number of their key in a first column."""
    kept = [(numbers[number], table) for number, table in rows if number in numbers]
    if not kept:
        return pa.Table.from_batches([], pa.schema([_RECORD_FIELD]))
    repeated = np.repeat([at for at, _ in kept], [table.num_rows for _, table in kept])
    whole = pa.Table.from_batches(batches_of(pa.concat_tables([table for _, table in kept])))
    return whole.add_column(0, _RECORD_FIELD, pa.array(repeated, pa.int32()))


def processor_name(processor: AnyProcessor) -> str:
    """Return `module:Class` of a processor."""
    kind = type(processor)
    return f"{kind.__module__}:{kind.__qualname__}"


def source_of(processor: AnyProcessor) -> str:
    """Return the file of a processor's class, as its driver compiled it; "" if unknown."""
    code = getattr(getattr(type(processor), "handleInputRows", None), "__code__", None)
    return str(getattr(code, "co_filename", ""))


def frames_of(row_format: RowFormat) -> dict[str, Json] | None:
    """Return the settings of frames; None where rows are Rows."""
    plain = row_format.plain if isinstance(row_format, KeepingFormat) else row_format
    if not isinstance(plain, PandasRowFormat):
        return None
    settings: dict[str, Json] = dataclasses.asdict(plain.settings)
    settings["columns"] = plain.columns.json()
    return settings
