"""Everything about one stateful query that does not change while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statelog.checkpoint.options import CheckpointOptions
from statelog.core.materialization_policy import MaterializationPolicy
from statelog.metrics import Metrics
from statelog.spark.query.delivery import Delivery
from statelog.spark.query.initial_state import InitialState
from statelog.spark.query.input_plan import InputPlan
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.settings import QuerySettings
from statelog.spark.rows.formats import Flavour, RowFlavour
from statelog.state.backend import StateBackendConfig
from statelog.state.schema.descriptors import OperatorStateSchema


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
        time_mode: "none", "processingtime" or "eventtime".
        delivery: How rows reach the sink.
        min_tasks, max_tasks: Between how many tasks each micro-batch may have; equal for a fixed number.
        max_parallelism: Number of key groups.
        inline_bytes: Deltas and rows of a task up to this size travel in its answer.
        checkpoints: How many to retain, and the like.
        materialization: When to write snapshots.
        restore: "latest", "empty", or a checkpoint id to go back to.
        adopt: Go on from state that another query wrote.
        on_progress: Called with the numbers of each batch.
        metrics: Where checkpoints and snapshots are counted.
        flavour: The form in which the processor sees rows.
        initial: Rows that the first batch of an empty state begins with.
        plan: What the input's plan says.
        event_time: Where the column stands in a task's input by which rows are late, or None.
        event_time_output: The output column that may not be older than the watermark, or None.
        backend: Where the workers keep the state.
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
    min_tasks: int
    max_tasks: int
    max_parallelism: int
    inline_bytes: int
    checkpoints: CheckpointOptions
    materialization: MaterializationPolicy
    restore: int | str
    adopt: bool
    on_progress: Callable[[BatchProgress], None] | None
    metrics: Metrics
    flavour: Flavour = field(default_factory=RowFlavour)
    initial: InitialState | None = None
    plan: InputPlan = field(default_factory=InputPlan)
    event_time: int | None = None
    event_time_output: str | None = None
    backend: StateBackendConfig = field(default_factory=StateBackendConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulOperator:
    """
    A stateful operator over a stream, as it stands before a query is started.

    Args:
        frame: The input with its key groups, see `KeyedFrame`.
        config: The query but for its location; a start may change its settings.
        arguments: The settings that the code gave, without those that it left out.
    """

    frame: DataFrame
    config: EngineConfig
    arguments: Mapping[str, Any]


def engine_fields(settings: QuerySettings, cores: int) -> dict[str, Any]:
    """Return what *settings* say of an `EngineConfig`, by default with at most a task for each core."""
    least, most = settings.task_bounds(cores)
    return {
        "store_options": dict(settings.store_options),
        "fsync": settings.fsync,
        "delivery": settings.delivery,
        "min_tasks": least,
        "max_tasks": most,
        "max_parallelism": settings.max_parallelism,
        "inline_bytes": settings.inline_bytes,
        "checkpoints": settings.checkpoints,
        "materialization": settings.materialization,
        "restore": settings.restore,
        "adopt": settings.adopt,
        "backend": settings.backend,
    }
