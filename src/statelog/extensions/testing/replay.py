"""
Replay a key's recorded input through the processor in its current form.

Each recorded micro-batch is one step.  A step begins with the recorded state and timers of the key,
at the recorded times, and runs the recorded rows and the timers that were due.  What comes out is
compared with the recording: rows, state, timers, and whether it failed.  Steps are independent, so
a difference in one does not show again in those after it.  A debugger can stop where a step fails
or differs.
"""

from __future__ import annotations

import json
import logging
import pdb
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Final

import pyarrow as pa
from msgspec import UnsetType
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.types import StructType

from statelog.checkpoint.attachments import UnreadableAttachment
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import CheckpointName, checkpoint_id_of
from statelog.errors import CheckpointError, CorruptionError, ProcessorError, UsageError
from statelog.extensions.broadcasts.stored import read_broadcast
from statelog.extensions.broadcasts.tables import version_of
from statelog.extensions.recordings.format import Cells, Failure, cells_in
from statelog.extensions.recordings.location import steps_of_key
from statelog.extensions.recordings.step import RecordedStep
from statelog.extensions.testing.find_processor import find_processor, refuse_no_processor
from statelog.extensions.testing.memory_job import MemoryJob, PlainExtensions, content_of
from statelog.extensions.testing.tester_rows import GivenFormat, rows_in
from statelog.model import JsonObject, KeyGroupRange
from statelog.model.handles import checked_path
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import declared_by
from statelog.spark.query.processor_checks import copy_of
from statelog.spark.query.query import TIME_MODES
from statelog.spark.rows.formats import PandasRowFormat, RowFormat, SparkRowFormat
from statelog.spark.rows.interface import KeyedInput, OutputCollector
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN, InputLayout
from statelog.spark.rows.spark_versions import StatefulProcessor
from statelog.spark.worker.extension import TaskRun, keyed_state
from statelog.spark.worker.failures import error_text
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.spark.worker.protocol import BatchContext
from statelog.state.cache import AnyState
from statelog.state.schema import evolve
from statelog.store import ObjectStore

_log = logging.getLogger("statelog.spark")

__all__ = ["Difference", "ReplayedStep", "replay", "replay_step"]

_METHODS: Final = ("handleExpiredTimer", "handleInitialState", "handleInputRows")
"""The methods of a processor in which the debugger stops; a recording may name any text."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """
    The result of a step, and the state before the step.

    Args:
        state: State by variable, as `ProcessorTester.stateOf`.
        expiry: When it expires, as `ProcessorTester.expiryOf`.
        timers: Times in milliseconds, ascending.
        output: The rows, with the types of the output.
    """

    state: Mapping[str, object]
    expiry: Mapping[str, object]
    timers: Sequence[int]
    output: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """
    A difference between a replay and the recording.

    Args:
        what: "output", "timers", "error", or "state" and the name of a variable.
        recorded: What was recorded; None for nothing.
        found: What the processor of today makes.
    """

    what: str
    recorded: object
    found: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """
    One micro-batch of a key, as recorded and as replayed.

    Args:
        recorded: The recording.
        input: The input rows.
        before: State and timers before: by variable, as `ProcessorTester.stateOf`.
        timers_before: Timers before, in milliseconds.
        expiry_before: When the state before expires, as `ProcessorTester.expiryOf`.
        recorded_result: What was recorded; None where the key failed.
        found: What the processor of today makes; None where it failed.
        error: Its error, or None.
        differences: What is not as it was recorded.
    """

    recorded: RecordedStep
    input: Sequence[Row]
    before: Mapping[str, object]
    timers_before: Sequence[int]
    expiry_before: Mapping[str, object]
    recorded_result: StepResult | None
    found: StepResult | None
    error: ProcessorError | None
    differences: tuple[Difference, ...]

    @property
    def checkpoint_id(self) -> int:
        """The micro-batch's checkpoint, which a failed micro-batch would have created."""
        return self.recorded.task.checkpoint_id


def replay(
    location: str,
    key: object,
    *,
    processor: StatefulProcessor | str | None = None,
    operator: str | None = None,
    since: CheckpointName | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> list[ReplayedStep]:
    """
    Replay a key's recorded input through the current processor, without Spark.

    Example:
        for step in replay("s3://bucket/jobs/totals", "c1", processor=Totals()):
            print(step.differences)

    Args:
        location: The state location, as a path or URL.
        key: The values of the key columns, as a tuple; for one column the value alone will do.
        processor: The processor, or `module:Class` or `file.py:Class` of it.  Without one the
            error tells which processor the recording names.
        operator: Name of the operator, where the query has several.
        since: Only micro-batches after this checkpoint: an id, "latest", "earliest", a tag, or a
            time; None for all.
        storage_options: Options of the store's client.

    Returns:
        A step for each micro-batch in which the key was recorded, oldest first; each has its
        `differences`.

    Raises:
        UsageError: The key was not recorded, or the processor cannot be found or made, or
            *since* names no checkpoint.
        CheckpointError: The processor cannot continue from the recorded state, or no checkpoint is
            as old as *since*.
        CorruptionError: A recording has settings that no query has.
        StoreError: The store failed.

    Blocks: On the store; reads every recording of the location.  Recordings that are damaged or
        missing are logged as warnings, and left out.
    """
    store = open_state(location, options=storage_options)
    unreadable: list[UnreadableAttachment] = []
    steps = recorded_steps(store, key, unreadable=unreadable, operator=operator, since=since)
    for recording in unreadable:
        _log.warning("the replay skips the recording %s: %s", recording.path, recording.problem)
    if processor is None:
        refuse_no_processor(steps[-1].task)
    if isinstance(processor, str):
        processor = find_processor(processor, location=str(location))
    return [replay_step(step, processor) for step in steps]


def recorded_steps(
    store: ObjectStore,
    key: object,
    *,
    unreadable: list[UnreadableAttachment],
    operator: str | None = None,
    since: CheckpointName | None = None,
) -> list[RecordedStep]:
    """
    Return a key's recorded steps; arguments and errors as for `replay`.

    *unreadable* receives the recordings that are left out.
    """
    after = -1
    if since is not None:
        after = checkpoint_id_of(store, since, "since")
    every = steps_of_key(store, key, unreadable=unreadable, operator=operator)
    recorded = [step for step in every if step.task.checkpoint_id > after]
    steps = list(_with_broadcasts(store, recorded, unreadable))
    if not steps:
        range_text = "" if since is None or not every else f" after checkpoint {after}"
        gaps = "".join(
            f"; {recording.path} cannot be read: {recording.problem}"
            for recording in unreadable[:1]
        )
        raise UsageError(
            f"{store.url} does not contain a recording of the key {key!r:.200}{range_text}{gaps}. `statelog replay "
            f"{store.url}` lists the recorded keys; the setting `record` selects the keys to record"
        )
    names = dict.fromkeys(step.task.operator_id for step in steps)
    if len(names) > 1:
        raise UsageError(
            f"the key {key!r:.200} was recorded by several operators: select one of "
            f"{', '.join(names)} (--operator)"
        )
    return steps


def _with_broadcasts(
    store: ObjectStore, steps: Sequence[RecordedStep], unreadable: list[UnreadableAttachment]
) -> Iterator[RecordedStep]:
    """Yield steps with the broadcast tables that they read, skipping steps that lack one."""
    tables: dict[str, pa.Table] = {}
    for step in steps:
        entries = step.task.broadcasts
        if isinstance(entries, UnsetType):
            yield step
            continue
        path = ""
        try:
            for entry in entries:
                path = checked_path(entry.path)
                if path not in tables:
                    tables[path] = read_broadcast(store, entry)
        except (CheckpointError, CorruptionError) as error:
            unreadable.append(UnreadableAttachment(path, str(error)))
            continue
        yield replace(step, broadcasts={entry.name: tables[entry.path] for entry in entries})


def replay_step(
    step: RecordedStep,
    processor: StatefulProcessor,
    run: Callable[[Callable[[], StepResult]], StepResult] = lambda call: call(),
) -> ReplayedStep:
    """
    Replay a single recorded step.

    *run* calls the function that runs it: a debugger may call it in its own way.
    """
    try:
        replayed = _Replay(processor, step, row_format_of(step))
    except CheckpointError as error:
        raise CheckpointError(
            f"the processor cannot start with the recorded state: {error}", reason="incompatible"
        ) from error
    before = replayed.result(step.before)
    result: StepResult | None = None
    failed: ProcessorError | None = None
    try:
        result = run(replayed.run)
    except ProcessorError as error:
        failed = error
    recorded = None
    if step.after is not None:
        recorded = replayed.result(step.after, rows_in(step.output))
    return ReplayedStep(
        recorded=step,
        input=rows_in(step.input.select(range(step.task.first_input, step.input.num_columns)))
        if step.input.num_rows
        else [],
        before=before.state,
        timers_before=before.timers,
        expiry_before=before.expiry,
        recorded_result=recorded,
        found=result,
        error=failed,
        differences=tuple(_differences(step, recorded, result, failed)),
    )


class _CheckedRun(ProcessorRun):
    """
    A run that ends a call as soon as its rows do not fit the output.

    It checks what a call changed before what it yielded, as `IsolatingRun` does.
    """

    def _convert_if_many(self) -> None:
        self.encoded()
        self.flush()


class _CheckedCalls(PlainExtensions):
    """The extensions for a step that failed in a call for rows, before any timer fired."""

    def new_run(
        self,
        context: BatchContext,
        state: AnyState,
        key_group_range: KeyGroupRange,
        output: OutputCollector,
    ) -> TaskRun:
        """Return a run that checks each call."""
        keyed = keyed_state(context.processor, state)
        return _CheckedRun(context, keyed, key_group_range, output, self)


class _Replay:
    """A job whose next micro-batch is a recorded step."""

    def __init__(
        self, processor: StatefulProcessor, step: RecordedStep, row_format: RowFormat
    ) -> None:
        self._step = step
        self._row_format = row_format
        self._processor = copy_of(processor)
        stored = step.schema
        mode = step.task.time_mode
        if mode not in TIME_MODES:
            raise CorruptionError(f"a recording contains the invalid time mode {mode!r:.100}")
        declared = declared_by(
            processor, stored.operator_id, stored.key_schema, parse_ddl, time_mode=mode
        )
        tables = {name: version_of(name, table) for name, table in step.broadcasts.items()}
        self._extras = {**declared.extras, "broadcasts": tables}
        self._now_ms = -1 if mode == "none" else step.task.now_ms
        schema = evolve(stored, declared.state, now_ms=max(step.task.now_ms, 0))
        failure = step.failure
        in_rows = failure is not None and failure.method != "handleExpiredTimer"
        self._memory_job = MemoryJob(schema, mode, _CheckedCalls if in_rows else PlainExtensions)
        self._place = self._memory_job.place(step.key)
        self._memory_job.set_cells(self._place, self._cells(step.before))

    def _cells(self, table: pa.Table) -> Cells:
        return cells_in(self._memory_job.codec, self._step.task.schema, table)[0]

    def result(self, state: pa.Table | Cells, output: Sequence[Row] = ()) -> StepResult:
        """Return a result, built from a key's cells or from one row of a recorded table."""
        cells = self._cells(state) if isinstance(state, pa.Table) else state
        return StepResult(*content_of(self._memory_job.codec, cells, self._now_ms), output)

    def run(self) -> StepResult:
        """Run the step and return its result."""
        step = self._step
        task = self._step.task
        rows = self._input(step.input, task.key_positions, task.first_input)
        initial = None
        if step.initial.num_rows:
            initial = self._input(step.initial, task.initial_positions, task.first_initial)
        context = BatchContext(
            self._processor, task.batch_id, task.time_mode, self._now_ms, task.watermark_ms
        )
        row_format = GivenFormat(self._row_format, rows, initial)
        schema = step.output.schema
        batches, _ = self._memory_job.run(context, row_format, schema, self._extras)
        output = rows_in(pa.Table.from_batches(batches, schema))
        return self.result(self._memory_job.cells(self._place), output)

    def _input(self, table: pa.Table, keys: tuple[int, ...], first: int) -> KeyedInput:
        """Convert recorded rows to the input of a task, whose first column is the key group."""
        read = self._row_format.input(InputLayout(keys, first), self._memory_job.codec.key)
        groups = pa.array([self._place[0]] * table.num_rows, pa.int32())
        read.read(table.set_column(0, INPUT_KEY_GROUP_COLUMN, groups).to_batches())
        return read


def row_format_of(step: RecordedStep) -> RowFormat:
    """Return the row format with which a step was recorded."""
    if step.task.row_format == "rows":
        return SparkRowFormat()
    # Imported here, because the import of pandas takes time.
    from statelog.spark.rows.pandas_input import PandasSettings

    settings: dict[str, Any] = dict(step.task.frames)
    try:
        columns = _output_columns(json.loads(settings.pop("columns")))
        return PandasRowFormat(PandasSettings(**settings), columns)
    except (KeyError, TypeError, ValueError, PySparkException) as error:
        raise CorruptionError(
            f"the frame settings in a recording are not valid: {error!r:.300}"
        ) from error


def _output_columns(stored: JsonObject) -> StructType:
    """
    Return the columns of the output.

    A user-defined type is refused: PySpark imports the module that its JSON names, and older
    versions unpickle its class.
    """
    waiting = [stored]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            if node.get("type") == "udt" or "pyClass" in node or "serializedClass" in node:
                raise ValueError("it contains a user-defined type")
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return StructType.fromJson(stored)


def _differences(
    step: RecordedStep,
    recorded: StepResult | None,
    result: StepResult | None,
    failed: ProcessorError | None,
) -> list[Difference]:
    if failed is not None:
        if step.failure is not None and _is_of_same_kind(step.failure, failed):
            return []
        before = None if step.failure is None else f"{step.failure.error}: {step.failure.message}"
        return [Difference("error", before, ": ".join(error_text(failed)))]
    if recorded is None or result is None:
        failure = step.failure
        was = None if failure is None else f"{failure.error}: {failure.message}"
        return [Difference("error", was, None)]
    pairs: list[tuple[str, object, object]] = [("output", recorded.output, result.output)]
    for name in dict.fromkeys((*recorded.state, *result.state)):
        pairs.append((f"state {name}", recorded.state.get(name), result.state.get(name)))
        if name in recorded.state and name in result.state:
            times = recorded.expiry.get(name), result.expiry.get(name)
            pairs.append((f"expiry of state {name}", *times))
    pairs.append(("timers", recorded.timers, result.timers))
    return [Difference(*pair) for pair in pairs if not same(pair[1], pair[2])]


def _is_of_same_kind(recorded: Failure, failed: ProcessorError) -> bool:
    """Return whether a call failed in the same way as recorded."""
    kind, text = error_text(failed)
    if recorded.error != kind or not recorded.message:
        return recorded.error == kind and recorded.message == text
    # Output that does not fit: where it ends the micro-batch, the error names the call too.
    is_part = failed.__cause__ is None and recorded.message in text
    return is_part or recorded.message == text


def same(recorded: object, other: object) -> bool:
    """Return whether two values are equal; NaN equals NaN."""
    if isinstance(recorded, float) and isinstance(other, float) and recorded != recorded:
        return other != other
    if isinstance(recorded, Mapping) and isinstance(other, Mapping):
        if len(recorded) != len(other):
            return False
        pairs = zip(
            sorted(recorded.items(), key=repr), sorted(other.items(), key=repr), strict=True
        )
        return recorded == other or all(same(*pair) for pair in pairs)
    if isinstance(recorded, list | tuple) and isinstance(other, list | tuple):
        return len(recorded) == len(other) and all(map(same, recorded, other))
    return bool(recorded == other)


def debug_step(
    step: ReplayedStep,
    processor: StatefulProcessor,
    *,
    stdin: IO[str] | None = None,
    stdout: IO[str] | None = None,
) -> None:
    """
    Open the debugger at the first difference in a step, or at its error.

    A step that fails is opened where the processor raised.  A step that differs is run again, and
    stops where the processor is called.
    """
    sys.stdout.flush()
    # Without a .pdbrc: the one in the working directory may be a file of the location.
    debugger = pdb.Pdb(stdin=stdin, stdout=stdout or sys.stdout, readrc=False)
    cause = None if step.error is None else step.error.__cause__
    if cause is not None and cause.__traceback__ is not None:
        debugger.reset()
        debugger.interaction(None, cause.__traceback__)
        return
    called = {call.method for call in step.recorded.calls}
    for method in [method for method in _METHODS if method in called] or ["handleInputRows"]:
        code = getattr(getattr(type(processor), method, None), "__code__", None)
        if code is not None:
            # As the debugger's `break function`: at its first line, not at its definition.
            debugger.set_break(code.co_filename, code.co_firstlineno, funcname=method)
    debugger.rcLines.append("continue")

    def run(call: Callable[[], StepResult]) -> StepResult:
        results: list[StepResult] = []
        debugger.runcall(lambda: results.append(call()))
        return results[0]

    replay_step(step.recorded, processor, run)
