"""Define the messages that the driver sends to a task, and the task's result."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pyarrow as pa

from statelog.errors import InvariantError
from statelog.metrics.table import FigureValue
from statelog.model import ChangelogStateHandle, FileStateHandle, KeyGroupRange
from statelog.model.checkpoint import MaterializedHandle
from statelog.options import ChangelogOptions, task_options
from statelog.spark.query.face import AnyProcessor
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.interface import UnnamedColumns
from statelog.spark.rows.layout import InitialLayout, InputLayout, LateRows
from statelog.state.heap import StateBackendConfig

StagedOutput = bytes | tuple[FileStateHandle, ...] | None
"""Staged rows: an Arrow IPC stream, the files that contain such streams, or no rows."""

_Part = TypeVar("_Part")

NEVER_MS = (1 << 63) - 1
"""The time that stands for no timer; it is later than all timers."""


@dataclass(frozen=True, slots=True)
class BatchContext:
    """
    The micro-batch for which a processor runs.

    Args:
        processor: The user's processor.
        batch_id: Spark's id of the micro-batch.
        time_mode: "none", "processingtime" or "eventtime".
        now_ms: Processing time of the batch; -1 without.
        watermark_ms: The batch's watermark; -1 without.
        zone: The session's time zone, in which a processor of columns gets points in time.
    """

    processor: AnyProcessor
    batch_id: int
    time_mode: str
    now_ms: int = -1
    watermark_ms: int = -1
    zone: str = "UTC"

    @property
    def due_until_ms(self) -> int:
        """The latest time at which a timer counts as due."""
        return self.watermark_ms if self.time_mode == "eventtime" else self.now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRows:
    """
    The formats of the tasks' input and output.

    Args:
        layout: Positions of the key columns and the processor's columns in the input.
        row_format: The form in which the processor gets rows.
        output: Schema of the output rows.
        input_bytes: Rows of a task up to this size, as Python objects, are processed at once.
        initial: Layout of the input of a first micro-batch with initial state.
        late: The rule for late rows, where the time mode drops them.
        event_time_output: The output column that may not be older than the watermark, or None.
        is_read: Whether the partitions have input rows (False: a micro-batch without data).
    """

    layout: InputLayout
    row_format: RowFormat
    output: pa.Schema
    input_bytes: int = sys.maxsize
    initial: InitialLayout | None = None
    late: LateRows | None = None
    event_time_output: str | None = None
    is_read: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """
    What tasks need to know about the state of a query.

    Args:
        location: Root of the state location as a URL.
        storage_options: Client options of the store.
        epoch: The driver's claim on the location.
        run_id: Unique name of the driver's run; a new one invalidates cached state, also where a
            location was deleted and a new one under its name has the same epoch.
        schema: JSON of the operator's state schema.
        backend: Where the worker keeps the state.
        operator: Index of the operator in the query.
        changelog: How the tasks upload.
    """

    location: str
    storage_options: Mapping[str, object]
    epoch: int
    schema: dict[str, object]
    backend: StateBackendConfig = field(default_factory=StateBackendConfig)
    operator: int = 0
    run_id: str = ""
    changelog: ChangelogOptions = field(default_factory=lambda: task_options().changelog)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """
    The instructions for the tasks of a micro-batch.

    Pickled with the function that Spark runs.

    Args:
        context: The micro-batch, for the processor.
        rows: Input and output.
        state: The state.
        checkpoint_id: The checkpoint being made.
        base_id: The checkpoint to start from; -1 for the empty state.  It is the newest one in
            which the operator ran: its state is the same in the checkpoints after it.
        restore_id: The newest checkpoint, from which a task restores what it lacks.
        committed: Ids of the log handles that checkpoint *base_id* added.
        ranges: Key groups of each task, by partition.
        snapshots: Key groups of which to write a snapshot in this micro-batch, by partition.
        inline_bytes: Deltas, and outputs, up to this size are sent to the driver in the answer.
        staged: Whether output rows are sent in the answer (False: they are the task's result).
        extras: What extensions tell the tasks, by their names.
    """

    context: BatchContext
    rows: TaskRows
    state: TaskState
    checkpoint_id: int
    base_id: int
    restore_id: int
    committed: tuple[str, ...]
    ranges: tuple[KeyGroupRange, ...]
    snapshots: Mapping[int, KeyGroupRange]
    inline_bytes: int
    staged: bool
    extras: Mapping[str, object] = field(default_factory=dict)


def part_of(extras: Mapping[str, object], name: str, kind: type[_Part]) -> _Part | None:
    """
    Return an extension's part of the extras in a `TaskSpec` or a `TaskAck`.

    None for no part.
    """
    part = extras.get(name)
    if part is None or isinstance(part, kind):
        return part
    raise InvariantError(
        f"the extension {name} sent a {type(part).__name__}, not a {kind.__name__}"
    )


# The parts of an answer are msgspec's structs: the driver unpickles one for each task, and a struct takes a
# third of the time of a dataclass with slots.


class TaskPlace(msgspec.Struct, frozen=True):
    """
    Identifies the task that returned a result.

    Args:
        partition: Its partition.
        key_range: Its key groups.
        attempt: Number of attempts of the task that failed before this one.
        spark_task: The number that Spark gave to this attempt and to no other; -1 outside of Spark.
    """

    partition: int
    key_range: KeyGroupRange
    attempt: int = 0
    spark_task: int = -1


class TaskChanges(msgspec.Struct, frozen=True):
    """
    The state changes that a task has made durable.

    Args:
        log: Handle of the changes that it appended; None for no change.
        snapshot: Handle of its snapshot, if the driver asked for one and the task wrote it.
        snapshot_error: Why the snapshot failed; "" if it did not.
        next_due_ms: When the next timer of its key groups is due; `NEVER_MS` for none.
        group_entries: State entries of each of its key groups.
    """

    log: ChangelogStateHandle | None = None
    snapshot: MaterializedHandle | None = None
    snapshot_error: str = ""
    next_due_ms: int = NEVER_MS
    group_entries: Sequence[int] = ()


class TaskOutput(msgspec.Struct, frozen=True):
    """
    The rows that a task produces.

    Args:
        staged: The rows, where they are staged.
        unnamed: The output columns that none of the rows names; None if there are none.
    """

    staged: StagedOutput = None
    unnamed: UnnamedColumns | None = None

    @property
    def files(self) -> tuple[FileStateHandle, ...]:
        """The files that contain staged rows."""
        return self.staged if isinstance(self.staged, tuple) else ()


class TaskAck(msgspec.Struct, frozen=True):
    """
    The result that a task returns to the driver.

    Args:
        place: Which task it is.
        changes: What it did to the state.
        output: What it yields.
        figures: What it counted, by the names of the figures; what is 0 may be left out.
        top_groups, top_keys: The key groups (key group, rows) and keys (key group, key, rows) with
            the most rows.
        uploads: What the worker recorded of its uploads since its last answer, with those of tasks
            that failed in between; see `MetricsJournal`.
        extras: What extensions answer, by their names; of extensions that have something to say.
    """

    place: TaskPlace
    changes: TaskChanges = TaskChanges()
    output: TaskOutput = TaskOutput()
    figures: Mapping[str, FigureValue] = {}
    top_groups: Sequence[tuple[int, int]] = ()
    top_keys: Sequence[tuple[int, str, int]] = ()
    uploads: Sequence[tuple[str, float]] = ()
    extras: Mapping[str, object] = {}

    def count(self, name: str) -> int:
        """Return the value of a figure that counts something."""
        value = self.figures.get(name, 0)
        return value if isinstance(value, int) else 0

    def milliseconds(self, phase: str) -> float:
        """Return the duration of a phase, or 0 if it did not run."""
        phases = self.figures.get("task_milliseconds", {})
        return phases.get(phase, 0.0) if isinstance(phases, Mapping) else 0.0
