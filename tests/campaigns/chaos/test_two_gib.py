"""
More than 2 GiB of real text in one block of key groups, in one change, and in one output.

Takes about 11 GiB of memory.  `tests/unit/state/test_keyed_state_large.py` shows the same of small arrays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from statelog.errors import CapacityError
from statelog.extensions.columns.slots import SlotState
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.spark.rows.spark_row import RowOutput
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import MemoryLimits
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import StateKind
from statelog.state.schema import OperatorStateSchema, StateDescriptor
from statelog.store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KEYS = 22
TEXT = "0123456789abcdef" * (100 * 1024 * 64)  # 100 MiB
PART = KeyGroupRange(0, 3)
SCHEMA = OperatorStateSchema(
    "op",
    pa.schema([("k", pa.int64())]),
    (StateDescriptor("text", StateKind.VALUE, pa.schema([("s", pa.string())])),),
)


@pytest.fixture(autouse=True)
def _memory() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    if int(lines["MemAvailable"].split()[0]) < 11 << 20:
        pytest.skip("needs 11 GiB of memory")


def test_changes_and_output_of_one_task_are_refused_before_the_commit() -> None:
    codec = OperatorCodec(SCHEMA)
    overlays: Any = {0: [{(key,): (TEXT,) for key in range(KEYS)}]}
    with pytest.raises(CapacityError, match=r"state 'text', field 's': .* 2 GiB.*`tasks`"):
        codec.encode(overlays)
    output = RowOutput(pa.schema([("text", pa.string())]), 0)
    output.extend(Row(text=TEXT) for _ in range(KEYS))
    with pytest.raises(CapacityError, match=r"output column 'text': .* 2 GiB.*`tasks`"):
        output.batch()


@pytest.mark.parametrize("kind", ["objects", "columns", "slots"])
def test_a_block_is_written_as_a_snapshot_and_restored(kind: str, tmp_path: Path) -> None:
    codec = OperatorCodec(SCHEMA)
    state = KeyedState(codec)
    state.catch_up(PART, -1, (), lambda: None)  # type: ignore[arg-type, return-value]
    for key in range(KEYS):
        state.groups[key % 4].tables[0][(key,)] = (TEXT,)
    data = state.snapshot(PART, {}, -1)
    del state
    store = open_store(tmp_path)
    store.put("snapshot", data)
    snapshot = MaterializedHandle(PART, 0, FileStateHandle("snapshot", len(data), checksum([data])))
    del data
    handle = ChangelogStateBackendHandle(PART, 0, (snapshot,), ())
    if kind == "slots":
        slots = SlotState(codec)
        slots.catch_up(PART, 0, (), lambda: (store, handle))
        assert KEYS == sum(slots.entry_counts(PART))
        return
    limits = MemoryLimits(1 << 40, 0) if kind == "columns" else MemoryLimits.unbounded()
    restored = KeyedState(codec, limits)
    restored.catch_up(PART, 0, (), lambda: (store, handle))
    assert KEYS == restored.entry_count(PART)
    keys: dict[int, list[Any]] = {group: [] for group in PART}
    for key in range(KEYS):
        keys[key % 4].append((key,))
    restored.prepare(keys)
    assert all(restored.groups[key % 4].tables[0][(key,)] == (TEXT,) for key in range(KEYS))
