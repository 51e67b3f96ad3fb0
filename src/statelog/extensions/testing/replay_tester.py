"""A `ProcessorTester` that begins with a recorded step and runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Row

from statelog.errors import CorruptionError
from statelog.extensions.testing.key_state import expiry_shown, state_shown, timers_shown
from statelog.extensions.testing.processor_tester import ProcessorTester
from statelog.extensions.testing.tester_rows import TesterRows, rows_in
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.interface import Output, RowLike
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.spark_versions import StatefulProcessor
from statelog.spark.rows.unfit_output import OutputCalls, UnfitOutputError
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.state.recordings import RecordedStep
from statelog.state.recordings.cells import cells_in

TIME_MODES = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}
"""Spark's names of time modes, by the names in recordings."""


def time_mode_of(step: RecordedStep) -> str:
    """
    Return Spark's name of the time mode of a step.

    Raises:
        CorruptionError: The recording has another one.
    """
    mode = TIME_MODES.get(step.task.time_mode)
    if mode is None:
        raise CorruptionError(f"a recording has the time mode {step.task.time_mode!r:.100}")
    return mode


@dataclass(frozen=True, slots=True)
class KeyState:
    """
    The state of a key.

    Args:
        state: By variable, as `ProcessorTester.stateOf`.
        expiry: As `ProcessorTester.expiryOf`.
        timers: Times in milliseconds, ascending.
    """

    state: Mapping[str, object]
    expiry: Mapping[str, object]
    timers: Sequence[int]


@dataclass(frozen=True, slots=True)
class StepResult:
    """
    What comes out of a step.

    Args:
        output: The rows, with the types of the output.
        state: State after, by variable; *expiry* is when it expires.
        timers: Timers after, in milliseconds.
    """

    output: Sequence[Row]
    state: Mapping[str, object]
    expiry: Mapping[str, object]
    timers: Sequence[int]


class _CheckedRun(ProcessorRun):
    """A run that checks what a call changed before what it yielded, as `IsolatingRun` does."""

    def _convert_if_many(self) -> None:
        if isinstance(self.output, StepOutput) and self.output.checks_each_call:
            self.encoded()
        super()._convert_if_many()


class ReplayTester(ProcessorTester):
    """
    Runs one recorded step.

    Raises:
        CheckpointError: The processor cannot continue from the recorded state.
        ProcessorError: `init` failed.
    """

    _run_class = _CheckedRun

    def __init__(
        self, processor: StatefulProcessor, step: RecordedStep, row_format: RowFormat
    ) -> None:
        self._stored, self._stored_ms = step.schema, max(step.task.now_ms, 0)
        super().__init__(
            processor,
            timeMode=time_mode_of(step),
            eventTimeExtractor=lambda row: 1 << 62,  # the recorded rows were not late
        )
        self._step = step
        for name, table in step.broadcasts.items():
            self.setBroadcast(name, table)
        self._row_format = row_format
        task = step.task
        self._now_ms = task.now_ms
        self._watermark_ms = self._shown_watermark_ms = task.watermark_ms
        self._place = self._state.place_values(step.key)
        self._state.set_cells(step.key, self._cells(step.before))

    def _format(self) -> RowFormat:
        return self._row_format

    def _cells(self, table: pa.Table) -> dict[int, object]:
        return cells_in(self._state.codec, self._step.task.schema, table)[0]

    def state_in(self, table: pa.Table) -> KeyState:
        """Return the state in one row of a recorded table."""
        return self._shown_state(self._cells(table))

    def _shown_state(self, cells: dict[int, object]) -> KeyState:
        codec, now = self._state.codec, self._now()
        state, expiry = state_shown(codec, cells, now), expiry_shown(codec, cells, now)
        return KeyState(state, expiry, timers_shown(codec, cells))

    def run(self) -> StepResult:
        """
        Run the step and return what comes out.

        Raises:
            ProcessorError: The processor failed.
        """
        step = self._step
        task = step.task
        self._batch_id = task.batch_id
        output = self._row_format.output(step.output.schema, task.batch_id)
        rows = self._recorded(step.input, task.key_positions, task.first_input)
        initial = None
        if step.initial.num_rows:
            initial = self._recorded(step.initial, task.initial_positions, task.first_initial)
        # What did not fit ended the call before a timer fired.
        failed_in_rows = step.failure is not None and step.failure.method != "handleExpiredTimer"
        run = self._process(rows, initial, StepOutput(output, checks_each_call=failed_in_rows))
        try:
            batch = output.batch()
        except UnfitOutputError as error:
            raise run.located(error) from error.__cause__
        self._commit(run)
        after = self._shown_state(self._state.cells(step.key))
        return StepResult(rows_in(batch), after.state, after.expiry, after.timers)

    def _recorded(self, table: pa.Table, keys: tuple[int, ...], first: int) -> TesterRows:
        """Return recorded rows as the input of a run, in the form in which a task gave them."""
        tester_rows = TesterRows()
        if table.num_rows:
            codec = self._state.codec.key
            read = self._row_format.input(InputLayout(keys, first), codec)
            read.read(table.to_batches())
            for key_group in read.key_groups():
                for _, key_object, rows in read.keys(key_group):
                    tester_rows.add(self._place[0], self._place[1], key_object, rows)
        return tester_rows


class StepOutput:
    """Gives what a processor yields to the output of a row format."""

    def __init__(self, output: Output, *, checks_each_call: bool) -> None:
        self._output = output
        self.checks_each_call = checks_each_call
        self.items = output.items
        self.calls = OutputCalls()

    def extend(self, produced: Iterable[RowLike]) -> None:
        """Take what one call yields."""
        self._output.extend(produced)

    def bound_each_call(self) -> None:
        """Do nothing: the rows of a step fit in memory."""

    def convert_if_many(self) -> None:
        """Convert the rows, to raise an error if one does not fit; they stay."""
        if self.checks_each_call:
            self._output.batch()

    def flush(self) -> None:
        """Do nothing: `ReplayTester.run` converts the rows."""
