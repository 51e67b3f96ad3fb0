"""The rows of initial state inside the input of a first micro-batch: their layout and their split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from statelog.spark.rows.layout import KEY_GROUP_COLUMN, InputLayout

_FIRST_COLUMN = 2  # behind the key group and the mark


@dataclass(frozen=True, slots=True)
class InitialLayout:
    """
    What a first batch that carries initial state looks like.

    Args:
        layout: The layout of initial rows, once they are parted from the input.
        input_names: Names of the input's columns behind the key group.
        initial_names: Names of the initial rows' columns behind the key group.
    """

    layout: InputLayout
    input_names: tuple[str, ...]
    initial_names: tuple[str, ...]


def split_batches(
    batches: Iterable[pa.RecordBatch], layout: InitialLayout
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Return the input rows and the initial rows of `with_initial_rows`, each as they were."""
    inputs, initials = [], []
    for batch in batches:
        inputs.append(input_part(batch, layout))
        initials.append(initial_part(batch, layout))
    return inputs, initials


def input_part(batch: pa.RecordBatch, layout: InitialLayout) -> pa.RecordBatch:
    """Return the input rows of one batch of `with_initial_rows`, as they were."""
    columns = slice(_FIRST_COLUMN, _FIRST_COLUMN + len(layout.input_names))
    return _part(batch.filter(pc.invert(batch.column(1))), columns, layout.input_names)


def initial_part(batch: pa.RecordBatch, layout: InitialLayout) -> pa.RecordBatch:
    """Return the initial rows of one batch of `with_initial_rows`, as they were."""
    columns = slice(_FIRST_COLUMN + len(layout.input_names), None)
    return _part(batch.filter(batch.column(1)), columns, layout.initial_names)


def _part(batch: pa.RecordBatch, columns: slice, names: tuple[str, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [batch.column(0), *batch.columns[columns]], names=[KEY_GROUP_COLUMN, *names]
    )
