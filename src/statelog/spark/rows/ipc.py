"""Write record batches as compressed Arrow IPC streams, and read them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from statelog.errors import CorruptionError
from statelog.format.arrow_data import read_stream_table, write_stream


def to_ipc(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return batches as one Arrow IPC stream, which is usually compressed."""
    return write_stream(batches, schema)


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
