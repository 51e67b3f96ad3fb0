"""The input and the output of a processor in a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from statelog.spark.rows.interface import RowLike
from statelog.state.heap.tables import Key


@dataclass(slots=True)
class TesterRows:
    """The rows (or frames) of a few keys, as a run's input."""

    by_group: dict[int, dict[Key, tuple[Key, list[RowLike]]]] = field(default_factory=dict)
    row_count: int = 0

    def add(self, key_group: int, key: Key, shown: Key, rows: Iterable[RowLike]) -> None:
        """Add rows (or frames) of one key."""
        keyed = self.by_group.setdefault(key_group, {})
        keyed.setdefault(key, (shown, []))[1].extend(rows)

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read nothing: `add` gets the rows."""

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, ascending."""
        return sorted(self.by_group)

    def table_keys(self, key_group: int) -> list[Key]:
        """Return the keys as tables hold them."""
        return list(self.by_group.get(key_group, {}))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """Yield each key, in both its forms, and its rows."""
        for key, (shown, rows) in self.by_group.get(key_group, {}).items():
            yield key, shown, iter(rows)


class TesterOutput:
    """
    Collects what a processor yields.

    Attributes: `rows`: the rows or frames.
    """

    def __init__(self) -> None:
        self.rows: list[RowLike] = []

    def extend(self, produced: Iterable[RowLike]) -> None:
        """Run one call's generator, and take what it yields."""
        self.rows.extend(produced)

    def bound_each_call(self) -> None:
        """Do nothing: the rows of a test fit in memory."""

    def convert_if_many(self) -> None:
        """Do nothing, as `bound_each_call`."""

    def flush(self) -> None:
        """Do nothing, as `bound_each_call`."""
