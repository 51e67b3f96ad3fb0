"""
Run a stateful operator over a batch frame, without keeping its state.

The processor runs as in a stream, but its state exists in the task only: there is no store, no
changelog and no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from statelog.model import KeyGroupRange
from statelog.runtime.clock import wall_clock_ms
from statelog.spark.query.declaration import batch_parts
from statelog.spark.query.keyed_frame import by_task, with_initial_rows
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.batch_task import batch_task
from statelog.spark.worker.connection import without_delay
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.protocol import BatchContext, BatchFrameSpec, TaskRows


def batch_frame(definition: OperatorDefinition, settings: QuerySettings) -> DataFrame:
    """Return the output of the operator over a batch frame, lazily."""
    extras = batch_parts(definition.declared, settings)
    frame, groups, tasks = definition.frame, definition.max_parallelism, settings.tasks
    if tasks is None:  # as many as a shuffle has: a task holds all rows of its keys
        partitions = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        tasks = min(partitions, groups)
    key_groups = KeyGroupRange(0, groups - 1)
    time_mode, initial = definition.time_mode, definition.initial
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
