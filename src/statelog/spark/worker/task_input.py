"""What a task reads: all rows at once, or in parts where they are too many for memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

import pyarrow as pa

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.rows.initial_rows import initial_part, input_part, split_batches
from statelog.spark.rows.interface import KeyedInput
from statelog.spark.worker.large_input import LargeInput, Part, Side, python_bytes
from statelog.spark.worker.protocol import TaskRows
from statelog.spark.worker.spill import SpillFile
from statelog.state.encoding.values import KeyCodec


class TaskInput:
    """
    The input of one task.

    Args:
        rows: How they come in.
        key_codec: The operator's key.
        key_group_range: The task's key groups.
        batches: The input: key group, computed key columns, input columns.
        file: Where rows are written that are too many for memory.

    Attributes: `row_count`: input rows; `is_large`: whether they come in parts; `file`: see above.

    Raises:
        UsageError: There are rows of another task.
        StoreError: There are too many rows for memory, and the local disk is full.
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
        """Yield the rows, in most cases as one part; may be called once."""
        return self._parts

    def _read(self) -> Iterator[Part]:
        """Read all rows before the first part is asked for."""
        first: list[pa.RecordBatch] = []
        rows, initial = self._read_keyed(self._up_to_bound(first))
        if not self.is_large:
            self.row_count = rows.row_count
            if any(key_group not in self._range for key_group in rows.key_groups()):
                raise changed_partitions()
            return iter([Part(rows, initial, is_whole=True)])
        del rows, initial
        large = self._large()
        large.read(chain(_emptied(first), self._batches))
        if large.is_foreign:
            raise changed_partitions()
        self.row_count = large.row_count
        return large.parts()

    def _up_to_bound(self, first: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, kept in *first*, until they are above the bound."""
        size, bound = 0, self._rows.input_bytes
        for batch in self._batches:
            first.append(batch)
            size += python_bytes(batch)
            if size > bound:
                self.is_large = True
                return
            yield batch

    def _read_keyed(
        self, batches: Iterable[pa.RecordBatch]
    ) -> tuple[KeyedInput, KeyedInput | None]:
        how, initial = self._rows, None
        if how.initial is not None:
            batches, initial_batches = split_batches(batches, how.initial)
            initial = how.row_format.input(how.initial.layout, self._codec)
            initial.read(initial_batches)
        rows = how.row_format.input(how.layout, self._codec)
        rows.read(batches)
        return rows, initial

    def _large(self) -> LargeInput:
        how = self._rows
        sides = [Side(how.layout, lambda batch: batch)]
        if how.initial is not None:
            sides = [
                Side(how.layout, partial(input_part, layout=how.initial)),
                Side(how.initial.layout, partial(initial_part, layout=how.initial)),
            ]
        return LargeInput(
            sides, how.row_format, self._codec, self._range, how.input_bytes, self.file
        )


def _emptied(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield *batches* and let go of each."""
    batches.reverse()
    while batches:
        yield batches.pop()


def changed_partitions() -> UsageError:
    """Return the error for a sink of direct delivery that tears the tasks apart."""
    return UsageError(
        "the sink changes the partitions of the frame without a shuffle (coalesce, union), but "
        "with direct delivery they are the stateful tasks: use repartition, or delivery='staged'. "
        "Nothing of this batch was committed"
    )
