"""Everything about one stateful query that does not change while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statelog.checkpoint.options import CheckpointOptions
from statelog.core.materialization_policy import MaterializationPolicy
from statelog.metrics import Metrics
from statelog.spark.delivery import Delivery
from statelog.spark.progress import BatchProgress
from statelog.state.backend import StateBackend
from statelog.state.schema import OperatorStateSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """
    Everything about one stateful query that does not change while it runs.

    Args:
        location: Root of the state location.
        store_options, fsync: How to open it.
        schema: Key and state variables the processor asks for.
        processor: The user's processor.
        output: Schema of the output rows.
        arrow_output: The same in Arrow's types.
        key_positions, first_input: Layout of the input, see `KeyedFrame`.
        time_mode: "none" or "processingtime".
        delivery: How rows reach the sink.
        tasks: Number of tasks.
        max_parallelism: Number of key groups.
        inline_bytes: Deltas and rows of a task up to this size travel in its answer.
        backend: Where the workers keep the state.
        checkpoints: How many to retain, and the like.
        materialization: When to write snapshots.
        restore: "latest", "empty", or a checkpoint id to go back to.
        adopt: Go on from state that another query wrote.
        on_progress: Called with the numbers of each batch.
        metrics: Where checkpoints and snapshots are counted.
    """

    location: str
    store_options: dict[str, Any]
    fsync: bool
    schema: OperatorStateSchema
    processor: StatefulProcessor
    output: StructType
    arrow_output: pa.Schema
    key_positions: tuple[int, ...]
    first_input: int
    time_mode: str
    delivery: Delivery
    tasks: int
    max_parallelism: int
    inline_bytes: int
    backend: StateBackend
    checkpoints: CheckpointOptions
    materialization: MaterializationPolicy
    restore: int | str
    adopt: bool
    on_progress: Callable[[BatchProgress], None] | None
    metrics: Metrics
