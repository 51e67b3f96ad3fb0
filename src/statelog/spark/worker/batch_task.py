"""Run one task over a partition of a batch frame."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from statelog.spark.rows.types import make_row
from statelog.spark.worker.extension import TaskExtensions
from statelog.spark.worker.large_input import SpillFile
from statelog.spark.worker.output_parts import DirectOutput
from statelog.spark.worker.protocol import BatchFrameSpec
from statelog.spark.worker.run import new_state
from statelog.spark.worker.task_input import TaskInput
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.schema import OperatorStateSchema


def batch_task(spec: BatchFrameSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the processor over one partition, beginning with empty state."""
    with contextlib.closing(SpillFile(spec.backend.folder)) as file:
        yield from _run(spec, batches, file)


def _run(
    spec: BatchFrameSpec, batches: Iterable[pa.RecordBatch], file: SpillFile
) -> Iterator[pa.RecordBatch]:
    every_group, out = spec.key_groups, spec.rows.output
    codec = OperatorCodec(OperatorStateSchema.from_json(spec.schema), make_row)
    state = new_state(spec.context.processor, codec)
    state.forget(list(every_group))  # each is there, and empty
    rows = TaskInput(spec.rows, codec.key, every_group, batches, file)
    rows_out = spec.rows.row_format.output(out, spec.context.batch_id)
    output = DirectOutput(rows_out, lambda _batch: None, out, file)
    run = TaskExtensions(spec.extras).new_run(spec.context, state, every_group, output)
    run.begin()
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
