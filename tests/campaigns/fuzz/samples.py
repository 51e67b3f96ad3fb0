"""Small real objects, made by the library, for fuzzers and the tests of bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from statelog.extensions.recordings.format import TaskRecording
from statelog.format.arrow_data import to_stream
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
