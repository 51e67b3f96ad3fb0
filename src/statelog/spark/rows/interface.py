"""The protocols for the input and output of a run, for every row format."""

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
"""The unit that a processor gets and yields: one row, or a frame of rows."""


MOST_NAMES: Final = 100
"""Maximum number of unknown names to record, because a Row's names may come from data."""


class UnnamedColumns(NamedTuple):
    """
    The output columns that no Row of a task sets, and that are therefore null.

    *other_names* are fields of the Rows that are not output columns, at most `MOST_NAMES`.
    """

    columns: tuple[str, ...]
    other_names: tuple[str, ...]


class KeyedInput(Protocol):
    """The input rows of one task, grouped by key."""

    row_count: int

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all rows; the columns are key group, computed keys, and input columns."""

    def key_groups(self) -> Iterable[int]:
        """Return the key groups that have rows, in the order in which they are processed."""

    def table_keys(self, key_group: int) -> Sequence[Key]:
        """Return the keys in the form in which tables store them."""

    def keys(self, key_group: int) -> Iterable[tuple[Key, Key, Iterator[RowLike]]]:
        """Yield each key, as stored and as passed to the processor, with its rows."""


@runtime_checkable
class ReadAgain(Protocol):
    """An input that can create its rows again."""

    def again(self) -> KeyedInput:
        """Return the same rows as fresh objects, unaffected by processor calls."""


class Output(Protocol):
    """Collects the results of a processor and converts them to record batches."""

    @property
    def items(self) -> Sized:
        """The items yielded since the last batch; always the same object."""

    @property
    def pending(self) -> int:
        """The number of rows in the next batch."""

    @property
    def unnamed(self) -> UnnamedColumns | None:
        """The columns that no row sets; None if not applicable, as for frames and tables."""

    def extend(self, produced: Iterable[RowLike]) -> None:
        """Run the generator returned by one call, and collect the items it yields."""

    def batch(self) -> pa.RecordBatch:
        """Return all rows as one batch; raise `UnfitOutputError` if a value does not fit."""

    def clear(self) -> None:
        """Discard all rows."""


class OutputCollector(Protocol):
    """Collects the items that a processor yields during a run."""

    @property
    def items(self) -> Sized:
        """The items yielded since the last conversion; always the same object."""

    @property
    def calls(self) -> OutputCalls:
        """For each item, the call that yielded it, as recorded by the run."""

    @property
    def extend(self) -> Callable[[Iterable[RowLike]], None]:
        """A function that runs the generator of one call and collects the items it yields."""

    def bound_each_call(self) -> None:
        """Limit how much memory the rows of one call use."""

    def convert_if_many(self) -> None:
        """Convert the rows if there are many; called between key groups; raises like `flush`."""

    def flush(self) -> None:
        """Convert all rows; raise `UnfitOutputError` if a row does not fit."""
