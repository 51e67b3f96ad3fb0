"""What a run of a processor needs of its input and its output, whatever the row format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import pyarrow as pa

from statelog.state.heap.tables import Key


class KeyedInput(Protocol):
    """The input rows of one task, by key."""

    row_count: int

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in all rows: key group, computed key columns, input columns."""

    def key_groups(self) -> Iterable[int]:
        """Return the key groups that have rows, ascending."""

    def table_keys(self, key_group: int) -> Iterable[Key]:
        """Return the keys as tables hold them."""

    def keys(self, key_group: int) -> Iterable[tuple[Key, Key, Any]]:
        """Yield each key as tables hold it, as the processor sees it, and its rows."""


class Output(Protocol):
    """Gathers what a processor yields."""

    @property
    def pending(self) -> int:
        """The number of rows that the next batch will have."""

    def extend(self, produced: Iterable[Any]) -> None:
        """Take what one call of the processor yields; runs its generator."""

    def batch(self) -> pa.RecordBatch:
        """Return everything as one batch; raises `ProcessorError` if something does not fit."""

    def clear(self) -> None:
        """Forget everything."""


class Yielded(Protocol):
    """Takes what a processor yields while it runs."""

    @property
    def extend(self) -> Callable[[Iterable[Any]], None]:
        """Takes what one call of the processor yields; runs its generator."""

    def bound_each_call(self) -> None:
        """Expect much: a single call of the processor may yield more than memory holds."""

    def settle(self) -> None:
        """Move rows out of memory where they are many; called between key groups."""

    def flush(self) -> None:
        """Convert all rows; raises `ProcessorError` if one does not fit."""
