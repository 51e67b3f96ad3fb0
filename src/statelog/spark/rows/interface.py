"""The protocols of a run's input and output, for every row format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
from pyspark.sql import Row

from statelog.spark.rows.unfit_output import OutputCalls
from statelog.state.kinds import Key

if TYPE_CHECKING:
    import pandas as pd

RowLike: TypeAlias = "Row | pd.DataFrame"
"""What a processor gets and yields: one row, or a frame of rows."""


MOST_NAMES: Final = 100
"""Most other names that are noted; a Row may get its names from data."""


class UnnamedColumns(NamedTuple):
    """
    The output columns that no Row of a task names, which are null.

    *other_names* are fields of the Rows that are not output columns, at most `MOST_NAMES`.
    """

    columns: tuple[str, ...]
    other_names: tuple[str, ...]


class KeyedInput(Protocol):
    """The input rows of one task, by key."""

    row_count: int

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all rows: key group, computed key columns, input columns."""

    def key_groups(self) -> Iterable[int]:
        """Return the key groups that have rows, in the order in which they are processed."""

    def table_keys(self, key_group: int) -> Sequence[Key]:
        """Return the keys as tables hold them."""

    def keys(self, key_group: int) -> Iterable[tuple[Key, Key, Iterator[RowLike]]]:
        """Yield each key as tables hold it and as the processor gets it, and its rows."""


@runtime_checkable
class ReadAgain(Protocol):
    """An input whose rows can be made again."""

    def again(self) -> KeyedInput:
        """Return the same rows as objects that no call of a processor has changed."""


class Output(Protocol):
    """Collects what a processor yields, and converts it to record batches."""

    @property
    def items(self) -> Sized:
        """What was yielded since the last batch; the same object all the time."""

    @property
    def pending(self) -> int:
        """The number of rows that the next batch will have."""

    @property
    def unnamed(self) -> UnnamedColumns | None:
        """The columns that no row names; None if there are none, as in frames and tables."""

    def extend(self, produced: Iterable[RowLike]) -> None:
        """Run one call's generator, and take what it yields."""

    def batch(self) -> pa.RecordBatch:
        """Return all rows as one batch; raises `UnfitOutputError` if a value does not fit."""

    def clear(self) -> None:
        """Drop all rows."""


class OutputCollector(Protocol):
    """Takes what a processor yields during a run."""

    @property
    def items(self) -> Sized:
        """What was yielded since the last conversion; the same object all the time."""

    @property
    def calls(self) -> OutputCalls:
        """Which call yielded each of the items, as the run notes it."""

    @property
    def extend(self) -> Callable[[Iterable[RowLike]], None]:
        """A function that runs one call's generator, and takes what it yields."""

    def bound_each_call(self) -> None:
        """Bound the memory that the rows of one call use."""

    def convert_if_many(self) -> None:
        """Convert the rows between key groups once they are many; raises as `flush`."""

    def flush(self) -> None:
        """Convert all rows; raises `UnfitOutputError` if one does not fit."""
