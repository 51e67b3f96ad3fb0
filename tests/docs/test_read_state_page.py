"""The page docs/how-to/read-state.md, on a location as its examples name it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.records import one_operator
from tests.snippets import run_page
from tests.unit.checkpoint.helpers import ManualClock

import statelog as sl
from statelog.checkpoint import CheckpointCoordinator
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.state import objects
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_groups import key_group_of
from statelog.state.kinds import StateKind
from statelog.state.schema.descriptors import (
    TIMERS_NAME,
    OperatorStateSchema,
    StateDescriptor,
)
from statelog.store import open_store

PAGE = "docs/how-to/read-state.md"
GROUPS = KeyGroupRange(0, 3)
SCHEMA = OperatorStateSchema(
    "totals",
    pa.schema([("customer", pa.string())]),
    (
        StateDescriptor("total", StateKind.VALUE, pa.schema([("total", pa.float64())])),
        StateDescriptor(
            "countries",
            StateKind.MAP,
            pa.schema([("orders", pa.int64())]),
            pa.schema([("country", pa.string())]),
        ),
        StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([])),
    ),
)


def write(location: Path, checkpoints: int) -> None:
    """Write so many checkpoints; in each the total of c42 grows by 10, and one key is new."""
    store = open_store(str(location), fsync=False)
    coordinator = CheckpointCoordinator(
        store,
        owner_id="writer",
        max_parallelism=len(GROUPS),
        options=sl.CheckpointOptions(retained=3),
        clock_ms=ManualClock(),
    )
    coordinator.claim()
    coordinator.restore()
    codec = OperatorCodec(SCHEMA)
    state = KeyedState(codec)
    state.catch_up(GROUPS, -1, (), lambda: (store, None))  # type: ignore[arg-type,return-value]
    cursor = objects.Cursor(-1)
    total = objects.ValueState(cursor, 0, codec.states[0].value, None)
    countries = objects.MapState(cursor, 1, codec.states[1].value, codec.states[1].user_key, None)
    with sl.FsStateChangelogStorage(str(location)) as storage:
        for _ in range(checkpoints):
            checkpoint_id = coordinator.next_checkpoint_id
            overlays: dict[int, Any] = {}
            for key in (("c42",), (f"c{100 + checkpoint_id}",)):
                group = key_group_of(key, SCHEMA.key_schema, len(GROUPS))
                cursor.enter(state.groups[group], overlays.setdefault(group, [{}, {}, {}]))
                cursor.key = key
                total.update((10.0 * (1 + checkpoint_id),))
                countries.put(("DE",), (checkpoint_id,))
            encoded = codec.encode(overlays)
            coordinator.trigger(checkpoint_id, [GROUPS])
            with storage.create_writer("totals", GROUPS) as writer:
                writer.append_meta(codec.metadata_change())
                writer.append_batch(encoded.key_groups, encoded.values)
                start = writer.initial_sequence_number()
                log = writer.persist(start, checkpoint_id).result().job_manager_owned
            coordinator.acknowledge(checkpoint_id, TaskStateSnapshot(GROUPS, log, None))
            record = one_operator(operator_id="totals", schema=SCHEMA.to_json())
            coordinator.complete(checkpoint_id, properties=record.to_properties())
            coordinator.clean_up()


def test_the_page_read_state_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "bucket" / "jobs" / "totals", 41)
    names: dict[str, object] = {}
    run_page(PAGE, tmp_path, names)
    said = capsys.readouterr().out
    assert "{'total': 420.0}\n{'total': 410.0}\n{'DE': {'orders': 41}}\n" in said
    assert "insert c141 None {'total': 420.0}" in said
    assert "update c42 {'total': 410.0} {'total': 420.0}" in said
    assert names["changes"].num_rows == 2  # type: ignore[attr-defined]
    assert names["totals"].num_rows == 42  # type: ignore[attr-defined]
    assert "41 41" not in said
    assert names["richest"].row(0)[1:] == ("c42", 420.0)  # type: ignore[attr-defined]
    assert "customers" in said
