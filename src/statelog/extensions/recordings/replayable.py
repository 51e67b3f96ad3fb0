"""Name the command that replays a key whose processing failed, and keep what it needs."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable
from typing import Final, cast

import pyarrow as pa

from statelog.errors import ProcessorError, StoreError
from statelog.extensions.recordings.recorder import TaskRecorder
from statelog.extensions.recordings.recording import failed_recording
from statelog.extensions.recordings.seen_keys import processor_name, source_of
from statelog.spark.worker.failures import with_message
from statelog.spark.worker.protocol import TaskSpec
from statelog.state.kinds import Key
from statelog.store import PATHS, ObjectStore

_log = logging.getLogger("statelog.spark")

FAILURES_MAX: Final = 100
"""Most recordings of failed keys in a location; the oldest ones are deleted."""
_SWITCH_ON: Final = (
    "To replay such a key in a test or a debugger, record it: record=Record(failed=True) "
    "(spark.statelog.record.failed=true)"
)


def advised(error: ProcessorError) -> ProcessorError:
    """Return the error of a task that does not record, with the advice to record."""
    return _with_advice(error, lambda: _SWITCH_ON)


def replayable(
    store: ObjectStore, recorder: TaskRecorder, spec: TaskSpec, error: ProcessorError
) -> ProcessorError:
    """Record the key that failed, and return the error with the command that replays it."""
    return _with_advice(error, lambda: _recorded(store, recorder, spec, error))


def _with_advice(error: ProcessorError, advice: Callable[[], str]) -> ProcessorError:
    if error.key is None:
        return error
    return cast("ProcessorError", with_message(error, f"{error.message}. {advice()}"))


def _recorded(
    store: ObjectStore,
    recorder: TaskRecorder,
    spec: TaskSpec,
    error: ProcessorError,
) -> str:
    """Write the recording of the failure, and return what to say of it."""
    try:
        recording = failed_recording(recorder, spec, error)
        if recording is None:
            return "The key was not recorded: its rows and state take more than an eighth of record.bytes"
        name, data = recording
        store.put(PATHS.failed_recording(name), data)
        _delete_oldest(store)
    except StoreError as failed:
        _log.warning("the recording of a failed key could not be written: %s", failed)
        return f"The key could not be recorded: {failed}"
    call = recorder.failed
    key = () if call is None else recorder.codec.key.thaw(call.key)
    return f"Replay it: {replay_command(store.url, key, recorder, spec)}"


def _delete_oldest(store: ObjectStore) -> None:
    listed = sorted(store.list(PATHS.failed_recordings), key=lambda info: info.last_modified)
    store.delete([info.path for info in listed[:-FAILURES_MAX]])


def replay_command(location: str, key: Key, recorder: TaskRecorder, spec: TaskSpec) -> str:
    """Return the command that replays a key."""
    processor = processor_name(spec.context.processor)
    words = ["statelog", "replay"]
    if recorder.spec.operator_id:
        words += ["--operator", recorder.spec.operator_id]
    module, _, name = processor.partition(":")
    source = source_of(spec.context.processor)
    # A class that was sent by value: its module cannot be imported, maybe not by the user either.
    by_value = module == "__main__" or module not in sys.modules
    if "<" in name or (by_value and not source.endswith(".py")):
        words += ["--processor", "MODULE:CLASS"]  # no name leads to a class of a notebook
    else:
        words += ["--processor", f"{source if by_value else module}:{name}"]
    texts = key_texts(key, recorder.codec.schema.key_schema)
    if texts is None:  # no text names such a key; the Python API takes its values
        return f"statelog.spark.replay({location!r}, {key!r}, processor=...)"
    words.append(location)
    if any(text.startswith("-") for text in texts):
        words.append("--")
    return shlex.join([*words, *texts])


def key_texts(key: Key, schema: pa.Schema) -> list[str] | None:
    """Return a key as the command line takes it; None where it cannot."""
    try:
        return (
            [
                pa.scalar(value, field.type).cast(pa.string()).as_py()
                for value, field in zip(key, schema, strict=True)
            ]
            if None not in key
            else None
        )
    except (pa.ArrowException, TypeError, ValueError):
        return None
