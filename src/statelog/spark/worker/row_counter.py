"""
Count the rows of one task by key group and large key.

Keys are counted only where one key group has a large share of an Arrow batch, so that the count
costs nothing while the load is even.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.model import KeyGroupRange

MIN_LARGE_ROWS = 1000
_MIN_LARGE_SHARE = 0.25
REPORTED_MAX = 3
_TEXT_MAX = 200


class RowCounter:
    """Counts the rows of one task while it reads them."""

    def __init__(self, key_groups: KeyGroupRange, key_positions: Sequence[int]) -> None:
        self._rows = np.zeros(key_groups.end + 1, np.int64)
        self._key_positions = key_positions
        self._keys: Counter[tuple[int, str]] = Counter()
        self.waited_ms = 0.0

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Yield *batches* unchanged and count them.

        The first column is the key group.

        `waited_ms` sums the time spent waiting for them.
        """
        iterator = iter(batches)
        while True:
            start = time.perf_counter()
            batch = next(iterator, None)
            self.waited_ms += (time.perf_counter() - start) * 1e3
            if batch is None:
                return
            if batch.num_rows:
                groups = batch.column(0).to_numpy(zero_copy_only=False)
                counts = np.bincount(groups, minlength=len(self._rows))[: len(self._rows)]
                self._rows += counts
                hot = int(counts.argmax())
                if counts[hot] >= max(MIN_LARGE_ROWS / 10, batch.num_rows * _MIN_LARGE_SHARE):
                    self._count_keys(batch, hot)
            yield batch

    def _count_keys(self, batch: pa.RecordBatch, key_group: int) -> None:
        rows = batch.filter(pc.equal(batch.column(0), key_group))
        names = [f"k{index}" for index in range(len(self._key_positions))]
        columns = [rows.column(position) for position in self._key_positions]
        try:
            keys = pa.table(columns, names=names).group_by(names).aggregate([([], "count_all")])
        except pa.ArrowException:  # nested keys cannot be counted this way
            return
        for row in keys.sort_by([("count_all", "descending")]).slice(0, REPORTED_MAX).to_pylist():
            key_texts = tuple(row[name] for name in names)
            self._keys[key_group, repr(key_texts)[:_TEXT_MAX]] += row["count_all"]

    def groups(self) -> list[tuple[int, int]]:
        """Return the largest key groups as (key group, rows), largest first."""
        order = np.argsort(-self._rows, kind="stable")[:REPORTED_MAX]
        return [(int(at), int(self._rows[at])) for at in order if self._rows[at]]

    def keys(self) -> list[tuple[int, str, int]]:
        """Return the largest keys that were counted as (key group, key, rows)."""
        top = self._keys.most_common(REPORTED_MAX)
        return [(key_group, key, rows) for (key_group, key), rows in top]
