"""What the driver tells a task, and what a task answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statelog.model import ChangelogStateHandle, FileStateHandle, KeyGroupRange
from statelog.model.checkpoint import MaterializedHandle
from statelog.spark.rows.formats import Flavour, RowFlavour
from statelog.spark.rows.initial_rows import InitialLayout
from statelog.spark.rows.late_rows import LateRows
from statelog.state.backend import StateBackendConfig
from statelog.state.replay import CatchUp

StagedOutput = bytes | tuple[FileStateHandle, ...] | None
"""Staged rows: an Arrow IPC stream, the files that hold such streams, or no rows."""

NEVER_MS = (1 << 63) - 1
"""A time that does not come."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """
    What a task must know; pickled with the function into every micro-batch.

    Args:
        location: Root of the state location as a URL.
        store_options: Client options of the store.
        fsync: Whether the store makes local files durable.
        epoch: The driver's claim on the location; a new one makes cached state void.
        batch_id: Spark's micro-batch.
        checkpoint_id: The checkpoint being made.
        base_id: The checkpoint to start from; -1 for the empty state.
        committed: Ids of the log handles that checkpoint *base_id* added.
        ranges: Key groups of each task, by partition.
        schema: JSON of the operator's state schema.
        key_positions: Where the key columns stand in the input.
        first_input: Where the columns begin that the processor sees.
        output: Schema of the output rows.
        processor: The user's processor.
        time_mode: "none", "processingtime" or "eventtime".
        now_ms: Processing time of the batch; -1 without.
        snapshots: Key groups of which to write a snapshot this time, by partition.
        inline_bytes: Deltas, and outputs, up to this size travel to the driver in the answer.
        staged: Whether output rows go into the answer (else they are the task's result).
        flavour: The form in which the processor sees rows.
        initial: Layout of the input of a first batch that carries initial state.
        watermark_ms: The batch's watermark: event-time timers up to it are due; -1 without.
        event_time_output: The output column that may not be older than the watermark, or None.
        reads_input: Whether the partitions carry input rows (else the batch has no data).
        backend: Where the worker keeps the state.
        input_bytes: Rows of a task up to this size, as Python objects, are processed at once.
        late: Which rows come later than the watermark, where the time mode drops them.
    """

    location: str
    store_options: dict[str, Any]
    fsync: bool
    epoch: int
    batch_id: int
    checkpoint_id: int
    base_id: int
    committed: tuple[str, ...]
    ranges: tuple[KeyGroupRange, ...]
    schema: dict[str, Any]
    key_positions: tuple[int, ...]
    first_input: int
    output: pa.Schema
    processor: StatefulProcessor
    time_mode: str
    now_ms: int
    snapshots: Mapping[int, KeyGroupRange]
    inline_bytes: int
    staged: bool
    flavour: Flavour = field(default_factory=RowFlavour)
    initial: InitialLayout | None = None
    watermark_ms: int = -1
    event_time_output: str | None = None
    reads_input: bool = True
    backend: StateBackendConfig = field(default_factory=StateBackendConfig)
    input_bytes: int = sys.maxsize
    late: LateRows | None = None

    @property
    def due_until_ms(self) -> int:
        """Up to when timers are due, in the time of the time mode."""
        return self.watermark_ms if self.time_mode == "eventtime" else self.now_ms


@dataclass(slots=True)
class TaskAck:
    """
    A task's answer to the driver.

    Args:
        partition: Which task.
        key_group_range: Its key groups.
        log: Handle of what it appended; None for no change.
        materialized: Handle of its snapshot, if it was asked for one and could write it.
        snapshot_error: Why it could not.
        output: Staged rows.
        rows, keys, entries, output_rows: Counts: input rows, keys touched, state entries, rows out.
        group_entries: State entries of each of its key groups.
        top_groups, top_keys: Its largest key groups (key group, rows) and keys (key group, key,
            rows).
        late_rows: Input rows that were dropped, which *rows* does not count.
        delta_bytes: Bytes of all changes.
        next_due_ms: When the next timer of its key groups is due; `NEVER_MS` for none.
        objects, object_bytes: Objects it wrote to the store, and their size.
        caught_up: How the state was brought forward.
        milliseconds: Duration of each phase.
    """

    partition: int
    key_group_range: KeyGroupRange
    log: ChangelogStateHandle | None = None
    materialized: MaterializedHandle | None = None
    snapshot_error: str = ""
    output: StagedOutput = None
    rows: int = 0
    keys: int = 0
    entries: int = 0
    output_rows: int = 0
    late_rows: int = 0
    group_entries: list[int] = field(default_factory=list)
    top_groups: list[tuple[int, int]] = field(default_factory=list)
    top_keys: list[tuple[int, str, int]] = field(default_factory=list)
    delta_bytes: int = 0
    next_due_ms: int = NEVER_MS
    objects: int = 0
    object_bytes: int = 0
    caught_up: CatchUp = field(default_factory=CatchUp)
    milliseconds: dict[str, float] = field(default_factory=dict)
