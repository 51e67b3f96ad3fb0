"""
Which key groups and keys have most of the rows: counted in the tasks, reported by the driver.

Rows are counted by key group.  Keys are looked at only where one key group has a large share of an
Arrow batch, so that the count costs nothing while the load is even.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.model import KeyGroupRange
from statelog.spark.spec import TaskAck

SHARE_THAT_DOMINATES = 0.5
_ROWS_THAT_MATTER = 1000
_SHARE_WORTH_A_LOOK = 0.25
_REPORTED = 3
_TEXT_MAX = 200


class RowCounter:
    """
    Counts the rows of one task while they pass.

    Args:
        key_groups: The task's key groups.
        key_positions: Where the key columns stand.
    """

    def __init__(self, key_groups: KeyGroupRange, key_positions: Sequence[int]) -> None:
        self._rows = np.zeros(key_groups.end + 1, np.int64)
        self._key_positions = key_positions
        self._keys: Counter[tuple[int, str]] = Counter()
        self.waited_ms = 0.0

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Yield *batches* as they are, counted; the first column is the key group.

        How long they were waited for is added up in `waited_ms`.
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
                if counts[hot] >= max(_ROWS_THAT_MATTER / 10, batch.num_rows * _SHARE_WORTH_A_LOOK):
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
        for row in keys.sort_by([("count_all", "descending")]).slice(0, _REPORTED).to_pylist():
            shown = tuple(row[name] for name in names)
            self._keys[key_group, repr(shown)[:_TEXT_MAX]] += row["count_all"]

    def groups(self) -> list[tuple[int, int]]:
        """Return the largest key groups as (key group, rows), largest first."""
        order = np.argsort(-self._rows, kind="stable")[:_REPORTED]
        return [(int(at), int(self._rows[at])) for at in order if self._rows[at]]

    def keys(self) -> list[tuple[int, str, int]]:
        """Return the largest keys that were looked at as (key group, key, rows)."""
        top = self._keys.most_common(_REPORTED)
        return [(key_group, key, rows) for (key_group, key), rows in top]


def largest_groups(acks: Sequence[TaskAck]) -> list[dict[str, Any]]:
    """Return the largest key groups of a micro-batch, with their share of its rows."""
    total = sum(ack.rows for ack in acks)
    top = sorted((one for ack in acks for one in ack.top_groups), key=lambda one: -one[1])
    return [
        {"key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, rows in top[:_REPORTED]
    ]


def largest_keys(acks: Sequence[TaskAck]) -> list[dict[str, Any]]:
    """Return the largest keys of a micro-batch, with their share of its rows."""
    total = sum(ack.rows for ack in acks)
    top = sorted((one for ack in acks for one in ack.top_keys), key=lambda one: -one[2])
    return [
        {"key": key, "key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, key, rows in top[:_REPORTED]
    ]


def dominating(groups: Sequence[dict[str, Any]], keys: Sequence[dict[str, Any]]) -> str:
    """Return what is to be said of a key or key group that has most of the rows, or ""."""
    if not groups or groups[0]["rows"] < _ROWS_THAT_MATTER:
        return ""
    if keys and keys[0]["share"] >= SHARE_THAT_DOMINATES:
        return (
            f"key {keys[0]['key']} has {keys[0]['share']:.0%} of the rows; one key is always one "
            "task's work, so more tasks do not help"
        )
    if groups[0]["share"] >= SHARE_THAT_DOMINATES:
        return (
            f"key group {groups[0]['key_group']} has {groups[0]['share']:.0%} of the rows, and is "
            "always one task's work"
        )
    return ""
