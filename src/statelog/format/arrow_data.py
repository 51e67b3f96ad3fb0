"""
Check Arrow and Parquet data from storage before it is used.

A forged Arrow message can declare buffers that end beyond its bytes, offsets that point outside of
their buffer, and compressed buffers of any size.  Arrow checks them on request only.  So the
declared sizes are compared with the stored ones first (`format.buffers`), and the arrays are
validated in full before anything reads a value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.format.buffers import ARROW_ROWS_ALLOWED, Buffer, largest_arrow_expansion

_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_HEADER: Final = 2
_LENGTH: Final = 0
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
_DICTIONARY_DATA: Final = 1
_BUFFER_SIZE: Final = 16
_UNCOMPRESSED: Final = -1
_START: Final = struct.Struct("<III")
_CONTINUATION: Final = 0xFFFFFFFF
_PREFIX: Final = 8
"""The mark of a message, and the length of its metadata."""
_ROW_BYTES_MIN: Final = 4
"""Each row of a snapshot has the number of its key group."""


def read_stream_table(data: Buffer) -> pa.Table:
    """Read and validate the table in an Arrow IPC stream."""
    buffer = pa.py_buffer(data)
    declared = rows = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer)):
            more_bytes, more_rows = _declared(message)
            _check(declared, more_rows, buffer.size)
            declared = declared + more_bytes
            rows = rows + more_rows
            _check(declared, rows, buffer.size)
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(
            f"a message does not have the layout of a record batch ({error})"
        ) from error
    reader = pa.ipc.open_stream(pa.BufferReader(buffer))
    check_names(reader.schema)
    table = reader.read_all()
    table.validate(full=True)
    return table


def check_names(fields: Iterable[pa.Field]) -> None:
    """Raise `pa.ArrowInvalid` if the name of a field or a nested field is not UTF-8."""
    try:
        waiting = list(fields)
        while waiting:
            field = waiting.pop()
            field.name.encode("utf-8")
            waiting += [field.type.field(index) for index in range(field.type.num_fields)]
    except UnicodeError as error:
        raise pa.ArrowInvalid(f"the name of a column is not UTF-8 ({error})") from error


def write_stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Write batches as an Arrow IPC stream, compressed if `read_stream_table` accepts that."""
    data = _stream(batches, schema, "zstd")
    fits = sum(batch.nbytes for batch in batches) <= largest_arrow_expansion(len(data)) // 2
    return data if fits else _stream(batches, schema, None)


def to_stream(table: pa.Table) -> bytes:
    """Write a table as an uncompressed Arrow IPC stream."""
    return _stream(table.to_batches(), table.schema, None)


def _stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema, compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """Convert the rows of a table from storage to Python values."""
    try:
        rows: list[dict[str, object]] = table.to_pylist()
        return rows
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise pa.ArrowInvalid(f"a value of {table.schema.names} is invalid ({error!r})") from error


def read_batch(data: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Read and validate the record batch in an uncompressed Arrow message."""
    try:
        rows = _plain_rows(memoryview(data))
    except struct.error as error:
        raise pa.ArrowInvalid(
            f"a message does not have the layout of a record batch ({error})"
        ) from error
    _check(0, rows, data.size)
    batch = pa.ipc.read_record_batch(data, schema)
    batch.validate(full=True)
    return batch


def open_parquet(data: Buffer) -> pq.ParquetFile:
    """Open a Parquet file, checking that the sizes it declares fit its length."""
    buffer = pa.py_buffer(data)
    try:
        file = pq.ParquetFile(pa.BufferReader(buffer))
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"the name of a column is not UTF-8 ({error})") from error
    check_names(file.schema_arrow)
    metadata = file.metadata
    sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    if min(sizes, default=0) < 0 or metadata.num_rows < 0:
        raise pa.ArrowInvalid("a row group declares a negative size")
    allowed = largest_arrow_expansion(buffer.size)
    if sum(sizes) > allowed or metadata.num_rows > allowed // _ROW_BYTES_MIN:
        raise pa.ArrowInvalid(
            f"a file of {buffer.size} bytes declares {metadata.num_rows} rows of {sum(sizes)} bytes in total"
        )
    return file


def _check(declared: int, rows: int, stored: int) -> None:
    if declared > largest_arrow_expansion(stored):
        raise pa.ArrowInvalid(
            f"a message of {stored} bytes declares {declared} bytes of uncompressed data"
        )
    if rows < 0 or rows > max(ARROW_ROWS_ALLOWED, 8 * max(stored, declared)):
        raise pa.ArrowInvalid(f"a message of {stored} bytes declares {rows} rows")


def _plain_rows(data: memoryview) -> int:
    """
    Return the number of rows in a message that contains an uncompressed record batch.

    For each change of a log.
    """
    mark, length, root = _START.unpack_from(data)
    if mark != _CONTINUATION or not 0 < length <= len(data) - _PREFIX:  # 0 is the end of a stream
        raise pa.ArrowInvalid("it does not begin with a message")
    batch = _table(data, _PREFIX + root, _HEADER)
    if not batch or _field(data, batch, _COMPRESSION):
        raise pa.ArrowInvalid("a message does not contain an uncompressed record batch")
    count = _field(data, batch, _LENGTH)
    return _I64.unpack_from(data, count)[0] if count else 0


def _declared(message: pa.ipc.Message) -> tuple[int, int]:
    """Return the number of uncompressed bytes and of rows that a message declares."""
    if message.type not in ("record batch", "dictionary"):
        return 0, 0
    data = memoryview(message.metadata)
    batch = _table(data, _U32.unpack_from(data)[0], _HEADER)
    if batch and message.type == "dictionary":
        batch = _table(data, batch, _DICTIONARY_DATA)
    if not batch:
        raise pa.ArrowInvalid("a message does not contain a record batch")
    length = _field(data, batch, _LENGTH)
    rows: int = _I64.unpack_from(data, length)[0] if length else 0
    if not _field(data, batch, _COMPRESSION):
        return 0, rows
    return _uncompressed(data, batch, memoryview(message.body)), rows


def _uncompressed(data: memoryview, batch: int, body: memoryview) -> int:
    """Return the sum of the uncompressed lengths that prefix compressed buffers."""
    field = _field(data, batch, _BUFFERS)
    if not field:
        return 0
    vector = field + _U32.unpack_from(data, field)[0]
    total = 0
    for index in range(_U32.unpack_from(data, vector)[0]):
        offset, size = struct.unpack_from("<qq", data, vector + 4 + index * _BUFFER_SIZE)
        if not size:
            continue
        if offset < 0 or size < _I64.size or offset + size > len(body):
            raise pa.ArrowInvalid("a buffer extends beyond the end of its message")
        length = _I64.unpack_from(body, offset)[0]
        if length < _UNCOMPRESSED:
            raise pa.ArrowInvalid(f"a buffer declares a length of {length} bytes")
        total += size if length == _UNCOMPRESSED else length
    return total


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a field in a flatbuffers table, or 0 if it is missing."""
    layout = table - _I32.unpack_from(data, table)[0]
    if layout < 0 or 4 + 2 * number >= _U16.unpack_from(data, layout)[0]:
        return 0
    offset: int = _U16.unpack_from(data, layout + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _table(data: memoryview, table: int, number: int) -> int:
    """Return the position of the table that a field refers to, or 0 if it is missing."""
    field = _field(data, table, number)
    place: int = field + _U32.unpack_from(data, field)[0] if field else 0
    return place
