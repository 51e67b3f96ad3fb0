"""
Run a stateful operator over a batch frame, and discard its state.

The processor runs as in a stream, but its state exists in the task only: there is no store, no
changelog and no checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from statelog.model import KeyGroupRange
from statelog.runtime.clock import wall_clock_ms
from statelog.spark.query.declared_state import batch_parts
from statelog.spark.query.keyed_frame import by_task, with_initial_rows
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.query.settings import QuerySettings
from statelog.spark.rows.types import make_row
from statelog.spark.worker.extension import TaskExtensions
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.kept_states import new_state
from statelog.spark.worker.output_parts import DirectOutput
from statelog.spark.worker.protocol import BatchContext, TaskRows
from statelog.spark.worker.spill_file import SpillFile
from statelog.spark.worker.task_input import TaskInput, without_delay
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import StateBackendConfig
from statelog.state.schema import OperatorStateSchema


def batch_frame(definition: OperatorDefinition, settings: QuerySettings) -> DataFrame:
    """Return the operator's output for a batch frame, computed lazily."""
    extras = batch_parts(definition.declared, settings)
    frame = definition.frame
    groups = definition.max_parallelism
    # As many as a shuffle has: a task holds all rows of its keys.
    partitions = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    bounds = settings.task_bounds(partitions)
    tasks = max(bounds.least, min(partitions, bounds.most))
    key_groups = KeyGroupRange(0, groups - 1)
    time_mode = definition.time_mode
    initial = definition.initial
    spec = BatchFrameSpec(
        context=BatchContext(
            definition.processor,
            0,
            time_mode,
            wall_clock_ms() if time_mode != "none" else -1,
            zone=definition.zone,
        ),
        rows=TaskRows(
            layout=definition.layout,
            row_format=definition.row_format,
            output=definition.arrow_output,
            input_bytes=settings.backend.input_bytes,
            initial=None if initial is None else initial.task_layout,
        ),
        schema=definition.schema.to_json(),
        key_groups=key_groups,
        backend=settings.backend,
        extras=extras,
    )
    if initial is not None:
        frame = with_initial_rows(frame, initial)
    partitioned = by_task(frame, tasks, key_groups)
    return partitioned.mapInArrow(partial(_reporting_task, spec), definition.output)


def _reporting_task(
    spec: BatchFrameSpec, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(""):
        yield from batch_task(spec, without_delay(batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFrameSpec:
    """
    The instructions for the tasks that process a batch frame.

    Args:
        context: The only batch, for the processor.
        rows: Input and output.
        schema: JSON of the operator's state schema.
        key_groups: All key groups, because any task may get any partition, and several.
        backend: Memory and local disk of the worker.
        extras: What extensions tell the tasks, by their names.
    """

    context: BatchContext
    rows: TaskRows
    schema: dict[str, object]
    key_groups: KeyGroupRange
    backend: StateBackendConfig
    extras: Mapping[str, object] = field(default_factory=dict)


def batch_task(spec: BatchFrameSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the processor over one partition, starting with empty state."""
    with contextlib.closing(SpillFile(spec.backend.folder)) as file:
        yield from _outputs(spec, batches, file)


def _outputs(
    spec: BatchFrameSpec, batches: Iterable[pa.RecordBatch], file: SpillFile
) -> Iterator[pa.RecordBatch]:
    every_group = spec.key_groups
    out = spec.rows.output
    codec = OperatorCodec(OperatorStateSchema.from_json(spec.schema), make_row)
    state = new_state(spec.context.processor, codec)
    # A batch frame begins without state: all key groups begin empty, at version -1.
    state.forget(list(every_group))  # each is there, and empty
    rows = TaskInput(spec.rows, codec.key, every_group, batches, file)
    rows_out = spec.rows.row_format.output(out, spec.context.batch_id)
    output = DirectOutput(rows_out, lambda _batch: None, out, file)
    run = TaskExtensions(spec.extras).new_run(spec.context, state, every_group, output)
    run.begin()
    # Parts are dropped from memory as in a stream; only the log is missing, because nothing reads
    # it.
    in_parts = rows.is_large and run.in_parts(file)
    for part in rows.parts():
        run.take(part.rows, part.initial)
        if in_parts:
            run.retire(run.encoded())
            yield from output.batches()
    run.end()
    run.encoded()  # as in a stream, a value that does not fit is an error
    run.flush()
    yield from output.batches()
