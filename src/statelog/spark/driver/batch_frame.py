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
from statelog.spark.query.operator_definition import EngineConfig
from statelog.spark.worker.batch_task import batch_task
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.protocol import TaskSpec

_NOTHING = -1


def batch_frame(frame: DataFrame, config: EngineConfig, tasks: int | None) -> DataFrame:
    """
    Return the output of the operator over a batch frame, lazily.

    Args:
        frame: The input with its key groups.
        config: The operator; what it says of the store does not matter.
        tasks: Number of tasks; None for `spark.sql.shuffle.partitions`, since a task holds all rows
            of its keys.
    """
    if tasks is None:
        partitions = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        tasks = min(partitions, config.max_parallelism)
    spec = TaskSpec(
        location="",
        store_options={},
        fsync=False,
        epoch=0,
        batch_id=0,
        checkpoint_id=0,
        base_id=_NOTHING,
        committed=(),
        # Any task may meet any partition, and several: the frame can be coalesced or united.
        ranges=(KeyGroupRange(0, config.max_parallelism - 1),),
        schema=config.schema.to_json(),
        key_positions=config.key_positions,
        first_input=config.first_input,
        output=config.arrow_output,
        processor=config.processor,
        time_mode=config.time_mode,
        now_ms=now_ms() if config.time_mode != "none" else -1,
        snapshots={},
        inline_bytes=0,
        staged=False,
        backend=config.backend,
        input_bytes=config.backend.input_bytes,
        flavour=config.flavour,
        initial=None if config.initial is None else config.initial.task_layout,
    )
    if config.initial is not None:
        frame = with_initial_rows(frame, config.initial)
    partitioned = frame.repartitionById(tasks, partition_of(tasks, config.max_parallelism))
    return partitioned.mapInArrow(partial(_reporting_task, spec), config.output)


def _reporting_task(spec: TaskSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(spec.location):
        yield from batch_task(spec, batches)
