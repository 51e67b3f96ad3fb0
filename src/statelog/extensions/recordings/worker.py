"""
Record what the chosen keys of a task see, for a replay.

Nothing that the processor gets or yields differs from `ProcessorRun`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from pyspark.sql import Row

from statelog.checkpoint.attachments import Addition
from statelog.errors import ProcessorError
from statelog.extensions.recordings.recorder import FailedCall, TaskRecorder
from statelog.extensions.recordings.recording import put_recording
from statelog.extensions.recordings.replayable import replayable
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
from statelog.spark.worker.output_parts import Collector
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.spark.worker.protocol import BatchContext
from statelog.state.cache import AnyState
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import Key


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
        """Return a run that records."""
        keyed = keyed_state(context.processor, state)
        return RecordedRun(context, keyed, key_group_range, output, self._recorder, extensions)

    def collectors(self) -> Sequence[Collector]:
        """Return the recorder."""
        return (self._recorder,)

    def leave_out(self, key_group: int, key: Key) -> None:
        """Do not record a key whose processing failed."""
        self._recorder.leave_out(key_group, key)

    def failed(self, error: ProcessorError) -> ProcessorError:
        """Record the key that failed, and name the command that replays it."""
        return replayable(self._tools.store, self._recorder, self._tools.spec, error)

    def answer(self) -> tuple[Addition, ...] | None:
        """Return the recording."""
        return put_recording(self._tools.files, self._recorder, self._tools.spec) or None


class RecordedRun(ProcessorRun):
    """Runs a processor as `ProcessorRun` does, and records the keys that a recorder chooses."""

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
        """Make the state of a part of the input ready, and choose the keys to record."""
        self._recorder.begin_part(rows, initial)
        super().prepare(rows, initial)

    def retire(self, changes: ChangeBatch) -> None:
        """Drop the overlays, which were appended to the log as *changes*."""
        self._recorder.settle(self.group, self.overlays)
        self._recorder.end_part()
        super().retire(changes)

    def due(self) -> list[Due]:
        """Return the timers that are due, and choose the keys to record."""
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
        """Begin to record the key of the next call; return its number."""
        return self._recorder.begin(self._key_group, key, self.group(self._key_group))

    def _note_failure(self, key_group: int, key: Key, method: str, timer_ms: int = -1) -> None:
        super()._note_failure(key_group, key, method, timer_ms)
        if key_group >= 0:
            group = self.group(key_group)
            self._recorder.failed = FailedCall(key_group, key, method, timer_ms, group)
