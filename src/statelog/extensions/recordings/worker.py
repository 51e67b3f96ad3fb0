"""Record what the chosen keys of a task see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from statelog.checkpoint.attachments import Addition
from statelog.errors import InvariantError, ProcessorError
from statelog.extensions.recordings.recorded_run import RecordedRun
from statelog.extensions.recordings.recorder import TaskRecorder
from statelog.extensions.recordings.recording import put_recording
from statelog.extensions.recordings.replayable import replayable
from statelog.model import KeyGroupRange
from statelog.spark.query.record import RecordSpec
from statelog.spark.rows.interface import OutputCollector
from statelog.spark.worker.extension import TaskExtension, TaskExtensions, TaskTools
from statelog.spark.worker.output_parts import Collector
from statelog.spark.worker.protocol import BatchContext
from statelog.spark.worker.run import TaskRun, keyed_state
from statelog.state.cache import AnyState
from statelog.state.heap.tables import Key


class TaskRecordings(TaskExtension):
    """
    The recording of a task.

    Args:
        part: What to record; None for nothing.
        tools: What the extension gets besides its part.
    """

    keeps_rows: ClassVar[bool] = True
    phase: ClassVar[str] = "record"

    def __init__(self, part: RecordSpec | None, tools: TaskTools | None) -> None:
        self._tools = tools
        self._recorder: TaskRecorder | None = None
        if part is None:
            return
        if tools is None:
            raise InvariantError("a recording needs the tools of a task")
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
        if self._recorder is None:
            return None
        keyed = keyed_state(context.processor, state)
        return RecordedRun(context, keyed, key_group_range, output, self._recorder, extensions)

    def collectors(self) -> Sequence[Collector]:
        """Return the recorder."""
        return () if self._recorder is None else (self._recorder,)

    def leave_out(self, key_group: int, key: Key) -> None:
        """Do not record a key whose processing failed."""
        if self._recorder is not None:
            self._recorder.leave_out(key_group, key)

    def failed(self, error: ProcessorError) -> ProcessorError:
        """Record the key that failed, and name the command that replays it."""
        return replayable(self._tools, self._recorder, error)

    def answer(self) -> tuple[Addition, ...] | None:
        """Return the recording."""
        if self._recorder is None or self._tools is None:
            return None
        return put_recording(self._tools.files, self._recorder, self._tools.spec) or None
