"""Recovery of state in slots, against the oracle of `recovery_oracle` that shares no code with it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.recovery_oracle import GROUPS, KEYS, Cells, Change, Mode, World, draw_change

from statelog.extensions.columns.slots import (
    ColumnState,
    ColumnTimers,
    Keys,
    SlotState,
    slot_table,
    snapshot_of,
)
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, KeyGroupRange
from statelog.model.checkpoint import MaterializedHandle
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.heap import MemoryLimits

pytestmark = pytest.mark.campaign

SEEDS = int(os.environ.get("STATELOG_RECOVERY_SEEDS", "10"))
CAMPAIGN = 300
MODES = (
    Mode("slots", ("value", "timers")),
    Mode("cold", ("value", "timers"), columns=True),
    Mode("files", ("value", "timers"), columns=True, files=True),
)


@dataclass(frozen=True)
class Tiny(MemoryLimits):
    """Limits under which nearly all keys are cold."""

    @property
    def recent_bytes(self) -> int:
        return 40_000


def keys_of(numbers: list[int]) -> Keys:
    """Return keys as the input of a task makes them."""
    none = np.zeros(len(numbers), np.int64)
    groups = np.array([number % GROUPS for number in numbers], np.int32)
    schema = pa.schema([("k", pa.int64())])
    return Keys(schema, [pa.array(numbers, pa.int64())], groups, none, none)


class SlotWorld(World):
    """The same histories, over `SlotState`."""

    def worker(self) -> Any:
        if not self.mode.columns:
            return SlotState(self.codec)

        def files(layout: RowLayout) -> RunFiles | None:
            return RunFiles(self.folder, "here", layout, self.ids) if self.mode.files else None

        return SlotState(self.codec, Tiny(64 << 20), files)

    def cells(self, worker: Any, part: KeyGroupRange) -> Cells:
        members = [key for key in range(KEYS) if key % GROUPS in part]
        keys = keys_of(members)
        values, timers = ColumnState(worker.table, 0), ColumnTimers(worker.table, 1)
        cells: Cells = {}
        exists = values.exists(keys).tolist()
        for key, there, value in zip(members, exists, values.get(keys).to_pylist(), strict=True):
            if there:
                cells[key, "value"] = value["n"]
        for key, times in zip(members, timers.get(keys).to_pylist(), strict=True):
            if times:
                assert times == sorted(set(times))
                cells[key, "timers"] = set(times)
        counts = np.zeros(GROUPS, np.int64)
        for key, _ in cells:
            counts[key % GROUPS] += 1
        entries = worker.entry_counts(part)
        first = worker.table.next_due_ms(part, 1, -1)
        firsts = [min(cells[key, "timers"]) for key in members if (key, "timers") in cells]
        expected_first = min(firsts, default=slot_table.NEVER_MS)
        if self.mode.columns:
            # A cold key counts once; a timer of a row that was moved is too early.
            assert [bool(cell) for cell in entries] >= [bool(cell) for cell in counts[list(part)]]
            assert first <= expected_first
        else:
            assert entries == counts[list(part)].tolist()
            assert first == expected_first
        return cells

    def attempt(
        self, worker: Any, part: KeyGroupRange, checkpoint_id: int, base_id: int, snapshot: bool
    ) -> tuple[Any, Any, dict[int, list[Change]]]:
        self.look(worker, part, base_id)
        changes: dict[int, list[Change]] = {}
        for key in range(KEYS):
            if key % GROUPS in part and self.rng.random() < 0.4:
                changes[key] = [
                    draw_change(self.rng, key, self.mode.names)
                    for _ in range(self.rng.randrange(1, 4))
                ]
        write(worker, changes, self.codec.schema.states[0].value_schema.names)
        handle = self.persist(part, checkpoint_id, worker.table.changes())
        if handle is not None:
            worker.stage(checkpoint_id, base_id, handle.state_handle_id, part)
        materialized = None
        if snapshot:
            data = snapshot_of(worker.table, part, 0)
            path = f"taskowned/{self.ids.new_id()}"
            self.store.put(path, data)
            where = FileStateHandle(path, len(data), checksum([data]))
            materialized = MaterializedHandle(part, checkpoint_id, where)
        return handle, materialized, changes


def write(worker: SlotState, changes: Mapping[int, list[Change]], fields: list[str]) -> None:
    """Write the changes of all keys, the first of each together, then the second, ..."""
    values, timers = ColumnState(worker.table, 0), ColumnTimers(worker.table, 1)
    for step in range(3):
        writes: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        for key, changes_of_key in changes.items():
            if step < len(changes_of_key):
                _, name, what, argument = changes_of_key[step]
                writes.setdefault((name, what), []).append((key, argument))
        for (name, what), pairs in writes.items():
            keys = keys_of([key for key, _ in pairs])
            arguments = [argument for _, argument in pairs]
            if what == "clear":
                values.clear(keys)
            elif name == "value":
                values.put(keys, dict.fromkeys(fields, pa.array(arguments, pa.int64())))
            else:
                getattr(timers, what)(keys, np.array(arguments))


def history(seed: int, mode: Mode, folder: Path) -> SlotWorld:
    world = SlotWorld(seed, mode, folder / str(seed))
    world.folder.mkdir(mode=0o700)
    try:
        world.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return world


@pytest.mark.parametrize("tidies", [False, True], ids=["", "tidies"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_worker_has_what_was_committed(
    mode: Mode, tidies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tidies:  # drop old cells and slots at every chance
        monkeypatch.setattr("statelog.extensions.columns.slots.slot_table._SPARE_SLOTS", -1_000_000)
        monkeypatch.setattr("statelog.extensions.columns.slots.cell_column._SPARE_ROWS", -1_000_000)
    seen: dict[str, int] = {}
    for seed in range(SEEDS):
        for name, number in history(seed, mode, tmp_path).seen.items():
            seen[name] = seen.get(name, 0) + number
    assert min(seen.values()) >= SEEDS, f"the histories are about too little: {seen}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_campaign_of_recoveries_holds(mode: Mode, tmp_path: Path) -> None:
    for seed in range(1000, 1000 + CAMPAIGN):
        history(seed, mode, tmp_path)
