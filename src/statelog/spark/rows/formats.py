"""
The row formats for processors: PySpark's `Row` and pandas DataFrames.

The two differ in the input and the output only: `ProcessorRun` handles keys, state, timers and
failures for both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from statelog.spark.rows.key_order import KeyedRows
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.spark_row import RowInput, RowOutput
from statelog.state.encoding.values import KeyCodec

if TYPE_CHECKING:
    from statelog.spark.rows.interface import KeyedInput, Output
    from statelog.spark.rows.pandas_input import PandasSettings


_ROW_BYTES: Final = 640
_CELL_BYTES: Final = 48
"""Memory of a row as Python objects, with the state and output that its processing makes."""


def python_bytes(batch: pa.RecordBatch) -> int:
    """Estimate the size of *batch* in bytes once it is converted to Python objects."""
    rows: int = batch.num_rows
    cells: int = rows * batch.num_columns
    return rows * _ROW_BYTES + cells * _CELL_BYTES + 2 * int(batch.nbytes)


class RowFormat(Protocol):
    """Creates the input and output of one task; the driver sends it to the task pickled."""

    @property
    def rows_at_once(self) -> int:
        """The maximum number of rows per frame for a key; 0 if frames are not used."""

    @property
    def splits_keys(self) -> bool:
        """Whether the rows of one key can be read a few at a time."""

    def cost(self, batch: pa.RecordBatch) -> int:
        """Estimate how many bytes of memory the rows of a batch need."""

    def input(self, layout: InputLayout, key_codec: KeyCodec) -> KeyedInput:
        """Return an input that is still empty."""

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """Return an output that is still empty."""

    def of_columns(self, columns: StructType) -> RowFormat:
        """Return the same format for different output columns."""


@dataclass(frozen=True, slots=True)
class SparkRowFormat:
    """Rows as `pyspark.sql.Row`."""

    rows_at_once: int = 0
    splits_keys: bool = True

    def cost(self, batch: pa.RecordBatch) -> int:
        """See `RowFormat`."""
        return python_bytes(batch)

    def input(self, layout: InputLayout, key_codec: KeyCodec) -> KeyedInput:
        """See `RowFormat`."""
        return RowInput(layout, key_codec)

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """See `RowFormat`."""
        return RowOutput(schema, batch_id)

    def of_columns(self, columns: StructType) -> RowFormat:
        """See `RowFormat`."""
        return self


@dataclass(frozen=True, slots=True)
class PandasRowFormat:
    """Rows as pandas DataFrames, according to a session's settings and the output columns."""

    settings: PandasSettings
    columns: StructType
    splits_keys: bool = True

    @property
    def rows_at_once(self) -> int:
        """See `RowFormat`."""
        return self.settings.max_records

    def cost(self, batch: pa.RecordBatch) -> int:
        """See `RowFormat`."""
        return python_bytes(batch)

    # The import of pandas takes longer than a task, so tasks without it do not import it.
    def input(self, layout: InputLayout, key_codec: KeyCodec) -> KeyedInput:
        """See `RowFormat`."""
        from statelog.spark.rows.pandas_input import FrameInput

        return FrameInput(layout, key_codec, self.settings)

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """See `RowFormat`."""
        from statelog.spark.rows.pandas_output import FrameOutput

        return FrameOutput(schema, self.columns, batch_id, self.settings)

    def of_columns(self, columns: StructType) -> RowFormat:
        """See `RowFormat`."""
        return replace(self, columns=columns)


class KeepingFormat:
    """A row format whose inputs also keep their rows as columns."""

    def __init__(self, plain: RowFormat) -> None:
        self.plain = plain
        self.rows_at_once = plain.rows_at_once
        self.splits_keys = plain.splits_keys
        self.cost = plain.cost
        self.output = plain.output
        self.of_columns = plain.of_columns

    def input(self, layout: InputLayout, key_codec: KeyCodec) -> KeyedInput:
        """Return an empty input that keeps its rows."""
        keyed = self.plain.input(layout, key_codec)
        if isinstance(keyed, KeyedRows):
            keyed.keep_rows()
        return keyed
