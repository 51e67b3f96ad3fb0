"""What a task writes: its rows with their key groups, inline or in an object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from statelog.checkpoint.object_names import random_name
from statelog.checkpoint.state_stream import read_stream
from statelog.format.arrow_data import write_stream
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle
from statelog.spark.rows.key_order import key_order
from statelog.spark.rows.types import from_ipc
from statelog.spark.table.options import TableColumns, TableOptions
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.key_groups import key_group_of
from statelog.store import PATHS, ObjectStore, open_location

GROUP_COLUMN: Final = "__key_group"
_INLINE_BYTES: Final = 256 * 1024
_ROWS_AT_ONCE: Final = 10_000


@dataclass(frozen=True)
class TablePart(WriterCommitMessage):
    """
    The rows of one task.

    Args:
        inline: An Arrow IPC stream; None where it is in an object.
        handle: The object, or None.
        rows: Number of rows.
    """

    inline: bytes | None
    handle: FileStateHandle | None
    rows: int

    def table(self, store: ObjectStore) -> pa.Table:
        """
        Return the rows.

        Raises:
            CorruptionError: The object is damaged.
            StoreError: The store failed.
        """
        if self.handle is not None:
            return from_ipc(read_stream(store, self.handle, what="rows of a task"))
        return from_ipc(self.inline or b"")


def write_part(
    options: TableOptions,
    columns: TableColumns,
    max_parallelism: int,
    batches: Iterable[pa.RecordBatch],
) -> TablePart:
    """
    Write the rows of a task.

    Raises:
        UsageError: A key has a type whose key group only Spark computes.
        StoreError: The store failed.
    """
    grouped = [_with_groups(batch, columns, max_parallelism) for batch in batches if batch.num_rows]
    if not grouped:
        return TablePart(None, None, 0)
    data = write_stream(grouped, grouped[0].schema)
    rows = sum(batch.num_rows for batch in grouped)
    if len(data) <= _INLINE_BYTES:
        return TablePart(data, None, rows)
    store = open_location(options.path, options=dict(options.store))
    path = PATHS.output(random_name())
    store.put(path, data)
    return TablePart(None, FileStateHandle(path, len(data), checksum([data])), rows)


def _with_groups(
    batch: pa.RecordBatch, columns: TableColumns, max_parallelism: int
) -> pa.RecordBatch:
    """Return rows with their key group, which is computed once for each key."""
    schema = columns.schema.key_schema
    keys = [batch.column(name).cast(schema.field(name).type) for name in schema.names]
    order = key_order(np.zeros(batch.num_rows, np.int32), keys, KeyCodec(schema))
    firsts = pa.array(order.firsts)
    values = zip(*(column.take(firsts).to_pylist() for column in keys), strict=True)
    key_groups = [key_group_of(value, schema, max_parallelism) for value in values]
    groups = np.empty(batch.num_rows, np.int32)
    groups[order.rows] = np.repeat(np.asarray(key_groups, np.int32), np.diff(order.bounds))
    return pa.RecordBatch.from_arrays(
        [pa.array(groups), *batch.columns], names=[GROUP_COLUMN, *batch.schema.names]
    )


def batches_of_rows(
    rows: Iterator[Sequence[object]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield Spark's rows as record batches, for versions whose writers get rows."""
    while part := list(islice(rows, _ROWS_AT_ONCE)):
        columns = zip(*part, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)],
            schema=schema,
        )
