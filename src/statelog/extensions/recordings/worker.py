"""Record what the chosen keys of a task see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from statelog.checkpoint.attachments import Addition
from statelog.errors import ProcessorError
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
