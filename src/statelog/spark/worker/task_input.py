"""Read the input of a task at once, or in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.rows.interface import KeyedInput
from statelog.spark.rows.layout import initial_part, input_part, split_batches
from statelog.spark.worker.large_input import LargeInput, Part, Side, SpillFile
from statelog.spark.worker.protocol import TaskRows
from statelog.state.encoding.values import KeyCodec


class TaskInput:
    """
    The input of one task.

    Attributes: `row_count`: input rows; `is_large`: whether they are split in parts; `file`: see
    above.
    """

    def __init__(
        self,
        rows: TaskRows,
        key_codec: KeyCodec,
        key_group_range: KeyGroupRange,
        batches: Iterable[pa.RecordBatch],
        file: SpillFile,
    ) -> None:
        self._rows = rows
        self._codec = key_codec
        self._range = key_group_range
        self._batches = iter(batches)
        self.file = file
        self.row_count = 0
        self.is_large = False
        self._parts = self._read()

    def parts(self) -> Iterator[Part]:
        """Yield the rows, in most cases as one part; called once."""
        return self._parts

    def _read(self) -> Iterator[Part]:
        """Read all rows, and return an iterator over the parts."""
        first: list[pa.RecordBatch] = []
        rows, initial = self._read_keyed(self._up_to_bound(first))
        if not self.is_large:
            self.row_count = rows.row_count
            return iter([Part(rows, initial, is_whole=True)])
        del rows, initial
        large = self._large()
        large.read(chain(_emptied(first), self._batches))
        self.row_count = large.row_count
        return large.parts()

    def _up_to_bound(self, first: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches and add them to *first*, until they exceed the bound."""
        size, bound = 0, self._rows.input_bytes
        for batch in self._batches:
            first.append(batch)
            size += self._rows.row_format.cost(batch)
            if size > bound:
                self.is_large = True
                return
            yield batch

    def _read_keyed(
        self, batches: Iterable[pa.RecordBatch]
    ) -> tuple[KeyedInput, KeyedInput | None]:
        task_rows, initial = self._rows, None
        if task_rows.initial is not None:
            batches, initial_batches = split_batches(batches, task_rows.initial)
            initial = task_rows.row_format.input(task_rows.initial.layout, self._codec)
            initial.read(initial_batches)
        rows = task_rows.row_format.input(task_rows.layout, self._codec)
        rows.read(batches)
        return rows, initial

    def _large(self) -> LargeInput:
        task_rows = self._rows
        sides = [Side(task_rows.layout, lambda batch: batch)]
        if task_rows.initial is not None:
            sides = [
                Side(task_rows.layout, partial(input_part, layout=task_rows.initial)),
                Side(task_rows.initial.layout, partial(initial_part, layout=task_rows.initial)),
            ]
        return LargeInput(
            sides, task_rows.row_format, self._codec, self._range, task_rows.input_bytes, self.file
        )


def _emptied(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield *batches* and drop each from the list."""
    batches.reverse()
    while batches:
        yield batches.pop()


def of_task(batches: Iterable[pa.RecordBatch], names: KeyGroupRange) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a partition whose first column names its task."""
    for batch in batches:
        if batch.num_rows:
            bounds = pc.min_max(batch.column(0))
            if bounds["min"].as_py() < names.start or bounds["max"].as_py() > names.end:
                raise changed_partitions()
        yield batch


def changed_partitions() -> UsageError:
    """Return the error for a sink that changes the partitions."""
    return UsageError(
        "the sink changes the partitions of the frame without a shuffle (coalesce, union), but "
        "with direct delivery they are the stateful tasks: use repartition, or delivery='staged'. "
        "Nothing of this batch was committed"
    )
