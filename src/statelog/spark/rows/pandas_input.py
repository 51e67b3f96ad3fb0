"""
pandas frames as input: each key's rows as a lazy iterator of DataFrames.

A DataFrame per key made by pandas' public constructors costs more than all the rest of a task.  So
the whole input becomes one frame, once, sorted by key; a key's frame is a slice of its blocks.  The
rows of two keys never overlap, so what a processor does to its frame reaches no other.

Frames look as PySpark's transformWithStateInPandas makes them, out of rows of Python objects: all
integers int64, all floats float64, a bool column without a null in the frame bool, timestamps
datetime64[ns] in the session's time zone, an index from 0, and a column whose name is no Python
identifier renamed to its position (`_2`).
Deviations: an integer column is float64 where the task's input (there: the Arrow batch) has a null
in it; an all-null duration column stays timedelta64; integer keys stay integers, and a null is None,
where other keys of the batch are null; nested keys look as in Rows.
Source: pyspark/worker.py, SQL_TRANSFORM_WITH_STATE_PANDAS_UDF.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.conversion import ArrowBatchTransformer

from statelog.spark.rows.key_order import KeyedRows
from statelog.spark.rows.layout import InputLayout
from statelog.state.encoding.values import KeyCodec
from statelog.state.heap.tables import Key

_CONF = "spark.sql.execution."
_NO_LIMIT = 2**31 - 1
_INFERRED = {"i": "int64", "u": "int64", "f": "float64", "M": "M8[ns]", "m": "m8[ns]"}
"""What pandas infers from Python objects, by kind of dtype."""


@dataclass(frozen=True, slots=True)
class PandasSettings:
    """
    What a session says about frames; each is the Spark setting of that name.

    Args:
        timezone: Time zone in which timestamps are shown and read.
        max_records: Most rows in one frame, >= 1.
        max_bytes: Most bytes in one frame, by the average size of a row, >= 1.
        safecheck: Whether an overflow or a loss of digits in the output is an error.
        assign_by_name: Whether output columns are found by name where there are names.
        int_to_decimal: Whether integers may be given for decimals.
        int_extension: Whether integer columns keep their nulls apart while they are read.
    """

    timezone: str
    max_records: int
    max_bytes: int
    safecheck: bool
    assign_by_name: bool
    int_to_decimal: bool
    int_extension: bool

    @classmethod
    def of(cls, session: SparkSession) -> PandasSettings:
        """Return the settings of *session* as they are now."""

        def conf(name: str, default: str) -> str:
            return session.conf.get(name, default) or default

        def flag(name: str, default: str = "false") -> bool:
            return conf(name, default).lower() == "true"

        records = int(conf(f"{_CONF}arrow.maxRecordsPerBatch", "10000"))
        return cls(
            timezone=conf("spark.sql.session.timeZone", "UTC"),
            max_records=records if records > 0 else _NO_LIMIT,
            max_bytes=_bytes(session, f"{_CONF}arrow.maxBytesPerBatch"),
            safecheck=flag(f"{_CONF}pandas.convertToArrowArraySafely"),
            assign_by_name=flag(
                "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true"
            ),
            int_to_decimal=flag(f"{_CONF}pythonUDF.pandas.intToDecimalCoercionEnabled"),
            int_extension=flag(f"{_CONF}pythonUDF.pandas.preferIntExtensionDtype"),
        )


def _bytes(session: SparkSession, name: str) -> int:
    """Return a size setting, which may be written with a unit."""
    value = session.conf.get(name, str(_NO_LIMIT)) or str(_NO_LIMIT)
    jvm: Any = session._jvm
    size = int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(value))
    return size if size > 0 else _NO_LIMIT


class FrameInput(KeyedRows):
    """
    The input rows of one task as frames, by key group and key; arrival order within a key is kept.

    Args:
        layout: The layout of the input.
        key_codec: The operator's key.
        settings: How frames look.
        nulls: Columns that have a null in rows of the task that this input does not read.
    """

    def __init__(
        self,
        layout: InputLayout,
        key_codec: KeyCodec,
        settings: PandasSettings,
        nulls: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(key_codec)
        self._layout = layout
        self._nulls = frozenset(at - layout.first_input for at in nulls)
        self._settings = settings
        self._frames: _SortedFrame | None = None

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in all rows: key group, computed key columns, input columns."""
        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        table = pa.Table.from_batches(parts).combine_chunks()
        key_columns = [table.column(at).combine_chunks() for at in self._layout.key_positions]
        self._show_times(self._bring_in_order(table.column(0).to_numpy(), key_columns))
        inputs = table.select(range(self._layout.first_input, table.num_columns))
        self._frames = _SortedFrame(inputs, self._order.rows, self._settings, self._nulls)

    def _show_times(self, columns: list[pa.Array[Any]]) -> None:
        """Show the timestamps in keys as frames show them."""
        if any(pa.types.is_timestamp(column.type) for column in columns):
            timezone = self._settings.timezone
            shown = [
                _as_cells(column, timezone)
                if pa.types.is_timestamp(column.type)
                else column.to_pylist()
                for column in columns
            ]
            self._shown = list(zip(*shown, strict=True))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[Any]]]:
        """Yield each key as tables hold it, as the processor sees it, and its frames."""
        frames = self._frames
        first, end = self._order.ranges.get(key_group, (0, 0))
        if frames is None or first == end:
            return
        bounds, cut = self._order.bounds, frames.cut
        for index in range(first, end):
            chunks = cut(bounds[index], bounds[index + 1])
            yield self._keys[index], self._shown[index], chunks


def _as_cells(column: pa.Array[Any], timezone: str) -> list[Any]:
    """Return timestamps as a frame shows them."""
    table = pa.table([column], names=["key"])
    cells = ArrowBatchTransformer.to_pandas(table, timezone=timezone)[0]
    return [None if cell is pd.NaT else cell for cell in cells]


class _SortedFrame:
    """
    All rows of a task in one frame, and slices of it as frames of their own.

    Args:
        table: The input columns.
        order: The order of rows in the frame.
        settings: How frames look.
        nulls: Columns that have a null in other rows of the task.
    """

    def __init__(
        self, table: pa.Table, order: Any, settings: PandasSettings, nulls: frozenset[int]
    ) -> None:
        # As pandas names the fields of the tuples that PySpark builds its frames from.
        shape: Any = namedtuple("shape", table.column_names, rename=True)  # type: ignore[misc]
        self._inferred: list[tuple[int, Any, Any]] = []
        columns = {}
        series = ArrowBatchTransformer.to_pandas(
            table, timezone=settings.timezone, prefer_int_ext_dtype=settings.int_extension
        )
        for position, (field, one) in enumerate(zip(table.schema, series, strict=True)):
            cells = self._column(position, field.type, one, order)
            if position in nulls and cells.dtype.kind == "i" and not settings.int_extension:
                cells = cells.astype("float64")  # as where the null is in these rows
            columns[position] = cells
        whole = pd.DataFrame(columns, copy=True)  # copied into one block for each type
        self._columns = pd.Index(shape._fields)
        self._blocks = whole._mgr
        _ = self._blocks.blknos  # where each column lies: found once here, taken over by slices
        self._rows = min(settings.max_records, _rows_in(table, settings.max_bytes))

    def _column(self, position: int, kind: pa.DataType, series: Any, order: Any) -> Any:
        """Return a column in order, in the type that pandas infers from its cells."""
        dtype = series.dtype
        if isinstance(dtype, np.dtype) and dtype.kind != "O":
            values = series.to_numpy()[order]
            return values.astype(_INFERRED.get(dtype.kind, dtype), copy=False)
        values = series.astype(object).to_numpy()[order]
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
            nulls = np.concatenate(([0], np.cumsum(pd.isna(values))))
            exact = getattr(dtype, "numpy_dtype", np.dtype(bool))
            if not nulls[-1]:
                return values.astype(exact)
            self._inferred.append((position, nulls, exact))
        return values

    def cut(self, start: int, end: int) -> Iterator[Any]:
        """Yield the rows from *start* to before *end* as frames; each is made when asked for."""
        while start < end:
            stop = min(end, start + self._rows)
            # DataFrame.iloc and reset_index, without what they do for frames in general.
            blocks = self._blocks.get_slice(slice(start, stop), axis=1)
            # Own index objects: they carry names, which a processor may set.
            blocks.axes[0] = self._columns.view()
            blocks.axes[1] = pd.RangeIndex._simple_new(range(stop - start))
            frame = pd.DataFrame._from_mgr(blocks, blocks.axes)
            for position, nulls, exact in self._inferred:
                if nulls[stop] == nulls[start]:
                    frame.isetitem(position, frame.iloc[:, position].astype(exact))
            yield frame
            start = stop


def _rows_in(table: pa.Table, max_bytes: int) -> int:
    """Return how many rows of average size fill *max_bytes*, at least 1."""
    if max_bytes == _NO_LIMIT or not table.nbytes:
        return _NO_LIMIT
    row_bytes: float = table.nbytes / table.num_rows
    return max(1, math.ceil(max_bytes / row_bytes))
