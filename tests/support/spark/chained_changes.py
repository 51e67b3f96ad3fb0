"""An operator behind another operator, and a model of both."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.support.spark.processors import TotalsModel

BUCKETS = 3
CHANGES = "bucket bigint, changes bigint, sum bigint"


class Changes(StatefulProcessor):
    """Counts and adds up the totals that come; a total of *poison* raises."""

    def __init__(self, poison: int | None = None) -> None:
        self.poison = poison

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("seen", "changes bigint, sum bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        changes, added = self.seen.get() or (0, 0)
        for row in rows:
            if row.total == self.poison:
                raise ArithmeticError(f"cannot take {row.total}")
            changes, added = changes + 1, added + row.total
        self.seen.update((changes, added))
        yield Row(bucket=key[0], changes=changes, sum=added)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.seen.update((initialState.changes, initialState.sum))


class ChainModel:
    """What the two operators of `Chain` must yield."""

    def __init__(self) -> None:
        self.totals = TotalsModel()
        self.seen: dict[int, tuple[int, int]] = {}

    def apply(self, rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        touched = set()
        for key, total, _ in self.totals.apply(rows):
            if total >= 0:
                changes, added = self.seen.get(key % BUCKETS, (0, 0))
                self.seen[key % BUCKETS] = changes + 1, added + total
                touched.add(key % BUCKETS)
        return sorted((bucket, *self.seen[bucket]) for bucket in touched)


BATCHES = [
    [(1, 5), (2, 7), (4, 1), (9, 2)],
    [(1, 1), (5, -3)],
    [(5, -1)],
    [(2, 1), (5, 10), (7, 3)],
    [(key, 1) for key in range(40)],
]
