"""
pandas frames as output: from the DataFrames a processor yields to Arrow.

PySpark converts each frame by itself.  Here frames of one form (same columns, same types in the same
blocks) are put together first, block by block, and converted once: converting is what costs.  If
that fails, they are converted one by one, as PySpark does, to find the frame that is at fault.
Source: PySpark's PandasToArrowConversion, with the arguments of transformWithStateInPandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.conversion import PandasToArrowConversion
from pyspark.sql.types import StructType

from statelog.errors import ProcessorError
from statelog.spark.rows.pandas_input import PandasSettings

_UNFIT = (PySparkException, pa.ArrowException, KeyError, TypeError, ValueError, IndexError)


class _Frames:
    """
    Frames of one form.

    Args:
        like: The first of them.
    """

    def __init__(self, like: Any) -> None:
        self.ordinals: list[int] = []
        self.lengths: list[int] = []
        self.parts: list[Any] = []
        self._columns = like.columns
        self._places = list(zip(like._mgr.blknos, like._mgr.blklocs, strict=True))
        # Blocks of other classes (categories, strings, ...) are left to pandas.concat.
        self.in_blocks = bool(self._places) and all(
            isinstance(block.dtype, np.dtype) for block in like._mgr.blocks
        )

    def whole(self) -> Any:
        """Return all rows as one frame."""
        if not self.in_blocks:
            return pd.concat(self.parts, ignore_index=True)
        # Arrays of datetimes and durations are numpy's inside.
        blocks = [
            np.concatenate([getattr(values, "_ndarray", values) for values in one], axis=1)
            for one in zip(*self.parts, strict=True)
        ]
        columns = {
            position: blocks[block][row] for position, (block, row) in enumerate(self._places)
        }
        frame = pd.DataFrame(columns, copy=False)
        frame.columns = self._columns
        return frame


class FrameOutput:
    """
    Gathers the frames of one task and turns them into a record batch.

    Args:
        schema: Names and types of the output, in Arrow's types.
        output: The same in Spark's.
        batch_id: The micro-batch, for messages.
        settings: How frames are read.
    """

    def __init__(
        self, schema: pa.Schema, output: StructType, batch_id: int, settings: PandasSettings
    ) -> None:
        self._schema = schema
        self._output = output
        self._batch_id = batch_id
        self._settings = settings
        self._forms: dict[tuple[Any, ...], _Frames] = {}
        self._count = 0
        self.pending = 0
        """The number of rows that the next batch will have."""

    def extend(self, produced: Iterable[Any]) -> None:
        """
        Take the frames that one call of the processor yields.

        They are copied: a processor may yield one frame again and again, changed in between.

        Raises:
            ProcessorError: Something yielded is no DataFrame.
        """
        forms = self._forms
        for frame in produced:
            if not isinstance(frame, pd.DataFrame):
                raise self._failed(
                    f"a pandas processor yields DataFrames, not "
                    f"{type(frame).__name__} {frame!r:.100}"
                )
            manager = frame._mgr
            blocks = manager.blocks
            names, rows = manager.axes
            # What the blocks say of their columns; asking the frame would make it search for them.
            form = (
                *names.tolist(),
                *[each for b in blocks for each in (b.dtype, b.mgr_locs.as_array.tobytes())],
            )
            frames = forms.get(form)
            if frames is None:
                frames = forms[form] = _Frames(frame)
            frames.ordinals.append(self._count)
            frames.lengths.append(len(rows))
            self.pending += len(rows)
            self._count += 1
            if frames.in_blocks:
                frames.parts.append([block.values.copy() for block in blocks])
            else:
                frames.parts.append(frame.copy())

    def clear(self) -> None:
        """Forget all rows."""
        self._forms, self._count, self.pending = {}, 0, 0

    def batch(self) -> pa.RecordBatch:
        """
        Return all rows as one batch, in the order in which they were yielded.

        Columns go by name, or by position where no name is a string; columns that the output does
        not have are left out.

        Raises:
            ProcessorError: A column is missing, or a value does not fit its column.
        """
        forms = self._forms
        tables = [table for frames in forms.values() for table in self._tables(frames)]
        if not tables:
            return pa.RecordBatch.from_arrays(
                [pa.array([], field.type) for field in self._schema], schema=self._schema
            )
        table = pa.concat_tables(tables)
        if len(forms) > 1:
            ordinals = np.concatenate(
                [np.repeat(frames.ordinals, frames.lengths) for frames in forms.values()]
            )
            table = table.take(np.argsort(ordinals, kind="stable"))
        arrays = [
            _one_array(column).cast(field.type)
            for column, field in zip(table.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _tables(self, frames: _Frames) -> Iterator[pa.Table]:
        whole = frames.whole()
        try:
            yield self._convert(whole)
        except _UNFIT:
            start = 0
            for length in frames.lengths:
                frame = whole.iloc[start : start + length].reset_index(drop=True)
                start += length
                try:
                    yield self._convert(frame)
                except _UNFIT as error:
                    raise self._unfit(frame, error) from error

    def _convert(self, frame: Any) -> pa.Table:
        settings = self._settings
        batch = PandasToArrowConversion.convert(
            frame,
            self._output,
            timezone=settings.timezone,
            safecheck=settings.safecheck,
            arrow_cast=True,
            assign_cols_by_name=settings.assign_by_name,
            int_to_decimal_coercion_enabled=settings.int_to_decimal,
        )
        return pa.Table.from_batches([batch])

    def _unfit(self, frame: Any, error: Exception) -> ProcessorError:
        """Return an error that shows the frame, and says which columns are missing."""
        types = ", ".join(
            f"{name} {dtype}" for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        )
        named = any(isinstance(name, str) for name in frame.columns)
        missing = [name for name in self._output.names if name not in frame.columns]
        if named and missing and self._settings.assign_by_name:
            what = f"lacks the columns {', '.join(missing)}"
        elif len(frame.columns) < len(self._output):
            what = f"has {len(frame.columns)} columns for the {len(self._output)} of the output"
        else:
            cause = "" if error.__cause__ is None else f": {error.__cause__}"
            what = f"does not fit: {error}{cause}"
        return self._failed(
            f"a frame of ({types}) with the first rows {frame.head(2).to_dict('records')!r:.300} "
            f"{what}. The output is ({self._output.simpleString()[7:-1]})"
        )

    def _failed(self, what: str) -> ProcessorError:
        return ProcessorError(
            f"the output of batch {self._batch_id}: {what}. Nothing of this batch was committed; "
            "the last checkpoint is valid",
            batch_id=self._batch_id,
        )


def _one_array(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
