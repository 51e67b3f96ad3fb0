"""
Record a task's selected keys, and suggest the command that replays a failed key.

Nothing that the processor gets or yields differs from `ProcessorRun`.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, cast

import pyarrow as pa
from pyspark.sql import Row

from statelog.checkpoint.attachments import Addition
from statelog.errors import ProcessorError, StoreError
from statelog.extensions.recordings.recorder import (
    FailedCall,
    TaskRecorder,
    failed_recording,
    put_recording,
)
from statelog.extensions.recordings.seen_keys import processor_name, source_of
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.spark.query.record import RecordSpec
from statelog.spark.rows.interface import KeyedInput, OutputCollector
from statelog.spark.worker.due_timers import Due
from statelog.spark.worker.extension import (
    TaskExtension,
    TaskExtensions,
    TaskRun,
    TaskTools,
    keyed_state,
)
from statelog.spark.worker.failures import with_message
from statelog.spark.worker.output_parts import Collector
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.spark.worker.protocol import BatchContext, TaskSpec
from statelog.state.cache import AnyState
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import Key
from statelog.store import PATHS, ObjectStore


class RecordedRun(ProcessorRun):
    """Runs a processor like `ProcessorRun`, recording the keys that a recorder selects."""

    def __init__(
        self,
        context: BatchContext,
        state: KeyedState,
        key_group_range: KeyGroupRange,
        output: OutputCollector,
        recorder: TaskRecorder,
        extensions: TaskExtensions,
    ) -> None:
        super().__init__(context, state, key_group_range, output, extensions)
        self._recorder = recorder
        self._of_timers: set[tuple[int, Key]] = set()

    def prepare(self, rows: KeyedInput, initial: KeyedInput | None) -> None:
        """Prepare the state for a part of the input, and select the keys to record."""
        self._recorder.begin_part(rows, initial)
        super().prepare(rows, initial)

    def retire(self, changes: ChangeBatch) -> None:
        """Discard the overlays, which were appended to the log as *changes*."""
        self._recorder.settle(self.group, self.overlays)
        self._recorder.end_part()
        super().retire(changes)

    def due(self) -> list[Due]:
        """Return the due timers, and select which of their keys to record."""
        due = super().due()
        self._of_timers = self._recorder.of_timers(due)
        return due

    def close(self) -> None:
        """Close the processor."""
        self._recorder.settle(self.group, self.overlays)
        super().close()

    def _begin_initial(self, key: Key) -> None:
        if key in self._recorder.marked(self._key_group):
            self._recorder.called(self._begin_key(key), "handleInitialState")

    def _handle_keys(self, key_group: int, rows_of: KeyedInput) -> None:
        marked = self._recorder.marked(key_group)
        if not marked:
            super()._handle_keys(key_group, rows_of)
            return
        for key, key_object, rows in rows_of.keys(key_group):
            self._cursor.key = key
            number = self._begin_key(key) if key in marked else -1
            produced = self._processor.handleInputRows(key_object, rows, self._times)
            rows_made = () if produced is None else self._returned(produced)
            if number >= 0:
                rows_made = self._recorder.watch(number, "handleInputRows", -1, rows_made)
            self.output.extend(rows_made)
            self._calls.ends.append(len(self.output.items))

    def _handle_timer(self, time: int, key: Key) -> Iterable[Row] | None:
        if (self._key_group, key) not in self._of_timers:
            return super()._handle_timer(time, key)
        number = self._begin_key(key)
        produced = super()._handle_timer(time, key)
        rows_made = () if produced is None else self._returned(produced)
        return self._recorder.watch(number, "handleExpiredTimer", time, rows_made)

    def _begin_key(self, key: Key) -> int:
        """Begin to record the key of the next call, and return its number."""
        return self._recorder.begin(self._key_group, key, self.group(self._key_group))

    def _note_failure(self, key_group: int, key: Key, method: str, timer_ms: int = -1) -> None:
        super()._note_failure(key_group, key, method, timer_ms)
        if key_group >= 0:
            group = self.group(key_group)
            self._recorder.failed = FailedCall(key_group, key, method, timer_ms, group)


class TaskRecordings(TaskExtension):
    """The recording of a task."""

    keeps_rows: ClassVar[bool] = True
    phase: ClassVar[str] = "record"

    def __init__(self, part: RecordSpec, tools: TaskTools) -> None:
        self._tools = tools
        spec = tools.spec
        starts = [key_range.start for key_range in spec.ranges]
        ends = [key_range.end for key_range in spec.ranges]
        output = spec.rows.row_format.output(spec.rows.output, spec.context.batch_id)
        groups = KeyGroupRange(min(starts), max(ends))
        self._recorder = TaskRecorder(part, tools.codec, groups, output)

    def new_run(
        self,
        context: BatchContext,
        state: AnyState,
        key_group_range: KeyGroupRange,
        output: OutputCollector,
        extensions: TaskExtensions,
    ) -> TaskRun | None:
        """Return a run that records the selected keys."""
        keyed = keyed_state(context.processor, state)
        return RecordedRun(context, keyed, key_group_range, output, self._recorder, extensions)

    def collectors(self) -> Sequence[Collector]:
        """Return the recorder as the only collector."""
        return (self._recorder,)

    def leave_out(self, key_group: int, key: Key) -> None:
        """Omit a key whose processing failed from the recording."""
        self._recorder.leave_out(key_group, key)

    def failed(self, error: ProcessorError) -> ProcessorError:
        """Record the failed key, and add the command that replays it to the error."""
        return replayable(self._tools.store, self._recorder, self._tools.spec, error)

    def answer(self) -> tuple[Addition, ...] | None:
        """Return the task's recording."""
        return put_recording(self._tools.files, self._recorder, self._tools.spec) or None


_log = logging.getLogger("statelog.spark")

FAILURES_MAX: Final = 100
"""Maximum number of recordings of failed keys in a location; the oldest are deleted."""
_SWITCH_ON: Final = (
    "To replay such a key in a test or a debugger, record it: record=Record(failed=True) "
    "(spark.statelog.record.failed=true)"
)


def advised(error: ProcessorError) -> ProcessorError:
    """Return the error of a task that does not record, with advice to record."""
    return _with_advice(error, lambda: _SWITCH_ON)


def replayable(
    store: ObjectStore, recorder: TaskRecorder, spec: TaskSpec, error: ProcessorError
) -> ProcessorError:
    """Record the failed key, and return the error with the command that replays it."""
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
    """Write the recording of the failure, and return a sentence that describes it."""
    try:
        recording = failed_recording(recorder, spec, error)
        if recording is None:
            return "The key was not recorded: its rows and state exceed an eighth of record.bytes"
        name, data = recording
        store.put(PATHS.failed_recording(name), data)
        _delete_oldest(store)
    except StoreError as failed:
        _log.warning("the recording of a failed key could not be written: %s", failed)
        return f"The key could not be recorded: {failed}"
    call = recorder.failed
    key = () if call is None else recorder.codec.key.from_hashable(call.key)
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
    """Format a key for the command line, or return None if that is impossible."""
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
