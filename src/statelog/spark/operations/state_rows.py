"""
Rows of state variables as the columns of a snapshot: the inverse of `spark.read.format("statelog")`.

The rows of all variables of an operator travel in one frame, so that one shuffle brings together
what belongs to a key::

    key_group  state_id  order  expires_at_ms  k0...  u<state id>  v<state id>

`order` is the position in a list or the time of a timer.  Each row has the columns `u` (map key) and
`v` (value) of its own variable, and nulls in the others.  Rows are sorted by key group, variable and
order before a task reads them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.query.keyed_frame import by_task
from statelog.spark.rows.key_order import key_order
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN
from statelog.spark.rows.spark_versions import arrow_of
from statelog.spark.worker.failures import reported_to_driver
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN, SCHEMA_METADATA
from statelog.state.encoding.values import KeyCodec
from statelog.state.kinds.kind import EXPIRES_FIELD, USER_KEY_COLUMN, VALUE_COLUMN

STATE_COLUMN: Final = "state_id"
ORDER_COLUMN: Final = "order"
_CHUNK_ROWS: Final = 65_536
_ANSWERS: Final = pa.schema([("answer", pa.binary())])
"""Rows of whole key groups that are converted together, at least."""

DELETE_ALL: Final = -1
"""The state id of a row that deletes all state of a key."""

RowNumbers = npt.NDArray[np.int64]


def deleted_variable(number: int) -> int:
    """Return the state id that deletes a variable, or the variable of such an id."""
    return -2 - number


def user_key_column(state_id: int) -> str:
    """Return the name of the column with the map keys of a variable."""
    return f"u{state_id}"


def value_column(state_id: int) -> str:
    """Return the name of the column with the values of a variable."""
    return f"v{state_id}"


def key_column(position: int) -> str:
    """Return the name of a column of the key."""
    return f"k{position}"


@dataclass(frozen=True, slots=True)
class StateCells:
    """
    The state of some keys, in the columns of a snapshot.

    Args:
        table: One row for each key, ascending by key group.
        entries: Number of values, elements, map entries and timers.
        deletions: Number of a row, and the variable whose state is deleted; None for all.
    """

    table: pa.Table
    entries: int
    deletions: tuple[tuple[int, int | None], ...] = ()


Answer = TypeVar("Answer")


def answers_of_tasks(
    rows: DataFrame,
    tasks: int,
    key_groups: KeyGroupRange,
    location: str,
    work: Callable[[int, Iterable[pa.RecordBatch]], Answer],
) -> list[Answer]:
    """
    Run a task on the sorted rows of each range of key groups, in one Spark job.

    Returns:
        What *work* returned, in any order.
    """
    ordered = by_task(rows, tasks, key_groups).sortWithinPartitions(
        INPUT_KEY_GROUP_COLUMN, STATE_COLUMN, ORDER_COLUMN
    )
    in_task = partial(_in_task, tasks, location, work)
    table = arrow_of(ordered.mapInArrow(in_task, "answer binary"), _ANSWERS)
    return [pickle.loads(data) for data in table.column("answer").to_pylist()]


def _in_task(
    tasks: int,
    location: str,
    work: Callable[[int, Iterable[pa.RecordBatch]], object],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(location):
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        if partition >= tasks:
            raise UsageError("Spark changed the number of partitions of the rows of state")
        answer = work(partition, batches)
    yield pa.RecordBatch.from_pydict({"answer": [pickle.dumps(answer)]})


class StateRows:
    """Makes the columns of a snapshot of the sorted rows of a task."""

    def __init__(self, codec: OperatorCodec, key_groups: KeyGroupRange) -> None:
        self._codec = codec
        self._key_groups = key_groups

    def cells(self, batches: Iterable[pa.RecordBatch]) -> Iterator[StateCells]:
        """
        Yield the state of all keys, a few key groups at a time.

        Raises:
            UsageError: A key has two values of one variable, or one map key twice; a value is
                null; or a row belongs to another task.
        """
        for rows in _whole_groups(batches):
            yield self._cells_of(rows)

    def _cells_of(self, rows: pa.RecordBatch) -> StateCells:
        groups = rows.column(0).to_numpy().astype(np.int32)
        if groups[0] < self._key_groups.start or groups[-1] > self._key_groups.end:
            raise UsageError(
                f"a task of key groups {self._key_groups} was given rows of {groups[0]} to "
                f"{groups[-1]}; Spark must not change the partitions of the rows"
            )
        keys = [
            rows.column(key_column(at)).cast(field.type)
            for at, field in enumerate(self._codec.key.schema)
        ]
        order = key_order(groups, keys, self._codec.key)
        counts = np.diff(order.bounds)
        parents = np.repeat(np.arange(len(counts)), counts)
        states = rows.column(STATE_COLUMN).to_numpy()[order.rows]
        columns: list[pa.Array] = [pa.array(groups[order.firsts], pa.int32())]
        columns += self._key_columns(keys, order.firsts)
        entries = 0
        for state_id in self._codec.live:
            mine = np.flatnonzero(states == state_id)
            part = _Part(rows, state_id, self._codec.states[state_id], order.rows[mine])
            column, count = part.column(parents[mine], len(counts))
            columns.append(column)
            entries += count
        names = [KEY_GROUP_COLUMN, *(f"key.{name}" for name in self._codec.key.schema.names)]
        names += [self._codec.states[state_id].descriptor.name for state_id in self._codec.live]
        table = pa.Table.from_arrays(columns, names=names)
        metadata = {SCHEMA_METADATA: self._codec.metadata_change()}
        gone = np.flatnonzero(states < 0)
        deletions = tuple(
            (parent, None if state == DELETE_ALL else deleted_variable(state))
            for parent, state in zip(parents[gone].tolist(), states[gone].tolist(), strict=True)
        )
        return StateCells(table.replace_schema_metadata(metadata), entries, deletions)

    def _key_columns(self, keys: list[pa.Array], firsts: RowNumbers) -> list[pa.Array]:
        taken = [column.take(pa.array(firsts)) for column in keys]
        codec = self._codec.key
        # Equal keys may differ in their bytes (NaN), and are stored in one form.
        return taken if codec.is_plain else codec.encode(codec.decode(taken))


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one variable in a chunk, in the order of their keys."""

    rows: pa.RecordBatch
    state_id: int
    state: StateCodec
    numbers: RowNumbers

    def column(self, parents: RowNumbers, keys: int) -> tuple[pa.Array, int]:
        """
        Return the column of cells, and the number of entries.

        Args:
            parents: Number of each row's key, ascending.
            keys: Number of keys.
        """
        kind = self.state.kind
        if kind.is_single and not np.diff(parents).all():
            raise self._twice(int(np.flatnonzero(np.diff(parents) == 0)[0]), "value")
        columns = [column for name in kind.row_columns for column in self._columns(name)]
        if self.state.expires:
            columns.append(self._taken(EXPIRES_FIELD))
        cell_type = self.state.encode_cells([]).type
        cells = kind.cells_of_rows(parents, columns, keys, cell_type)
        if not kind.is_single:
            self._check_user_keys(parents, kind.element_keys(cells.flatten()))
        return cells, len(kind.rows(cells)[0])

    def _taken(self, name: str) -> pa.Array:
        return self.rows.column(name).take(pa.array(self.numbers))

    def _columns(self, name: str) -> list[pa.Array]:
        """Return a column of the kind's rows, a struct as its fields."""
        if name not in (USER_KEY_COLUMN, VALUE_COLUMN):
            return [self._taken(ORDER_COLUMN)]
        of_state = user_key_column if name == USER_KEY_COLUMN else value_column
        structs = self._taken(of_state(self.state_id))
        if name == VALUE_COLUMN and structs.null_count:
            raise UsageError(
                f"state {self.state.descriptor.name!r}: a row has the value null; leave such rows out"
            )
        fields: list[pa.Array] = structs.flatten()
        return fields

    def _check_user_keys(self, parents: RowNumbers, user_keys: list[pa.Array] | None) -> None:
        """Check that no cell has a map key twice."""
        if user_keys is None or not len(parents):
            return
        columns = [pa.array(parents), *user_keys]
        fields = [pa.field(str(at), column.type) for at, column in enumerate(columns)]
        together = key_order(np.zeros(len(parents), np.int32), columns, KeyCodec(pa.schema(fields)))
        sizes = np.diff(together.bounds)
        if (sizes > 1).any():
            first = int(together.firsts[np.flatnonzero(sizes > 1)[0]])
            fields = self.state.kind.row_fields(self.state)
            user_key = {
                field.name.partition(".")[2]: column[first].as_py()
                for field, column in zip(fields, user_keys, strict=False)
            }
            raise self._twice(first, f"entry of the map key {user_key!r}")

    def _twice(self, at: int, what: str) -> UsageError:
        """Return the error for the key of row *at*."""
        row = int(self.numbers[at])
        names = [key_column(position) for position in range(len(self.state.key.schema))]
        key = tuple(self.rows.column(name)[row].as_py() for name in names)
        return UsageError(
            f"state {self.state.descriptor.name!r}: the key {key!r:.100} has more than one {what}; "
            "reduce the frame to one row for each"
        )


def _whole_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield sorted rows in parts of whole key groups, each of `_CHUNK_ROWS` or more."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        groups = batch.column(0).to_numpy()
        start = 0
        if count + len(groups) > _CHUNK_ROWS:
            # The last key group of the batch may go on in the next one.
            start = int(np.searchsorted(groups, groups[-1], side="left"))
            if start or (waiting and waiting[-1].column(0)[-1].as_py() != groups[0]):
                yield _joined([*waiting, batch.slice(0, start)])
                waiting, count = [], 0
        waiting.append(batch.slice(start))
        count += len(groups) - start
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches([batch for batch in batches if batch.num_rows]).combine_chunks()
    return table.to_batches()[0]
