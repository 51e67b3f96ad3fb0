"""
The two forms in which a processor sees rows: PySpark's `Row`s, or pandas DataFrames.

All that differs between them is how rows come in and go out; keys, state, timers and failures are
the run loop's (`ProcessorRun`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.row_input import RowInput
from statelog.spark.rows.row_output import RowOutput
from statelog.state.encoding.values import KeyCodec

if TYPE_CHECKING:
    from statelog.spark.rows.interface import KeyedInput, Output
    from statelog.spark.rows.pandas_input import PandasSettings


class RowFormat(Protocol):
    """Makes the input and the output of one task; travels to it pickled."""

    @property
    def rows_at_once(self) -> int:
        """How many rows of one key the processor sees as one piece; 0 where it sees each alone."""

    def input(
        self, layout: InputLayout, key_codec: KeyCodec, nulls: frozenset[int] = frozenset()
    ) -> KeyedInput:
        """
        Return an input that has read nothing yet.

        Args:
            layout: The layout of the input.
            key_codec: The operator's key.
            nulls: Columns that have a null in rows of the task which this input does not read.
        """

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """Return an output that holds nothing yet."""


@dataclass(frozen=True, slots=True)
class SparkRowFormat:
    """Rows as `pyspark.sql.Row`."""

    @property
    def rows_at_once(self) -> int:
        """Return 0: a processor takes row by row."""
        return 0

    def input(
        self, layout: InputLayout, key_codec: KeyCodec, nulls: frozenset[int] = frozenset()
    ) -> KeyedInput:
        """Return an input that has read nothing yet."""
        return RowInput(layout, key_codec)

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """Return an output that holds nothing yet."""
        return RowOutput(schema, batch_id)


@dataclass(frozen=True, slots=True)
class PandasRowFormat:
    """
    Rows as pandas DataFrames.

    Args:
        settings: What the session says about frames.
        columns: Names and types of the output.
    """

    settings: PandasSettings
    columns: StructType

    @property
    def rows_at_once(self) -> int:
        """Return the most rows of a frame."""
        return self.settings.max_records

    # pandas is imported where it is needed: its import takes longer than a task.
    def input(
        self, layout: InputLayout, key_codec: KeyCodec, nulls: frozenset[int] = frozenset()
    ) -> KeyedInput:
        """Return an input that has read nothing yet."""
        from statelog.spark.rows.pandas_input import FrameInput

        return FrameInput(layout, key_codec, self.settings, nulls)

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """Return an output that holds nothing yet."""
        from statelog.spark.rows.pandas_output import FrameOutput

        return FrameOutput(schema, self.columns, batch_id, self.settings)
