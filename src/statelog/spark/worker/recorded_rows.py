"""The rows of recorded keys, copied out of a task's input in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from statelog.spark.rows.interface import KeyedInput
from statelog.spark.rows.key_order import KeptRows, KeyedRows
from statelog.state.heap.tables import Key


class RecordedRows:
    """
    The rows of one part of an input, for the keys that are recorded.

    The rows of all chosen keys are copied together, because a copy for each key would cost more than
    all else of recording.

    Args:
        source: The part.
        key_bytes: Keys with more bytes of rows are not copied.

    Attributes: `row_bytes`: average bytes of a row.
    """

    def __init__(self, source: KeyedInput, key_bytes: int) -> None:
        self.source = source
        self._key_bytes = key_bytes
        self._kept = source.kept if isinstance(source, KeyedRows) else None
        self.row_bytes = 0.0
        if self._kept is not None and self._kept.batches:
            size = sum(int(batch.nbytes) for batch in self._kept.batches)
            rows = sum(batch.num_rows for batch in self._kept.batches)
            self.row_bytes = size / max(rows, 1)
        self._copied: dict[tuple[int, Key], pa.Table | None] = {}

    def copy(self, chosen: Mapping[int, Iterable[Key]]) -> None:
        """Copy the rows of keys, given by key group."""
        kept = self._kept
        if kept is None:
            return
        found: list[tuple[int, Key, np.ndarray]] = []
        for key_group, keys in chosen.items():
            wanted = set(keys)
            for position, key in enumerate(self.source.table_keys(key_group)):
                if key not in wanted:
                    continue
                numbers = kept.numbers(kept.key_at(key_group, position))
                if len(numbers) * self.row_bytes > self._key_bytes:
                    self._copied[key_group, key] = None
                else:
                    found.append((key_group, key, numbers))
        if not found:
            return
        rows = _taken(kept, np.concatenate([numbers for _, _, numbers in found]))
        start = 0
        for key_group, key, numbers in found:
            self._copied[key_group, key] = rows.slice(start, len(numbers))
            start += len(numbers)

    def of(self, key_group: int, key: Key) -> pa.Table | None:
        """Return the rows of a key, which may be none; None if they are too large."""
        if (key_group, key) not in self._copied:
            if key not in self.source.table_keys(key_group):
                return _NO_ROWS
            if self._kept is None:  # they do not fit in memory
                return None
            self.copy({key_group: [key]})  # a key that failed
        return self._copied[key_group, key]


_NO_ROWS = pa.table({})


def _taken(kept: KeptRows, numbers: np.ndarray) -> pa.Table:
    """Return the rows with these numbers, in this order."""
    return pa.Table.from_batches(kept.batches).take(pa.array(numbers)).combine_chunks()
