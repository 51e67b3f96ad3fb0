"""
A stateful operator over a batch frame: every key once, its state thrown away at the end.

The same run of the processor as in a stream, over state that lives in the task alone: no store, no
changelog, no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from statelog.model import KeyGroupRange
from statelog.spark.driver.state_location import now_ms
from statelog.spark.query.initial_state import with_initial_rows
from statelog.spark.query.keyed_frame import partition_of
from statelog.spark.query.operator_definition import OperatorDefinition
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.batch_task import batch_task
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.protocol import BatchContext, BatchFrameSpec, TaskRows


def batch_frame(definition: OperatorDefinition, settings: QuerySettings) -> DataFrame:
    """
    Return the output of the operator over a batch frame, lazily.

    Args:
        definition: The operator.
        settings: Its settings; what they say of the store does not matter.
    """
    frame, groups, tasks = definition.frame, definition.max_parallelism, settings.tasks
    if tasks is None:  # a task holds all rows of its keys, so there are not few
        partitions = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        tasks = min(partitions, groups)
    time_mode, initial = definition.time_mode, definition.initial
    spec = BatchFrameSpec(
        context=BatchContext(
            definition.processor, 0, time_mode, now_ms() if time_mode != "none" else -1
        ),
        rows=TaskRows(
            layout=definition.layout,
            row_format=definition.row_format,
            output=definition.arrow_output,
            input_bytes=settings.backend.input_bytes,
            initial=None if initial is None else initial.task_layout,
        ),
        schema=definition.schema.to_json(),
        key_groups=KeyGroupRange(0, groups - 1),
        backend=settings.backend,
    )
    if initial is not None:
        frame = with_initial_rows(frame, initial)
    partitioned = frame.repartitionById(tasks, partition_of(tasks, groups))
    return partitioned.mapInArrow(partial(_reporting_task, spec), definition.output)


def _reporting_task(
    spec: BatchFrameSpec, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(""):
        yield from batch_task(spec, batches)
