"""
Read a task's input at once or in parts, counting rows by key group and large key.

Keys are counted only where one key group has a large share of an Arrow batch, so that the count
costs nothing while the load is even.

Spark sends the rows to a worker over a TCP connection of the host, in pieces, and at last a few
bytes that say there are no more.  While a piece is not acknowledged, TCP holds a small one back
(Nagle's algorithm); and it acknowledges up to 40 ms late, in the hope of data to send along with it
(delayed acknowledgement).  A worker that only reads sends none, so about half of the tasks waited
40 ms for their last bytes.  Only the sender can turn the first off, and that is Spark's; so the
worker acknowledges at once here, and sends its own rows at once.

Source: RFC 896; RFC 1122, 4.2.3.2; TCP_QUICKACK and TCP_NODELAY in tcp(7) (Linux).  SPARK-51667 is
the same between Spark's own stateful workers and their state.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.rows.interface import KeyedInput
from statelog.spark.rows.layout import InputLayout, initial_part, input_part, split_batches
from statelog.spark.worker.protocol import TaskRows
from statelog.spark.worker.spill_file import SpillFile
from statelog.state.encoding.values import KeyCodec

if TYPE_CHECKING:
    from statelog.spark.worker.large_input import LargeInput


_OPEN_FILES: Final = "/dev/fd"
_HOST_ITSELF: Final = ("127.", "::1", "::ffff:127.")
_ACKNOWLEDGE: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
"""The option exists only on Linux; elsewhere nothing changes."""


def without_delay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Yield a task's batches without waiting for the last bytes that TCP delays.

    It concerns all connections of this process to its own host, of which Spark's is one.
    """
    acknowledge = _ACKNOWLEDGE
    if acknowledge is None:
        yield from batches
        return
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connection) for connection in _connections()]
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        iterator = iter(batches)
        while True:
            # Before each read, as Linux forgets it.  It acknowledges what has come so far, too.
            for connection in connections:
                connection.setsockopt(socket.IPPROTO_TCP, acknowledge, 1)
            batch = next(iterator, None)
            if batch is None:
                return
            yield batch


def _connections() -> Iterator[socket.socket]:
    """Yield a socket for each connection from this process to its own host, to be closed."""
    seen = set[int]()
    for name in os.listdir(_OPEN_FILES):
        # It may be closed meanwhile, as the folder itself is.
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode) or status.st_ino in seen:
                continue
            seen.add(status.st_ino)
            # A duplicate: closing it must not close Spark's own connection.
            connection = socket.socket(fileno=os.dup(int(name)))
            if _is_to_own_host(connection):
                yield connection
            else:
                connection.close()


def _is_to_own_host(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if connection.type != socket.SOCK_STREAM:
        return False
    try:
        peer = connection.getpeername()[0]
    except OSError:  # it listens
        return False
    return str(peer).startswith(_HOST_ITSELF)


@dataclass(frozen=True, slots=True)
class Part:
    """
    Some of a task's rows, including all rows of every key that occurs in them.

    Args:
        rows: The input rows.
        initial: The rows of initial state; None for a micro-batch without.
        is_whole: Whether these are all rows of the task.
    """

    rows: KeyedInput
    initial: KeyedInput | None
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Side:
    """The kind of rows: input or initial state."""

    layout: InputLayout
    pick: Callable[[pa.RecordBatch], pa.RecordBatch]


class TaskInput:
    """
    The input of one task.

    Attributes: `row_count`: input rows; `is_large`: whether they are split in parts; `file`: what
    does not fit into memory.
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
        """Yield the rows, usually as a single part; may be called only once."""
        return self._parts

    def _read(self) -> Iterator[Part]:
        """Read all rows, and return an iterator over the parts."""
        first: list[pa.RecordBatch] = []
        # In the hope that the rows fit; *first* keeps the batches in case they do not.
        rows, initial = self._read_keyed(self._up_to_bound(first))
        if not self.is_large:
            self.row_count = rows.row_count
            return iter([Part(rows, initial, is_whole=True)])
        # Free the objects before the batches are written to disk.
        del rows, initial
        large = self._large()
        large.read(chain(_emptied(first), self._batches))
        self.row_count = large.row_count
        return large.parts()

    def _up_to_bound(self, first: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, also appending them to *first*, until they exceed the limit."""
        size = 0
        bound = self._rows.input_bytes
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
        task_rows = self._rows
        initial = None
        if task_rows.initial is not None:
            batches, initial_batches = split_batches(batches, task_rows.initial)
            initial = task_rows.row_format.input(task_rows.initial.layout, self._codec)
            initial.read(initial_batches)
        rows = task_rows.row_format.input(task_rows.layout, self._codec)
        rows.read(batches)
        return rows, initial

    def _large(self) -> LargeInput:
        # Imported here: nearly every task reads its rows at once.
        from statelog.spark.worker.large_input import LargeInput

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
    """Yield *batches*, removing each from the list."""
    batches.reverse()
    while batches:
        yield batches.pop()


def of_task(batches: Iterable[pa.RecordBatch], names: KeyGroupRange) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a partition, whose first column identifies the task."""
    for batch in batches:
        if batch.num_rows:
            bounds = pc.min_max(batch.column(0))
            if bounds["min"].as_py() < names.start or bounds["max"].as_py() > names.end:
                raise changed_partitions()
        yield batch


def changed_partitions() -> UsageError:
    """Return the error for a sink that repartitions the rows."""
    return UsageError(
        "the sink changes the partitions of the frame without a shuffle (coalesce, union), but "
        "with direct delivery the partitions are the stateful tasks: use repartition, or delivery='staged'. "
        "Nothing of this batch was committed"
    )


MIN_LARGE_ROWS = 1000
_MIN_LARGE_SHARE = 0.25
REPORTED_MAX = 3
_TEXT_MAX = 200


class RowCounter:
    """Counts the rows of a task while the task reads them."""

    def __init__(self, key_groups: KeyGroupRange, key_positions: Sequence[int]) -> None:
        self._rows = np.zeros(key_groups.end + 1, np.int64)
        self._key_positions = key_positions
        self._keys: Counter[tuple[int, str]] = Counter()
        self.waited_ms = 0.0

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Yield *batches* unchanged while counting their rows.

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
                # Key groups are counted always, keys only where one group stands out.
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
        """Return the largest key groups as (key group, rows), the largest first."""
        order = np.argsort(-self._rows, kind="stable")[:REPORTED_MAX]
        return [
            (int(key_group), int(self._rows[key_group]))
            for key_group in order
            if self._rows[key_group]
        ]

    def keys(self) -> list[tuple[int, str, int]]:
        """Return the largest of the counted keys, as (key group, key, rows)."""
        top = self._keys.most_common(REPORTED_MAX)
        return [(key_group, key, rows) for (key_group, key), rows in top]
