"""
The limits of the Arrow batches that Spark sends to Python, and what a row takes of them.

A batch ends after a number of rows, or of bytes, whichever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from statelog.options.units import parse_size

MAX_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
MAX_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT: Final = 2**31 - 1
"""The most of either; with it as the number of bytes, Spark does not measure the batches."""


@dataclass(frozen=True, slots=True)
class ArrowLimits:
    """
    The limits of a session, set or Spark's own.

    Args:
        records: Most rows of a batch, >= 1.
        size: Most bytes of a batch, >= 1.
    """

    records: int
    size: int

    @classmethod
    def of(cls, session: SparkSession) -> ArrowLimits:
        """Return the limits of *session* as they are now."""
        records = int(session.conf.get(MAX_RECORDS) or 0)
        text = session.conf.get(MAX_BYTES) or "-1"
        size = 0 if text.strip().startswith("-") else parse_size(text, key=MAX_BYTES)
        return cls(records if records > 0 else NO_LIMIT, size if size > 0 else NO_LIMIT)


def row_bytes(schema: pa.Schema) -> int | None:
    """Return the most bytes of a row in the buffers of a batch; None if rows differ in size."""
    total = 0
    for column in schema:
        size = _value_bytes(column.type)
        if size is None:
            return None
        total += size
    return total


def _value_bytes(kind: pa.DataType) -> int | None:
    """Return the most bytes of a value, one of them to say whether it is null."""
    if pa.types.is_null(kind):
        return 1
    if pa.types.is_struct(kind):
        inside = row_bytes(pa.schema(list(kind)))
        return None if inside is None else inside + 1
    try:
        bits: int = kind.bit_width
    except ValueError:  # a type without a fixed width
        return None
    return (bits + 7) // 8 + 1
