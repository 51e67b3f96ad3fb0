"""
Snapshots: the state of some key groups, as a Parquet file that any tool can open.

One row is one key.  The columns are `key_group`, the key's (`key.<name>`), and one for each state
variable: a struct for a value, a list of structs for a list, a list of {key, value} for a map, and
a list of times for timers.  An entry with a time to live has a field `expires_at_ms` too.
Rows are in the order of key groups, so that a task reads only the row groups of its range.  The
file carries the operator's schema, by which it is read whatever the present one is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.errors import CapacityError, CorruptionError, InvariantError
from statelog.format.arrow_data import open_parquet
from statelog.format.arrow_limits import batches_of
from statelog.format.buffers import Buffer
from statelog.model import KeyGroupRange
from statelog.state.encoding.changes import UNDECODABLE, OperatorCodec, WrittenStates
from statelog.state.heap import BLOCK, KeyGroupState, Overlay, blocks, without_expired
from statelog.state.kinds import Key, Table

KEY_GROUP_COLUMN: Final = "key_group"
_ROW_GROUP_SIZE: Final = 65_536
SCHEMA_METADATA: Final = b"statelog.schema"
"""Key under which the file's metadata stores the operator's schema, as in a metadata change."""
_UNREADABLE: Final = (*UNDECODABLE, OSError)
"""The errors of reading bytes that are not a snapshot."""


def write_snapshot(
    codec: OperatorCodec,
    groups: Mapping[int, KeyGroupState],
    overlays: Mapping[int, Overlay],
    key_group_range: KeyGroupRange,
    *,
    now_ms: int,
) -> bytes:
    """
    Write the state of *key_group_range*, with *overlays* applied, as a Parquet file.

    See `snapshot_table` for the arguments.
    """
    return parquet_of([snapshot_table(codec, groups, overlays, key_group_range, now_ms=now_ms)])


class SnapshotWriter:
    """Writes a snapshot as a Parquet file, one portion at a time."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        # Keys hardly repeat, and zstd finds what does: dictionaries take longer, for larger files.
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", use_dictionary=False
        )

    def write(self, table: pa.Table) -> None:
        """Append the rows of some key groups, in ascending order."""
        # Arrow reads a row group only if each of its columns fits into one array.
        for batch in batches_of(table):
            self._writer.write_batch(batch, row_group_size=_ROW_GROUP_SIZE)

    def finish(self) -> pa.Buffer:
        """
        Return the finished file, uncompressed if decompression would expand it too much.

        Without rows if none were written.
        """
        self._writer.close()
        data = self._sink.getvalue()
        try:
            open_parquet(data)
        except pa.ArrowInvalid:
            return _uncompressed(data)
        return data


def _uncompressed(data: pa.Buffer) -> pa.Buffer:
    """Rewrite a snapshot from this writer without compression."""
    file = pq.ParquetFile(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, file.schema_arrow, compression="none", use_dictionary=False
    ) as writer:
        for index in range(file.num_row_groups):
            writer.write_table(file.read_row_group(index), row_group_size=_ROW_GROUP_SIZE)
    return sink.getvalue()


def parquet_of(tables: Iterable[pa.Table]) -> bytes:
    """Write tables from `snapshot_table`, in ascending order of key group, as Parquet."""
    writer = None
    for table in tables:
        writer = writer or SnapshotWriter(table.schema)
        writer.write(table)
    if writer is None:
        raise InvariantError("a snapshot requires at least one table, which may be empty")
    data: bytes = writer.finish().to_pybytes()
    return data


def snapshot_table(
    codec: OperatorCodec,
    groups: Mapping[int, KeyGroupState],
    overlays: Mapping[int, Overlay],
    key_group_range: KeyGroupRange,
    *,
    now_ms: int,
) -> pa.Table:
    """
    Return the state of *key_group_range* as one row per key, with *overlays* applied.

    The table has several chunks if one array cannot hold a column.
    """
    key_groups: list[int] = []
    keys: list[Key] = []
    columns: list[list[object]] = [[] for _ in codec.live]
    for key_group in key_group_range:
        if key_group not in groups:
            continue
        # One row for each key that any variable has.
        tables = _tables(codec, groups[key_group], overlays.get(key_group), now_ms)
        present = dict.fromkeys(key for table in tables for key in table)
        key_groups += [key_group] * len(present)
        keys += present
        for column, table in zip(columns, tables, strict=True):
            column += [table.get(key) for key in present]
    table = pa.Table.from_batches(list(_encoded(codec, key_groups, keys, columns)))
    return table.replace_schema_metadata({SCHEMA_METADATA: codec.metadata_change()})


def _encoded(
    codec: OperatorCodec,
    key_groups: Sequence[int],
    keys: Sequence[Key],
    columns: Sequence[Sequence[object]],
) -> Iterator[pa.RecordBatch]:
    """Yield rows as one batch, or as several if a column does not fit into one array."""
    arrays: list[pa.Array] = [pa.array(key_groups, pa.int32())]
    names = [KEY_GROUP_COLUMN, *(f"key.{name}" for name in codec.schema.key_schema.names)]
    try:
        arrays += codec.key.encode(keys)
        for state_id, column in zip(codec.live, columns, strict=True):
            state = codec.states[state_id]
            arrays.append(state.encode_cells(column))
            names.append(state.descriptor.name)
    except CapacityError:
        if len(keys) < 2:
            raise
        # Halved until every column fits into one array.
        half = len(keys) // 2
        for half_of_rows in (slice(0, half), slice(half, None)):
            yield from _encoded(
                codec,
                key_groups[half_of_rows],
                keys[half_of_rows],
                [c[half_of_rows] for c in columns],
            )
        return
    yield pa.RecordBatch.from_arrays(arrays, names=names)


def _tables(
    codec: OperatorCodec, group: KeyGroupState, overlay: Overlay | None, now_ms: int
) -> list[Table]:
    tables = []
    for state_id in codec.live:
        state = codec.states[state_id]
        table = group.tables[state_id]
        if overlay is not None and overlay[state_id]:
            table = state.kind.merge(table, overlay[state_id])
        if state.expires and now_ms >= 0:
            table = without_expired(table, state.descriptor.kind, now_ms)
        tables.append(table)
    return tables


def read_snapshot(
    codec: OperatorCodec, data: bytes | memoryview, key_group_range: KeyGroupRange
) -> dict[int, list[Table]]:
    """
    Read the tables of the key groups in *key_group_range* from a snapshot.

    Variables that the snapshot does not have stay empty; deleted ones are skipped.
    """
    try:
        table = rows_of_groups(data, key_group_range)
        # By the schema in the file, which may be an earlier one.
        written = codec.written_by((table.schema.metadata or {})[SCHEMA_METADATA])
        key_groups = table.column(KEY_GROUP_COLUMN).to_pylist()
        tables: dict[int, list[Table]] = {
            key_group: [state.kind.new_table() for state in codec.states]
            for key_group in dict.fromkeys(key_groups)
        }
        for batch in batches_of(table):
            _insert_rows(codec, written, batch, tables)
        return tables
    except _UNREADABLE as error:
        raise CorruptionError(f"a state snapshot cannot be read: {error}") from error


def _insert_rows(
    codec: OperatorCodec,
    written: WrittenStates,
    rows: pa.RecordBatch,
    tables: Mapping[int, Sequence[Table]],
) -> None:
    """Insert the rows of a snapshot into the tables of their key groups."""
    key_groups = rows.column(KEY_GROUP_COLUMN).to_pylist()
    names = written.schema.key_schema.names
    keys = codec.key.decode([rows.column(f"key.{name}") for name in names])
    for state, state_id in zip(written.codecs, written.present_ids, strict=True):
        if state is None or state.descriptor.name not in rows.schema.names:
            continue
        column = rows.column(state.descriptor.name)
        # A forged file: decoding a column of another type may end the process.
        if column.type != state.encode_cells([]).type:
            raise CorruptionError(
                f"a state snapshot cannot be read: its column {state.descriptor.name!r} has the type "
                f"{column.type}, which does not match its schema"
            )
        cells = state.decode_cells(column)
        tables_of_state = {key_group: parts[state_id] for key_group, parts in tables.items()}
        state.kind.insert_cells(tables_of_state, zip(key_groups, keys, cells, strict=True))


def rows_of_groups(
    data: Buffer, key_group_range: KeyGroupRange, columns: Sequence[str] | None = None
) -> pa.Table:
    """
    Read and validate the rows of some key groups in a snapshot.

    Not through a data set of Arrow: its reader waits for ever where a column has a forged type.
    """
    file = open_parquet(data)
    groups = list(_row_groups(file, key_group_range))
    # Read together, nested columns of more than one array fail.
    tables = [file.read_row_group(group, columns=columns) for group in groups]
    table = pa.concat_tables(tables) if tables else file.read_row_groups([], columns=columns)
    table.validate(full=True)
    key_groups = table.column(KEY_GROUP_COLUMN).to_numpy()
    is_inside = (key_groups >= key_group_range.start) & (key_groups <= key_group_range.end)
    return table if is_inside.all() else table.filter(pa.array(is_inside))


def is_of_schema(codec: OperatorCodec, data: bytes | memoryview) -> bool:
    """Return whether a snapshot was written with the current schema of *codec*."""
    written: bytes | None = (_parquet(data).schema_arrow.metadata or {}).get(SCHEMA_METADATA)
    return written == codec.metadata_change()


def snapshot_row_count(data: bytes | memoryview, key_group_range: KeyGroupRange) -> int:
    """Return an upper bound on the number of rows that a snapshot has for *key_group_range*."""
    file = _parquet(data)
    try:
        return sum(
            file.metadata.row_group(index).num_rows for index in _row_groups(file, key_group_range)
        )
    except _UNREADABLE as error:
        raise CorruptionError(f"a state snapshot cannot be read: {error}") from error


def snapshot_tables(
    data: bytes | memoryview, key_group_range: KeyGroupRange, schema: pa.Schema, block: int
) -> Iterator[tuple[KeyGroupRange, pa.Table]]:
    """Yield a snapshot in columns, a few key groups at a time."""
    waiting: list[pa.Table] = []
    try:
        file = _parquet(data)
        for index in _row_groups(file, key_group_range):
            table = file.read_row_group(index)
            table.validate(full=True)
            table = table.cast(schema)
            key_groups = table.column(KEY_GROUP_COLUMN).to_numpy()
            start, stop = np.searchsorted(
                key_groups, [key_group_range.start, key_group_range.end + 1]
            ).tolist()
            # Where the next block of key groups begins within this row group.
            bounds = np.flatnonzero(np.diff(key_groups[start:stop] // block)) + 1 + start
            for first, last in pairwise([start, *bounds.tolist(), stop]):
                block_rows = table.slice(first, last - first)
                # A block may continue in the next row group, so it is yielded when another one
                # begins.
                if waiting and block_rows.num_rows:
                    before = waiting[0].column(KEY_GROUP_COLUMN)[0].as_py() // block
                    if before != key_groups[first] // block:
                        yield _block_of(waiting, key_group_range, block)
                        waiting = []
                if block_rows.num_rows:
                    waiting.append(block_rows)
    except _UNREADABLE as error:
        raise CorruptionError(f"a state snapshot cannot be read: {error}") from error
    if waiting:
        yield _block_of(waiting, key_group_range, block)


def tables_in_schema(
    codec: OperatorCodec,
    data: bytes | memoryview,
    key_group_range: KeyGroupRange,
    schema: pa.Schema,
) -> Iterator[tuple[KeyGroupRange, pa.Table]]:
    """Yield a snapshot converted to the current schema, a few key groups at a time."""
    if is_of_schema(codec, data):
        yield from snapshot_tables(data, key_group_range, schema, BLOCK)
        return
    for block in blocks(key_group_range):
        groups = {}
        for key_group, tables in read_snapshot(codec, data, block).items():
            groups[key_group] = KeyGroupState(codec.kinds)
            groups[key_group].tables = tables
        yield block, snapshot_table(codec, groups, {}, block, now_ms=-1)


def _block_of(
    tables: Sequence[pa.Table], key_group_range: KeyGroupRange, block: int
) -> tuple[KeyGroupRange, pa.Table]:
    number = tables[0].column(KEY_GROUP_COLUMN)[0].as_py() // block
    whole = KeyGroupRange(number * block, number * block + block - 1)
    return whole.intersection(key_group_range), pa.concat_tables(tables)


def _parquet(data: bytes | memoryview) -> pq.ParquetFile:
    try:
        return open_parquet(data)
    except _UNREADABLE as error:
        raise CorruptionError(f"a state snapshot cannot be read: {error}") from error


def _row_groups(file: pq.ParquetFile, key_group_range: KeyGroupRange) -> Iterator[int]:
    """
    Yield the Parquet row groups that contain key groups in the range.

    Their key groups are read, not the statistics: Arrow ends the process where a forged file
    declares another type for the column.
    """
    for index in range(file.num_row_groups):
        column = file.read_row_group(index, columns=[KEY_GROUP_COLUMN]).column(KEY_GROUP_COLUMN)
        if column.type != pa.int32():
            raise pa.ArrowInvalid(f"its key groups are of type {column.type}")
        key_groups = column.to_numpy()
        is_inside = (key_groups >= key_group_range.start) & (key_groups <= key_group_range.end)
        if is_inside.any():
            yield index
