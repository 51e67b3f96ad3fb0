"""
How output rows reach the user's sink.

*staged*: tasks hand their rows to the driver (or, if large, to files); the driver commits them in
the same object as the state, and only then calls the sink, over the committed rows.  A replay of
the batch delivers the very same rows.

*direct*: the sink evaluates the tasks itself, in one Spark job; the state is committed after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.errors import CorruptionError
from statelog.format.buffers import checksum
from statelog.model.handles import FileStateHandle, stream_handle_from_json
from statelog.spark.driver.arrow_frame import frame_of_arrow
from statelog.spark.rows.ipc import from_ipc
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.protocol import TaskAck
from statelog.store import open_store

OUTPUT_SECTION = b"OUTP"
"""Trailer section of `_metadata` that holds staged rows: a msgpack list of Arrow IPC streams."""
_FEW_ROWS = 10_000
"""Staged rows up to this number are handed to the sink in one partition."""
_LOCAL_ROWS = "spark.sql.execution.arrow.localRelationThreshold"
"""Arrow data below this size becomes rows in the driver."""


def inline_outputs(acks: Sequence[TaskAck]) -> list[bytes]:
    """Return the rows that travelled in the answers, as Arrow IPC streams."""
    return [ack.output for ack in acks if isinstance(ack.output, bytes)]


def pack_outputs(acks: Sequence[TaskAck]) -> tuple[bytes | None, list[FileStateHandle]]:
    """Return the rows that travelled inline as a trailer section, and the files of the others."""
    inline = inline_outputs(acks)
    files = [handle for ack in acks if isinstance(ack.output, tuple) for handle in ack.output]
    return (msgspec.msgpack.encode(inline) if inline else None), files


def unpack_outputs(section: bytes | None) -> list[bytes]:
    """Return the Arrow IPC streams in a trailer section of staged rows."""
    if section is None:
        return []
    return msgspec.msgpack.decode(section, type=list[bytes])


def _read_output(
    location: str,
    options: dict[str, Any],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(location):
        store = open_store(location, options=options)
        for batch in batches:
            for text in batch.column(0).to_pylist():
                handle = stream_handle_from_json(msgspec.json.decode(text))
                if not isinstance(handle, FileStateHandle):
                    raise CorruptionError("staged rows in a file need a file handle")
                data = store.get(handle.path)
                if handle.crc32c is not None and checksum([data]) != handle.crc32c:
                    raise CorruptionError(
                        f"staged rows in {handle.path} are damaged: the checksum does not match",
                        path=handle.path,
                    )
                yield from from_ipc(data).cast(schema).to_batches()


def _frame_of_tasks(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """
    Return a frame whose tasks make their rows out of Arrow themselves.

    Spark makes rows of less than 48 MB in the driver first, to optimize with their values; here
    that only costs: about half of a delivery.
    """
    before = session.conf.get(_LOCAL_ROWS)
    session.conf.set(_LOCAL_ROWS, "0")
    try:
        return frame_of_arrow(session, table, schema)
    finally:
        session.conf.set(_LOCAL_ROWS, str(before))


def output_frame(
    session: SparkSession,
    schema: StructType,
    arrow: pa.Schema,
    tables: Sequence[pa.Table],
    files: Sequence[FileStateHandle],
    location: str,
    store_options: dict[str, Any],
) -> DataFrame:
    """Return the staged rows of one micro-batch as a frame."""
    inline = pa.concat_tables(tables) if tables else arrow.empty_table()
    if inline.num_rows <= _FEW_ROWS:
        frame = frame_of_arrow(session, inline, schema)
        frame = frame.coalesce(1)  # one task and, in a sink of files, one file
    else:
        frame = _frame_of_tasks(session, inline, schema)
    if not files:
        return frame
    names = [(msgspec.json.encode(handle.to_json()).decode("utf-8"),) for handle in files]
    spilled = (
        session.createDataFrame(names, "handle string")
        .repartition(len(names))
        .mapInArrow(partial(_read_output, location, store_options, arrow), schema)
    )
    return frame.unionAll(spilled) if inline.num_rows else spilled
