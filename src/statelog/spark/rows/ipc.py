"""Write record batches as compressed Arrow IPC streams, and read them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from statelog.errors import CorruptionError
from statelog.format.arrow_data import read_stream_table
from statelog.format.bounds import largest_arrow_expansion


def to_ipc(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return batches as one Arrow IPC stream, compressed unless its reader would refuse that."""
    data = _stream(batches, schema, "zstd")
    fits = sum(batch.nbytes for batch in batches) <= largest_arrow_expansion(len(data)) // 2
    return data if fits else _stream(batches, schema, None)


def _stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema, compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_ipc(data: bytes | memoryview) -> pa.Table:
    """
    Return the table of an Arrow IPC stream, validated.

    Raises:
        CorruptionError: It is none, or declares more than its size allows.
    """
    try:
        return read_stream_table(data)
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"rows of a task cannot be read: {error}") from error
