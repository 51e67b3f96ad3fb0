"""Split a first micro-batch into input rows and initial rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN, InputLayout

_FIRST_COLUMN = 2  # after the key group and the flag for initial rows


@dataclass(frozen=True, slots=True)
class InitialLayout:
    """
    The layout of a first micro-batch that carries initial state.

    Args:
        layout: The layout of initial rows after the split.
        input_names: Names of the input's columns after the key group.
        initial_names: Names of the initial rows' columns after the key group.
    """

    layout: InputLayout
    input_names: tuple[str, ...]
    initial_names: tuple[str, ...]


def split_batches(
    batches: Iterable[pa.RecordBatch], layout: InitialLayout
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Undo `with_initial_rows`: return the input rows and the initial rows."""
    inputs, initials = [], []
    for batch in batches:
        inputs.append(input_part(batch, layout))
        initials.append(initial_part(batch, layout))
    return inputs, initials


def input_part(batch: pa.RecordBatch, layout: InitialLayout) -> pa.RecordBatch:
    """Return the input rows of one batch of `with_initial_rows`."""
    columns = slice(_FIRST_COLUMN, _FIRST_COLUMN + len(layout.input_names))
    return _part(batch.filter(pc.invert(batch.column(1))), columns, layout.input_names)


def initial_part(batch: pa.RecordBatch, layout: InitialLayout) -> pa.RecordBatch:
    """Return the initial rows of one batch of `with_initial_rows`."""
    columns = slice(_FIRST_COLUMN + len(layout.input_names), None)
    return _part(batch.filter(batch.column(1)), columns, layout.initial_names)


def _part(batch: pa.RecordBatch, columns: slice, names: tuple[str, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [batch.column(0), *batch.columns[columns]], names=[INPUT_KEY_GROUP_COLUMN, *names]
    )
