"""
Read the input as pandas frames, with a lazy iterator for each key.

A DataFrame per key made by pandas' public constructors costs more than all other work of a task.
So the whole input becomes one frame, once, sorted by key; `pandas_internals` cuts a key's frames
out of it.  The rows of two keys never overlap, so a change that a processor makes to its frame
shows in no other frame.

Frames have the types that PySpark's transformWithStateInPandas gives them.  From 4.2 it makes them
out of rows of Python objects: all integers are int64, all floats float64, a bool column without a
null in the frame is bool, timestamps are datetime64[ns] in the session's time zone, the index
begins at 0, and a column whose name is not a Python identifier is named by its position (`_2`).
4.0, and 4.1 with initial state, keep the names and types of Arrow.
Deviations: an integer column is float64 in the frames that have a null in it, and exact in all
others, so that a key's values do not depend on other keys; an all-null duration column stays
timedelta64; integer keys stay integers, and a null is None, where other keys of the batch are null;
nested keys have the form that they have in Rows.
Source: pyspark/worker.py, SQL_TRANSFORM_WITH_STATE_PANDAS_UDF.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from statelog.format.arrow_limits import joined_batches
from statelog.spark.rows.key_order import KeyedRows
from statelog.spark.rows.layout import INPUT_ROWS, InputLayout
from statelog.spark.rows.pandas_conversion import series_of
from statelog.spark.rows.pandas_internals import frame_access
from statelog.spark.rows.spark_versions import frames_are_inferred
from statelog.spark.rows.types import NO_LIMIT, TIME_ZONE, ArrowLimits
from statelog.state.encoding.values import KeyCodec
from statelog.state.kinds import Key

_CONF = "spark.sql.execution."
_INFERRED = {"i": "int64", "u": "int64", "f": "float64", "M": "M8[ns]", "m": "m8[ns]"}
"""The type that pandas infers from Python objects, by kind of dtype."""

_RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PandasSettings:
    """
    The settings of a session that affect frames.

    Each is the Spark setting of that name.

    Args:
        timezone: Time zone in which frames hold timestamps.
        max_records: Most rows in one frame, >= 1.
        max_bytes: Most bytes in one frame, by the average size of a row, >= 1.
        safecheck: Whether an overflow or a loss of digits in the output is an error.
        assign_by_name: Whether output columns are found by name where there are names.
        int_to_decimal: Whether the output may have integers for decimals.
        int_extension: Whether integer columns with nulls are read as pandas' extension type.
        infers: Whether frames are as if made from Python's objects, see `frames_are_inferred`;
            this is not a setting, but a rule of the version of Spark.
    """

    timezone: str
    max_records: int
    max_bytes: int
    safecheck: bool
    assign_by_name: bool
    int_to_decimal: bool
    int_extension: bool
    infers: bool = True

    @classmethod
    def defaults(cls, timezone: str = "UTC") -> PandasSettings:
        """Return Spark's default settings, with times in the given zone."""
        return cls(
            timezone=timezone,
            max_records=10_000,
            max_bytes=NO_LIMIT,
            safecheck=False,
            assign_by_name=True,
            int_to_decimal=False,
            int_extension=False,
            infers=frames_are_inferred(has_initial=False),
        )

    @classmethod
    def of(cls, session: SparkSession, *, has_initial: bool = False) -> PandasSettings:
        """Return the current settings of *session*."""

        def conf(name: str, default: str) -> str:
            return session.conf.get(name, default) or default

        def flag(name: str, default: str = "false") -> bool:
            return conf(name, default).lower() == "true"

        limits = ArrowLimits.of(session)
        return cls(
            timezone=conf(TIME_ZONE, "UTC"),
            max_records=limits.records,
            max_bytes=limits.size,
            safecheck=flag(f"{_CONF}pandas.convertToArrowArraySafely"),
            assign_by_name=flag(
                "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true"
            ),
            int_to_decimal=flag(f"{_CONF}pythonUDF.pandas.intToDecimalCoercionEnabled"),
            int_extension=flag(f"{_CONF}pythonUDF.pandas.preferIntExtensionDtype"),
            infers=frames_are_inferred(has_initial=has_initial),
        )


class FrameInput(KeyedRows):
    """The input rows of one task as frames, grouped by key."""

    def __init__(
        self,
        layout: InputLayout,
        key_codec: KeyCodec,
        settings: PandasSettings,
    ) -> None:
        super().__init__(key_codec)
        self._layout = layout
        self._settings = settings
        self._frames: _SortedFrame | None = None

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all rows; the columns are key group, computed keys, and input columns."""
        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        if self.kept_rows is not None:
            self.kept_rows.batches += parts
        rows = joined_batches(parts, INPUT_ROWS)
        key_columns = [rows.column(position) for position in self._layout.key_positions]
        self._convert_times(self._sort(rows.column(0).to_numpy(), key_columns))
        table = pa.Table.from_batches([rows])
        inputs = table.select(range(self._layout.first_input, table.num_columns))
        self._frames = _SortedFrame(inputs, self._order.rows, self._settings)

    def again(self) -> FrameInput:
        """Return the same rows in new frames, because a call may have modified its frame."""
        again = FrameInput(self._layout, self._codec, self._settings)
        again.read([] if self.kept_rows is None else self.kept_rows.batches)
        return again

    def _convert_times(self, columns: list[pa.Array]) -> None:
        """Convert timestamps in keys to the form that frames use."""
        if any(pa.types.is_timestamp(column.type) for column in columns):
            timezone = self._settings.timezone
            values = [
                _as_cells(column, timezone)
                if pa.types.is_timestamp(column.type)
                else column.to_pylist()
                for column in columns
            ]
            self._shown = list(zip(*values, strict=True))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[pd.DataFrame]]]:
        """Yield each key in both of its forms, with its frames."""
        frames = self._frames
        first, end = self._order.ranges.get(key_group, (0, 0))
        if frames is None or first == end:
            return
        bounds = self._order.bounds
        cut = frames.cut
        for index in range(first, end):
            chunks = cut(bounds[index], bounds[index + 1])
            yield self._keys[index], self._shown[index], chunks


def _as_cells(column: pa.Array, timezone: str) -> list[pd.Timestamp | None]:
    """Convert timestamps to the form that frames use."""
    table = pa.table([column], names=["key"])
    cells = series_of(table, timezone=timezone, int_extension=False)[0]
    return [None if cell is pd.NaT else cell for cell in cells]


class _SortedFrame:
    """All rows of a task in one sorted frame, from which slices are cut."""

    def __init__(self, table: pa.Table, order: _RowNumbers, settings: PandasSettings) -> None:
        self._infers = settings.infers
        names = table.column_names
        if settings.infers:  # as pandas names the fields of the tuples that PySpark makes frames of
            named = namedtuple("named", names, rename=True)  # type: ignore[misc]
            names = list(named._fields)
        self._inferred: list[tuple[int, _RowNumbers, np.dtype]] = []
        self._missing: list[tuple[int, npt.NDArray[np.bool_], _RowNumbers]] = []
        if not settings.int_extension:
            table = self._without_missing(table, order)
        columns = {}
        series = series_of(table, timezone=settings.timezone, int_extension=settings.int_extension)
        for position, (field, cells_in) in enumerate(zip(table.schema, series, strict=True)):
            columns[position] = self._column(position, field.type, cells_in, order)
        whole = pd.DataFrame(columns, copy=True)  # copied into one block for each type
        self._cutter = frame_access().cutter(whole, pd.Index(names))
        self._rows = min(settings.max_records, _rows_in(table, settings.max_bytes))

    def _without_missing(self, table: pa.Table, order: _RowNumbers) -> pa.Table:
        """Replace nulls in integer columns with 0, and remember their positions."""
        for position, field in enumerate(table.schema):
            column = table.column(position)
            if pa.types.is_integer(field.type) and column.null_count:
                missing = column.is_null().to_numpy()[order]
                self._missing.append((position, missing, _counts(missing)))
                table = table.set_column(position, field, pc.fill_null(column, 0))
        return table

    def _column(
        self, position: int, kind: pa.DataType, series: pd.Series, order: _RowNumbers
    ) -> np.ndarray:
        """Return a column in sorted order, with the type that pandas would infer."""
        dtype = series.dtype
        if isinstance(dtype, np.dtype) and dtype.kind != "O":
            cells: np.ndarray = series.to_numpy()[order]
            if self._infers:
                cells = cells.astype(_INFERRED.get(dtype.kind, dtype), copy=False)
            return cells
        values: np.ndarray = series.astype(object).to_numpy()[order]
        if self._infers and (pa.types.is_boolean(kind) or pa.types.is_integer(kind)):
            nulls = _counts(pd.isna(values))
            exact = getattr(dtype, "numpy_dtype", np.dtype(bool))
            if not nulls[-1]:
                whole: np.ndarray = values.astype(exact)
                return whole
            self._inferred.append((position, nulls, exact))
        return values

    def cut(self, start: int, end: int) -> Iterator[pd.DataFrame]:
        """Yield the rows from *start* up to, but not including, *end* as frames."""
        while start < end:
            stop = min(end, start + self._rows)
            frame = self._cutter.slice_rows(start, stop)
            for position, nulls, exact in self._inferred:
                if nulls[stop] == nulls[start]:
                    frame.isetitem(position, frame.iloc[:, position].astype(exact))
            for position, missing, nulls in self._missing:
                if nulls[stop] != nulls[start]:
                    floats = frame.iloc[:, position].to_numpy("float64", copy=True)
                    floats[missing[start:stop]] = np.nan
                    frame.isetitem(position, floats)
            yield frame
            start = stop


def _counts(are_null: npt.NDArray[np.bool_]) -> _RowNumbers:
    """Return the number of nulls before each row, and in total."""
    return np.concatenate(([0], np.cumsum(are_null)))


def _rows_in(table: pa.Table, max_bytes: int) -> int:
    """Return how many rows of average size fit into *max_bytes*, but at least 1."""
    if max_bytes == NO_LIMIT or not table.nbytes:
        return NO_LIMIT
    row_bytes: float = table.nbytes / table.num_rows
    return max(1, math.ceil(max_bytes / row_bytes))
