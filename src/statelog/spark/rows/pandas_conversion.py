"""
Convert columns between Arrow and pandas in the same way as PySpark.

PySpark's own conversion of whole frames has another form in each version.  The rules here are those
of 4.3, on every version; the values of nested and other special types are converted by PySpark's
converters, which all versions have.
Deviation: before 4.2 PySpark also casts where Arrow finds another type, such as text for a decimal.
Source: PySpark's ArrowArrayToPandasConversion, PandasToArrowConversion.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import (
    _create_converter_from_pandas,
    _create_converter_to_pandas,
    from_arrow_type,
)
from pyspark.sql.types import DataType

from statelog.spark.rows.spark_versions import known_arguments, takes

_EXTENSIONS: Final = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
}
_PLAIN: Final = (
    pa.types.is_null,
    pa.types.is_binary,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_date,
    pa.types.is_timestamp,
)
"""Types whose values are not converted one by one."""


def series_of(table: pa.Table, *, timezone: str, int_extension: bool) -> list[pd.Series]:
    """Return the columns of *table* in the form that a pandas processor expects."""
    return [_series(column, timezone, int_extension) for column in table.columns]


def _series(column: pa.ChunkedArray, timezone: str, int_extension: bool) -> pd.Series:
    kind = column.type
    if not any(is_plain(kind) for is_plain in _PLAIN):
        converter = known_arguments(
            _create_converter_to_pandas,
            timezone=timezone,
            struct_in_pandas="dict",
            integer_object_nulls=True,
        )
        values = column.to_pandas(coerce_temporal_nanoseconds=True, integer_object_nulls=True)
        return converter(from_arrow_type(kind, prefer_timestamp_ntz=True))(values)
    if int_extension and kind in _EXTENSIONS:
        return column.to_pandas(types_mapper=pd.ArrowDtype).astype(_EXTENSIONS[kind])
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            column = pc.local_timestamp(column)
        column = column.cast(pa.timestamp("ns"))
    return column.to_pandas()


class ColumnConverter:
    """Converts one output column to Arrow."""

    def __init__(
        self,
        name: str,
        kind: DataType,
        arrow_type: pa.DataType,
        *,
        timezone: str,
        safecheck: bool,
        int_to_decimal: bool,
    ) -> None:
        self._name = name
        self._arrow_type = arrow_type
        self._safecheck = safecheck
        self._prepared: Callable[[pd.Series], pd.Series] = known_arguments(
            _create_converter_from_pandas,
            timezone=timezone,
            error_on_duplicated_field_names=False,
            int_to_decimal_coercion_enabled=int_to_decimal,
        )(kind)
        # Spark 4.1 does this outside of the converter.
        self._to_decimal = (
            int_to_decimal
            and pa.types.is_decimal(arrow_type)
            and not takes(_create_converter_from_pandas, "int_to_decimal_coercion_enabled")
        )

    def array_of(self, series: pd.Series) -> pa.Array:
        """
        Return *series* as an array.

        A `ValueError` or `TypeError` has Spark's words, for programs that search for them.
        """
        dtype = series.dtype
        if isinstance(dtype, pd.CategoricalDtype):
            series = series.astype(dtype.categories.dtype)
        series = self._prepared(series)
        if self._to_decimal:
            series = series.map(_decimal_of).astype(object)
        mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
        kind = self._arrow_type
        safe = self._safecheck
        try:
            try:
                return pa.Array.from_pandas(series, mask=mask, type=kind, safe=safe)
            except pa.ArrowInvalid:
                return pa.Array.from_pandas(series, mask=mask).cast(kind, safe=safe)
        except TypeError as error:
            raise TypeError(
                f"Cannot convert the output value of the column {self._name!r} with type {str(dtype)!r} "
                f"to the specified return type of the column: '{kind}'"
            ) from error
        except ValueError as error:
            advice = (
                ". It may be an overflow or a loss of digits, which "
                "spark.sql.execution.pandas.convertToArrowArraySafely=false allows"
            )
            raise type(error)(
                f"Failed to convert the value of the column {self._name!r} with type {str(dtype)!r} to "
                f"Arrow type '{kind}'{advice if safe else ''}"
            ) from error


def _decimal_of(value: object) -> object:
    """Convert a whole number to a decimal, and return any other value unchanged."""
    return decimal.Decimal(int(value)) if isinstance(value, int | np.integer) else value
