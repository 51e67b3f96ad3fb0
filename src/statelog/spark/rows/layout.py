"""
The columns of a task's input, and how to recognize initial rows and late rows.

A first micro-batch brings initial rows with its input, see `query/keyed_frame`.  Tasks drop rows
that are later than the watermark, and count them.  A filter of Spark's before the shuffle would
have the watermark in its plan, which Spark would analyse and compile again for each micro-batch,
and a count would need one more operator.
Source: Spark's WatermarkSupport; the count is its `numRowsDroppedByWatermark`, Flink's
`numLateRecordsDropped`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

INPUT_KEY_GROUP_COLUMN = "__key_group"
"""Name of the first column of a task's input."""

INPUT_ROWS = "the input rows,"
"""The name of a task's input in size errors."""

_FIRST_COLUMN = 2  # after the key group and the flag for initial rows


@dataclass(frozen=True, slots=True)
class InputLayout:
    """The layout of a task's batches: key group, keys, then input columns from *first_input*."""

    key_positions: tuple[int, ...]
    first_input: int


@dataclass(frozen=True, slots=True)
class InitialLayout:
    """The layout of initial rows after they are split off, and the column names of both parts."""

    layout: InputLayout
    input_names: tuple[str, ...]
    initial_names: tuple[str, ...]


def split_batches(
    batches: Iterable[pa.RecordBatch], layout: InitialLayout
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Split batches from `with_initial_rows` into the input rows and the initial rows."""
    parts = [(input_part(batch, layout), initial_part(batch, layout)) for batch in batches]
    return [rows for rows, _ in parts], [initial for _, initial in parts]


def input_part(batch: pa.RecordBatch, layout: InitialLayout) -> pa.RecordBatch:
    """Return the input rows in one batch of `with_initial_rows`."""
    columns = slice(_FIRST_COLUMN, _FIRST_COLUMN + len(layout.input_names))
    return _part(batch.filter(pc.invert(batch.column(1))), columns, layout.input_names)


def initial_part(batch: pa.RecordBatch, layout: InitialLayout) -> pa.RecordBatch:
    """Return the initial rows in one batch of `with_initial_rows`."""
    columns = slice(_FIRST_COLUMN + len(layout.input_names), None)
    return _part(batch.filter(batch.column(1)), columns, layout.initial_names)


def _part(batch: pa.RecordBatch, columns: slice, names: tuple[str, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [batch.column(0), *batch.columns[columns]], names=[INPUT_KEY_GROUP_COLUMN, *names]
    )


@dataclass(frozen=True, slots=True)
class LateRows:
    """
    Drops late rows, whose event time is at or before *late_ms*.

    The event time is at a position of the task's input; of a window the end counts.
    """

    position: int
    late_ms: int

    def without_late(
        self, batches: Iterable[pa.RecordBatch], seen: LateCount
    ) -> Iterator[pa.RecordBatch]:
        """Yield *batches* without their late rows, and count those in *seen*."""
        for batch in batches:
            column = batch.column(self.position)
            if pa.types.is_struct(column.type):
                column = pc.struct_field(column, "end")
            moments = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
            in_time = pc.fill_null(pc.greater(moments, self.late_ms * 1000), True)
            late = batch.num_rows - in_time.true_count
            seen.rows += late
            yield batch.filter(in_time) if late else batch


@dataclass(slots=True)
class LateCount:
    """The number of late rows that a task has read so far."""

    rows: int = 0
