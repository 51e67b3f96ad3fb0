"""Leave out the calls of a task that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from statelog.errors import InvariantError
from statelog.extensions.bad_records.dead_letters import NO_FAILURE, FailedKeys, FailedPart
from statelog.extensions.bad_records.isolating_run import IsolatingRun
from statelog.spark.query.error_policy import ErrorPolicy
from statelog.spark.worker.extension import TaskExtension, TaskTools
from statelog.spark.worker.output_parts import Collector
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.spark.worker.run import TaskRun
from statelog.state.kinds import Key


class TaskBadRecords(TaskExtension):
    """The keys of a task whose processing fails."""

    keeps_rows: ClassVar[bool] = True

    def __init__(self, part: ErrorPolicy, tools: TaskTools) -> None:
        self._tools = tools
        spec = tools.spec
        self._failures = FailedKeys(part, tools.codec, spec.context, spec.checkpoint_id)

    def wrap(
        self, run: TaskRun, collectors: Sequence[Collector], leave_out: Callable[[int, Key], None]
    ) -> TaskRun:
        """Return a run that continues where the processing of a key fails."""
        if not isinstance(run, ProcessorRun):
            raise InvariantError("the keys of a columnar processor do not fail one by one")
        return IsolatingRun(run, self._failures, collectors, leave_out)

    def answer(self) -> FailedPart | None:
        """Return the keys that failed, with their dead letters, and count them."""
        part = self._failures.answer(self._tools.files, self._tools.spec)
        self._tools.figures.update(failed_keys=part.keys, dead_letters=part.letters.count)
        return None if part == NO_FAILURE else part
