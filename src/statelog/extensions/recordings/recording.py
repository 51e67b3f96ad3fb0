"""
The recording of a task: what its recorder has collected, within the bounds, as bytes.

What a task records is sent to the driver with its answer, or written to a file of the state location
where it is large.  The driver commits it with the micro-batch.  A key that failed is written at once,
because its micro-batch commits nothing.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Final

import pyarrow as pa

from statelog.checkpoint.attachments import Addition
from statelog.errors import ProcessorError, StoreError, UnavailableError, UsageError
from statelog.extensions.recordings.format import Failure, encode_file, encode_recording
from statelog.extensions.recordings.recorder import TOO_LARGE, TOO_MANY, TaskRecorder
from statelog.extensions.recordings.seen_keys import recording_of, state_tables
from statelog.spark.worker.failures import error_text, processor_lines
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskSpec

_log = logging.getLogger("statelog.spark")
_LINES_MAX: Final = 20_000


def put_recording(
    files: OutputFiles, recorder: TaskRecorder, spec: TaskSpec
) -> tuple[Addition, ...]:
    """Return the recording of a task; a large one is put into a file."""
    data, keys, dropped = task_recording(recorder, spec)
    if not data:
        return ()
    info = {"dropped": dropped}
    if len(data) <= spec.inline_bytes:
        return (Addition(data=(data,), count=keys, info=info),)
    try:
        return (Addition(file=files.put_recording(encode_file([data])), count=keys, info=info),)
    except (StoreError, UnavailableError, UsageError) as error:
        # A query does not stop because it cannot record.
        _log.warning("what %d keys saw was not recorded: %s", keys, error)
        return (Addition(info=info),)


def task_recording(recorder: TaskRecorder, spec: TaskSpec) -> tuple[bytes, int, int]:
    """Return the recording of a task, and the numbers of its keys and of keys left out."""
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
    tables = state_tables(recorder, keep)
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
