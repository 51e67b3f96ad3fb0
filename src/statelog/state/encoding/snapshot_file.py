"""
Snapshots: the state of some key groups as one Parquet file that any tool opens.

One row is one key.  The columns are `key_group`, the key's (`key.<name>`), and one for each state
variable: a struct for a value, a list of structs for a list, a list of {key, value} for a map, and
a list of times for timers.  What has a time to live carries `expires_at_ms` beside its value.
Rows stand in the order of key groups, so that a task reads only the row groups of its range.  The
file carries the operator's schema, by which it is read whatever the present one is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.errors import CorruptionError, InvariantError
from statelog.model import KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.heap.expiry import without_expired
from statelog.state.heap.tables import Key, KeyGroupState, Overlay, Table, merged
from statelog.state.schema.descriptors import StateKind

KEY_GROUP_COLUMN: Final = "key_group"
ROW_GROUP_SIZE: Final = 65_536
SCHEMA_METADATA: Final = b"statelog.schema"
"""Key under which the file's metadata holds the operator's schema, as in a metadata change."""
EXPIRES_FIELD: Final = "expires_at_ms"


def write_snapshot(
    codec: OperatorCodec,
    groups: Mapping[int, KeyGroupState],
    overlays: Mapping[int, Overlay],
    key_group_range: KeyGroupRange,
    *,
    now_ms: int,
) -> bytes:
    """
    Return the state of *key_group_range*, with *overlays* folded in, as a Parquet file.

    The arguments are those of `snapshot_table`.
    """
    return parquet_of([snapshot_table(codec, groups, overlays, key_group_range, now_ms=now_ms)])


def parquet_of(tables: Iterable[pa.Table]) -> bytes:
    """Return tables of `snapshot_table`'s layout, in the order of key groups, as a Parquet file."""
    sink = pa.BufferOutputStream()
    writer = None
    for table in tables:
        if writer is None:
            writer = pq.ParquetWriter(sink, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=ROW_GROUP_SIZE)
    if writer is None:
        raise InvariantError("a snapshot needs a table, if only an empty one")
    writer.close()
    data: bytes = sink.getvalue().to_pybytes()
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
    Return the state of *key_group_range*, with *overlays* folded in, one row per key.

    Args:
        codec: The operator's codec.
        groups: Tables by key group.
        overlays: Deltas on top of them; they and the tables stay as they are.
        key_group_range: What to write.
        now_ms: What expired long before is left out; -1 keeps everything.
    """
    key_groups: list[int] = []
    keys: list[Key] = []
    columns: list[list[Any]] = [[] for _ in codec.live]
    for key_group in key_group_range:
        if key_group not in groups:
            continue
        tables = _tables(codec, groups[key_group], overlays.get(key_group), now_ms)
        present = dict.fromkeys(key for table in tables for key in table)
        key_groups += [key_group] * len(present)
        keys += present
        for column, table in zip(columns, tables, strict=True):
            column += [table.get(key) for key in present]
    arrays: list[pa.Array[Any]] = [pa.array(key_groups, pa.int32()), *codec.key.encode(keys)]
    names = [KEY_GROUP_COLUMN, *(f"key.{name}" for name in codec.schema.key_schema.names)]
    for state_id, column in zip(codec.live, columns, strict=True):
        state = codec.states[state_id]
        arrays.append(encode_cells(state, column))
        names.append(state.descriptor.name)
    table = pa.Table.from_arrays(arrays, names=names)
    return table.replace_schema_metadata({SCHEMA_METADATA: codec.metadata_change()})


def _tables(
    codec: OperatorCodec, group: KeyGroupState, overlay: Overlay | None, now_ms: int
) -> list[Table]:
    tables = []
    for state_id in codec.live:
        state = codec.states[state_id]
        table = group.tables[state_id]
        if overlay is not None and overlay[state_id]:
            table = merged(table, overlay[state_id], state.descriptor.kind)
        if state.expires and now_ms >= 0:
            table = without_expired(table, state.descriptor.kind, now_ms)
        tables.append(table)
    return tables


def encode_cells(state: StateCodec, cells: Sequence[Any]) -> pa.Array[Any]:
    """Return the column of a variable; a cell is what a table holds for a key, or None."""
    match state.descriptor.kind:
        case StateKind.VALUE:
            return _entries(state, cells)
        case StateKind.TIMER:
            return pa.array([None if cell is None else list(cell) for cell in cells], _TIMERS)
        case StateKind.LIST:
            return _lists(cells, _entries(state, [e for cell in cells for e in cell or ()]))
        case StateKind.MAP:
            pairs = [pair for cell in cells for pair in (cell or {}).items()]
            user_keys = _struct(state.user_key, [user_key for user_key, _ in pairs])
            entries = _entries(state, [entry for _, entry in pairs])
            both = pa.StructArray.from_arrays([user_keys, entries], ["key", "value"])
            return _lists(cells, both)


_TIMERS: Final = pa.list_(pa.int64())


def _lists(cells: Sequence[Any], elements: pa.Array[Any]) -> pa.Array[Any]:
    offsets: list[int | None] = []
    position = 0
    for cell in cells:
        offsets.append(None if cell is None else position)
        position += 0 if cell is None else len(cell)
    return pa.ListArray.from_arrays(pa.array([*offsets, position], pa.int32()), elements)


def _struct(codec: Any, rows: Sequence[Any], mask: Sequence[bool] | None = None) -> pa.Array[Any]:
    return pa.StructArray.from_arrays(
        codec.encode(rows),
        fields=list(codec.stored),
        mask=None if mask is None else pa.array(mask, pa.bool_()),
    )


def _entries(state: StateCodec, entries: Sequence[Any]) -> pa.Array[Any]:
    """Return values as structs, with their expiry as one more field where they have one."""
    codec = state.value
    missing = [entry is None for entry in entries]
    nothing = (None,) * len(codec.schema)
    if not state.expires:
        rows = [nothing if entry is None else entry for entry in entries]
        return _struct(codec, rows, missing)
    columns = codec.encode([nothing if entry is None else entry[1] for entry in entries])
    columns.append(pa.array([0 if entry is None else entry[0] for entry in entries], pa.int64()))
    fields = [*codec.stored, pa.field(EXPIRES_FIELD, pa.int64())]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(missing, pa.bool_()))


def read_snapshot(
    codec: OperatorCodec, data: bytes | memoryview, key_group_range: KeyGroupRange
) -> dict[int, list[Table]]:
    """
    Return the tables of a snapshot by key group, for the groups in *key_group_range*.

    Variables that the snapshot does not have stay empty; those that are gone are passed over.

    Raises:
        CorruptionError: The bytes are no snapshot.
        IncompatibleFormatError: A newer statelog wrote it.
    """
    bounds = [
        (KEY_GROUP_COLUMN, ">=", key_group_range.start),
        (KEY_GROUP_COLUMN, "<=", key_group_range.end),
    ]
    try:
        table = pq.read_table(pa.BufferReader(pa.py_buffer(data)), filters=bounds).combine_chunks()
        written = codec.written_by((table.schema.metadata or {})[SCHEMA_METADATA])
        key_groups = table.column(KEY_GROUP_COLUMN).to_pylist()
        keys = codec.key.decode(
            [_whole(table, f"key.{name}") for name in written.schema.key_schema.names]
        )
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CorruptionError(f"a state snapshot cannot be read: {error}") from error
    tables: dict[int, list[Table]] = {
        key_group: [{} for _ in codec.states] for key_group in dict.fromkeys(key_groups)
    }
    for state, state_id in zip(written.codecs, written.present_ids, strict=True):
        if state is None or state.descriptor.name not in table.column_names:
            continue
        cells = state.cells(decode_cells(state, _whole(table, state.descriptor.name)))
        for key_group, key, cell in zip(key_groups, keys, cells, strict=True):
            if cell:
                tables[key_group][state_id][key] = cell
    return tables


def is_of_schema(codec: OperatorCodec, data: bytes | memoryview) -> bool:
    """Return whether a snapshot was written with the schema that *codec* has now."""
    written: bytes | None = (_parquet(data).schema_arrow.metadata or {}).get(SCHEMA_METADATA)
    return written == codec.metadata_change()


def snapshot_row_count(data: bytes | memoryview, key_group_range: KeyGroupRange) -> int:
    """Return how many rows a snapshot has for *key_group_range*, or some more."""
    metadata = _parquet(data).metadata
    return sum(
        metadata.row_group(index).num_rows for index in _row_groups(metadata, key_group_range)
    )


def snapshot_tables(
    data: bytes | memoryview, key_group_range: KeyGroupRange, schema: pa.Schema, block: int
) -> Iterator[tuple[KeyGroupRange, pa.Table]]:
    """
    Yield a snapshot in columns, a few key groups at a time, so that it is never whole in memory.

    Args:
        data: The snapshot.
        key_group_range: Which key groups.
        schema: The columns of the snapshot, which is of the present schema.
        block: Key groups of a table; those of one table have the same quotient by it.

    Raises:
        CorruptionError: The bytes are no snapshot.
    """
    waiting: list[pa.Table] = []
    try:
        file = _parquet(data)
        for index in _row_groups(file.metadata, key_group_range):
            table = file.read_row_group(index).cast(schema)
            key_groups = table.column(KEY_GROUP_COLUMN).to_numpy()
            start, stop = np.searchsorted(
                key_groups, [key_group_range.start, key_group_range.end + 1]
            ).tolist()
            bounds = np.flatnonzero(np.diff(key_groups[start:stop] // block)) + 1 + start
            for first, last in pairwise([start, *bounds.tolist(), stop]):
                part = table.slice(first, last - first)
                if waiting and part.num_rows:
                    before = waiting[0].column(KEY_GROUP_COLUMN)[0].as_py() // block
                    if before != key_groups[first] // block:
                        yield _block_of(waiting, key_group_range, block)
                        waiting = []
                if part.num_rows:
                    waiting.append(part)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CorruptionError(f"a state snapshot cannot be read: {error}") from error
    if waiting:
        yield _block_of(waiting, key_group_range, block)


def _block_of(
    tables: Sequence[pa.Table], key_group_range: KeyGroupRange, block: int
) -> tuple[KeyGroupRange, pa.Table]:
    number = tables[0].column(KEY_GROUP_COLUMN)[0].as_py() // block
    whole = KeyGroupRange(number * block, number * block + block - 1)
    return whole.intersection(key_group_range), pa.concat_tables(tables)


def _parquet(data: bytes | memoryview) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)))
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"a state snapshot cannot be read: {error}") from error


def _row_groups(metadata: Any, key_group_range: KeyGroupRange) -> Iterator[int]:
    """Yield the row groups that may hold key groups of the range."""
    for index in range(metadata.num_row_groups):
        statistics = metadata.row_group(index).column(0).statistics
        known = statistics is not None and statistics.has_min_max
        if known and not (
            statistics.min <= key_group_range.end and key_group_range.start <= statistics.max
        ):
            continue
        yield index


def _whole(table: pa.Table, name: str) -> pa.Array[Any]:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def decode_cells(state: StateCodec, column: pa.Array[Any]) -> Iterable[Any]:
    """Return the cells of a variable's column, which is not a slice of a longer one."""
    match state.descriptor.kind:
        case StateKind.VALUE:
            return _values(state, column)
        case StateKind.TIMER:
            return [None if cell is None else tuple(cell) for cell in column.to_pylist()]
        case StateKind.LIST:
            return _sliced(column, _values(state, column.values))
        case StateKind.MAP:
            keys = state.user_keys(column.values.field(0).flatten())
            pairs = list(zip(keys, _values(state, column.values.field(1)), strict=True))
            return [None if cell is None else dict(cell) for cell in _sliced(column, pairs)]


def _sliced(column: pa.Array[Any], elements: list[Any]) -> list[Any]:
    """Return the elements of each list of *column*; None for a null list."""
    offsets = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    return [
        elements[offsets[index] : offsets[index + 1]] if valid[index] else None
        for index in range(len(column))
    ]


def _values(state: StateCodec, column: pa.Array[Any]) -> list[Any]:
    fields = column.flatten()
    width = len(state.value.schema)
    rows: list[Any] = state.values(fields[:width])
    if state.expires:
        rows = list(zip(fields[width].to_pylist(), rows, strict=True))
    if column.null_count:
        valid = column.is_valid().to_pylist()
        rows = [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]
    return rows
