"""
A run of a processor that records what chosen keys see, for a replay.

Nothing that the processor gets or yields differs from `ProcessorRun`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Row

from statelog.extensions.recordings.recorder import FailedCall, TaskRecorder
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.spark.rows.interface import KeyedInput, OutputCollector
from statelog.spark.worker.extension import TaskExtensions
from statelog.spark.worker.processor_run import Due, ProcessorRun
from statelog.spark.worker.protocol import BatchContext
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import Key


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
