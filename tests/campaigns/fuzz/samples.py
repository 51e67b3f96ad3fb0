"""Small real objects, made by the library; and a bound of memory."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from statelog.extensions.recordings.format import TaskRecording
from statelog.format.arrow_data import to_stream
from statelog.model import CompletedCheckpoint
from statelog.state.schema import OperatorStateSchema

SCHEMA = OperatorStateSchema("o", pa.schema([("k", pa.string())]), ())


def task_recording(**changes: Any) -> TaskRecording:
    """Return a recording of one key with two input rows."""
    rows = to_stream(pa.table({"record": pa.array([0, 0], pa.int32()), "k": ["a", "a"]}))
    task = TaskRecording(
        operator_id="o",
        operator=0,
        checkpoint_id=1,
        batch_id=1,
        time_mode="none",
        now_ms=-1,
        watermark_ms=-1,
        recorded_at_ms=1,
        processor="m:C",
        source="",
        row_format="rows",
        frames={},
        schema=msgspec.json.encode(SCHEMA.to_json()),
        key_positions=(0,),
        first_input=1,
        initial_positions=(),
        first_initial=0,
        before=to_stream(pa.table({"key_group": pa.array([0], pa.int32()), "key.k": ["a"]})),
        after=b"",
        input=rows,
        initial=rows,
        calls=[(0, "handleInputRows", -1, 1)],
        output=to_stream(pa.table({"n": [1]})),
    )
    return msgspec.structs.replace(task, **changes)


def checkpoint(**changes: Any) -> CompletedCheckpoint:
    fields: dict[str, Any] = {
        "checkpoint_id": 4, "parent_id": 3, "created_at_ms": 1, "epoch": 1, "owner_id": "o",
        "max_parallelism": 8,
    }  # fmt: skip
    return CompletedCheckpoint(**(fields | changes))


def stream_of(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def limit_memory(more_bytes: int = 256 << 20) -> None:
    """Bound the address space of this process to what is used now and *more_bytes*."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, resource.RLIM_INFINITY))
