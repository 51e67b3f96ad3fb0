"""
The two row formats of a processor: PySpark's `Row`s, or pandas DataFrames.

They differ in the input and the output only.  `ProcessorRun` handles keys, state, timers and
failures for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from statelog.spark.rows.key_order import KeyedRows
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.row_input import RowInput
from statelog.spark.rows.row_output import RowOutput
from statelog.state.encoding.values import KeyCodec

if TYPE_CHECKING:
    from statelog.spark.rows.interface import KeyedInput, Output
    from statelog.spark.rows.pandas_input import PandasSettings


class RowFormat(Protocol):
    """
    Makes the input and the output of one task.

    Sent to the task pickled.
    """

    @property
    def rows_at_once(self) -> int:
        """
        Most rows of one key in one frame.

        0 where the processor gets single rows.
        """

    def input(
        self, layout: InputLayout, key_codec: KeyCodec, nulls: frozenset[int] = frozenset()
    ) -> KeyedInput:
        """
        Return an empty input.

        Args:
            layout: The layout of the input.
            key_codec: The operator's key.
            nulls: Columns that have a null in other rows of the task.
        """

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """Return an empty output."""


@dataclass(frozen=True, slots=True)
class SparkRowFormat:
    """Rows as `pyspark.sql.Row`."""

    @property
    def rows_at_once(self) -> int:
        """Return 0: a processor gets single rows."""
        return 0

    def input(
        self, layout: InputLayout, key_codec: KeyCodec, nulls: frozenset[int] = frozenset()
    ) -> KeyedInput:
        """Return an empty input."""
        return RowInput(layout, key_codec)

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """Return an empty output."""
        return RowOutput(schema, batch_id)


@dataclass(frozen=True, slots=True)
class PandasRowFormat:
    """
    Rows as pandas DataFrames.

    Args:
        settings: The session's settings for frames.
        columns: Names and types of the output.
    """

    settings: PandasSettings
    columns: StructType

    @property
    def rows_at_once(self) -> int:
        """Return the most rows of a frame."""
        return self.settings.max_records

    # The import of pandas takes longer than a task, so tasks without it do not import it.
    def input(
        self, layout: InputLayout, key_codec: KeyCodec, nulls: frozenset[int] = frozenset()
    ) -> KeyedInput:
        """Return an empty input."""
        from statelog.spark.rows.pandas_input import FrameInput

        return FrameInput(layout, key_codec, self.settings, nulls)

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """Return an empty output."""
        from statelog.spark.rows.pandas_output import FrameOutput

        return FrameOutput(schema, self.columns, batch_id, self.settings)


@dataclass(frozen=True, slots=True)
class KeepingFormat:
    """
    A row format whose inputs keep their rows in columns too.

    Args:
        plain: The row format.
    """

    plain: RowFormat

    @property
    def rows_at_once(self) -> int:
        """Return what the plain format returns."""
        return self.plain.rows_at_once

    def input(
        self, layout: InputLayout, key_codec: KeyCodec, nulls: frozenset[int] = frozenset()
    ) -> KeyedInput:
        """Return an empty input that keeps its rows."""
        made = self.plain.input(layout, key_codec, nulls)
        if isinstance(made, KeyedRows):
            made.keep_rows()
        return made

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """Return an empty output."""
        return self.plain.output(schema, batch_id)
