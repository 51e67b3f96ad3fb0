"""
Convert the DataFrames that a processor yields to Arrow.

PySpark converts each frame by itself.  Here frames of one form (same columns, same types) are
joined first and converted once, because each conversion is expensive.  If that fails, the frames
are converted one by one, as PySpark does, to find the one that cannot be converted.
Source: PySpark's transformWithStateInPandas.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from statelog.format.arrow_limits import one_batch
from statelog.spark.rows.pandas_conversion import ColumnConverter
from statelog.spark.rows.pandas_input import PandasSettings
from statelog.spark.rows.pandas_internals import FrameJoiner, frame_access
from statelog.spark.rows.unfit_output import UnfitOutputError, described_item, unfit_output

_UNFIT = (
    PySparkException,
    pa.ArrowException,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
)


@dataclass(slots=True)
class _Frames:
    """
    Frames that have the same form.

    Args:
        joiner: Their rows.
        ordinals: Of each frame, its number among all frames in the order of yields.
        lengths: Of each frame, the number of its rows.
    """

    joiner: FrameJoiner
    ordinals: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def cut(self, whole: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
        """Yield the number of each frame and its rows in *whole*, which contains all frames."""
        start = 0
        for ordinal, length in zip(self.ordinals, self.lengths, strict=True):
            yield ordinal, whole.iloc[start : start + length].reset_index(drop=True)
            start += length


class FrameOutput:
    """Converts the frames of one task to a record batch."""

    def __init__(
        self, schema: pa.Schema, output: StructType, batch_id: int, settings: PandasSettings
    ) -> None:
        self._schema = schema
        self._output = output
        self._converters = [
            ColumnConverter(
                column.name,
                column.dataType,
                field.type,
                timezone=settings.timezone,
                safecheck=settings.safecheck,
                int_to_decimal=settings.int_to_decimal,
            )
            for column, field in zip(output.fields, schema, strict=True)
        ]
        self._batch_id = batch_id
        self._settings = settings
        self._access = frame_access()
        self._forms: dict[Hashable, _Frames] = {}
        self.items: list[int] = []
        self.pending = 0
        """The number of rows in the next batch."""
        self.unnamed = None

    def extend(self, produced: Iterable[object]) -> None:
        """
        Collect the frames that one call yields; raise `UnfitOutputError` for any other item.

        They are copied: a processor may yield one frame several times, with changes in between.
        """
        forms = self._forms
        access = self._access
        for frame in produced:
            if not isinstance(frame, pd.DataFrame):
                raise self._no_frame(frame)
            form, row_count = access.form_of(frame)
            frames = forms.get(form)
            if frames is None:
                frames = forms[form] = _Frames(access.joiner(frame))
            frames.ordinals.append(len(self.items))
            frames.lengths.append(row_count)
            frames.joiner.add(frame)
            self.pending += row_count
            self.items.append(row_count)

    def clear(self) -> None:
        """Discard all rows."""
        self._forms = {}
        self.pending = 0
        self.items.clear()

    def _no_frame(self, item: object) -> UnfitOutputError:
        return unfit_output(
            f"it yields {described_item(item)}: write `yield pd.DataFrame(...)` for output rows",
            self._batch_id,
        )

    def batch(self) -> pa.RecordBatch:
        """
        Return all rows as one batch, in the order in which they were yielded.

        Columns are found by name, or by position where no name is a string; columns that the output
        does not have are left out.  A value that does not fit raises `UnfitOutputError`.
        """
        forms = self._forms
        tables = [table for frames in forms.values() for table in self._tables(frames)]
        if not tables:
            return pa.RecordBatch.from_arrays(
                [pa.array([], field.type) for field in self._schema], schema=self._schema
            )
        rows = one_batch(pa.concat_tables(tables), "the output,")
        if len(forms) > 1:
            ordinals = np.concatenate(
                [np.repeat(frames.ordinals, frames.lengths) for frames in forms.values()]
            )
            rows = rows.take(pa.array(np.argsort(ordinals, kind="stable")))
        return rows

    def _tables(self, frames: _Frames) -> Iterator[pa.Table]:
        whole = frames.joiner.joined()
        try:
            yield self._convert(whole)
        except _UNFIT:
            for ordinal, frame in frames.cut(whole):
                try:
                    yield self._convert(frame)
                except _UNFIT as error:
                    raise self._unfit(frame, ordinal, error) from error

    def _convert(self, frame: pd.DataFrame) -> pa.Table:
        if not len(frame.columns):  # a frame without columns has nulls in all of them
            nulls = [pa.nulls(len(frame), field.type) for field in self._schema]
            return pa.Table.from_arrays(nulls, schema=self._schema)
        if self._settings.assign_by_name and any(isinstance(name, str) for name in frame.columns):
            frame = frame[self._output.names]
        arrays = [
            converter.array_of(frame.iloc[:, number])
            for number, converter in enumerate(self._converters)
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _unfit(self, frame: pd.DataFrame, ordinal: int, error: Exception) -> UnfitOutputError:
        """Return an error that shows the first rows of the frame and its missing columns."""
        types = ", ".join(
            f"{name} {dtype}" for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        )
        named = any(isinstance(name, str) for name in frame.columns)
        missing = [name for name in self._output.names if name not in frame.columns]
        if named and missing and self._settings.assign_by_name:
            what = f"lacks the columns {', '.join(missing)}"
        elif len(frame.columns) < len(self._output):
            what = f"has {len(frame.columns)} columns, but the output has {len(self._output)}"
        else:
            cause = "" if error.__cause__ is None else f": {error.__cause__}"
            what = f"does not match the output: {error}{cause}"
        return unfit_output(
            f"a frame of ({types}) with the first rows {frame.head(2).to_dict('records')!r:.300} "
            f"{what}. The output is ({self._output.simpleString()[7:-1]})",
            self._batch_id,
            ordinal,
        )
