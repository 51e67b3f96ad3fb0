"""
What was committed can be read again by any number of tasks, also where one array cannot hold it.

A block has four key groups with five keys of 100 bytes each.  The small limits are less than a block, less
than a key group, and just more than a key.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.changelogs import direct_storage
from tests.support.locations.checkpoints import record_of
from tests.support.locations.histories import Tiny

from statelog.errors import CapacityError
from statelog.extensions.columns.slots import ColumnState, Keys, SlotState, snapshot_of
from statelog.format import arrow_limits
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, KeyGroupRange, split_key_groups
from statelog.model.checkpoint import CompletedCheckpoint, MaterializedHandle
from statelog.runtime.clock import RandomIds
from statelog.state.columnar.run_files import RunFiles
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import read_snapshot
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import StateKind
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor
from statelog.store import open_store

GROUPS = 8
PER_GROUP = 5
EVERY = KeyGroupRange(0, GROUPS - 1)
TINY = Tiny(64 << 20, pending=3_000)
LIMITS = {"a block": 1900, "a key group": 490, "a key": 110}
KEY = pa.schema([("k", pa.int64())])
SCHEMA = OperatorStateSchema(
    "op",
    KEY,
    (
        StateDescriptor("text", StateKind.VALUE, pa.schema([("s", pa.string())])),
        StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([])),
    ),
)

Texts = dict[int, str]
"""The state by key."""


def text_of(key: int, version: int) -> str:
    return f"{key}/{version}".ljust(100, "x")


@contextmanager
def arrays_of(most_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_limits, "ARRAY_BYTES", most_bytes)
        yield


class Location:
    """Two checkpoints: the first in snapshots, of which the second changed every other key in the log."""

    def __init__(self) -> None:
        self.codec = OperatorCodec(SCHEMA)
        self.store = open_store("memory:///")
        self.storage = direct_storage(self.store, RandomIds())
        self.texts: Texts = {}

    def checkpoint(self, most_bytes: int, *, snapshot: bool) -> CompletedCheckpoint:
        """Commit both; the first is in the log too, unless it is in a snapshot."""
        state, log = KeyedState(self.codec), []
        snapshots: list[MaterializedHandle] = []
        for version in (0, 1):
            overlays: dict[int, Any] = {group: [{}, {}] for group in EVERY}
            for key in range(0, GROUPS * PER_GROUP, 1 + version):
                self.texts[key] = text_of(key, version)
                overlays[key % GROUPS][0][key,] = (self.texts[key],)
            if version or not snapshot:
                log.append(self._logged(overlays, version))
            else:
                state.catch_up(EVERY, -1, (), lambda: None)
                with arrays_of(most_bytes):
                    data = state.snapshot(EVERY, overlays, -1)
                self.store.put("taskowned/snapshot", data)
                where = FileStateHandle("taskowned/snapshot", len(data), checksum([data]))
                snapshots.append(MaterializedHandle(EVERY, version, where))
        return record_of(log, snapshots, checkpoint_id=1, max_parallelism=GROUPS)

    def _logged(self, overlays: dict[int, Any], checkpoint_id: int) -> Any:
        changes = self.codec.encode(overlays)
        with self.storage.create_writer("op", EVERY) as writer:
            writer.append_meta(self.codec.metadata_change())
            writer.append_batch(changes.key_groups, changes.values)
            start = writer.initial_sequence_number()
            return writer.persist(start, checkpoint_id).result().job_manager_owned


def read_keyed(state: KeyedState, part: KeyGroupRange) -> Texts:
    keys = {
        group: [(key,) for key in range(GROUPS * PER_GROUP) if key % GROUPS == group]
        for group in part
    }
    state.prepare(keys)
    pairs = [(group, key) for group, members in keys.items() for key in members]
    return {key[0]: state.groups[group].tables[0][key][0] for group, key in pairs}


def read_slots(state: SlotState, part: KeyGroupRange) -> Texts:
    texts: Texts = {}
    for group in part:
        members = [key for key in range(GROUPS * PER_GROUP) if key % GROUPS == group]
        none = np.zeros(len(members), np.int64)
        groups = np.full(len(members), group, np.int32)
        keys = Keys(KEY, [pa.array(members, pa.int64())], groups, none, none)
        for key in range(len(members)):  # one at a time: together they may be too large
            chosen = np.arange(len(members)) == key
            (value,) = ColumnState(state.table, 0).get(keys.take(chosen)).to_pylist()
            texts[members[key]] = value["s"]
    return texts


def workers(folder: Path) -> dict[str, tuple[Callable[[OperatorCodec], Any], Callable[..., Texts]]]:
    folder.chmod(0o700)

    def files(layout: Any) -> RunFiles:
        return RunFiles(folder, "here", layout, RandomIds())

    return {
        "objects": (KeyedState, read_keyed),
        "columns": (lambda codec: KeyedState(codec, TINY), read_keyed),
        "files": (lambda codec: KeyedState(codec, TINY, files), read_keyed),
        "slots": (SlotState, read_slots),
        "cold slots": (lambda codec: SlotState(codec, TINY), read_slots),
        "slots in files": (lambda codec: SlotState(codec, TINY, files), read_slots),
    }


@pytest.mark.parametrize(
    "kind", ["objects", "columns", "files", "slots", "cold slots", "slots in files"]
)
@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "log"])
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_any_number_of_tasks_reads_what_was_committed(limit, snapshot, kind, tmp_path, monkeypatch):
    monkeypatch.setattr("statelog.state.replay._COLUMNAR_RESTORE_BYTES", -1)
    location = Location()
    committed = location.checkpoint(limit, snapshot=snapshot)
    make, read = workers(tmp_path)[kind]
    for tasks in (1, 3, GROUPS):
        state = make(location.codec)
        for part in split_key_groups(GROUPS, tasks):
            with arrays_of(limit):
                load = lambda part=part: (location.store, committed.for_range(part))  # noqa: E731
                state.catch_up(part, 1, (), load)
                expected = {k: text for k, text in location.texts.items() if k % GROUPS in part}
                assert expected == read(state, part)
                # And a snapshot of it can be read, as it was written.
                again = (
                    snapshot_of(state.table, part, -1)
                    if isinstance(state, SlotState)
                    else state.snapshot(part, {}, -1)
                )
                tables = read_snapshot(location.codec, again, part)
            assert expected == {
                key[0]: cell[0] for group in part for key, cell in tables[group][0].items()
            }


def test_the_error_of_changes_names_the_variable_and_the_setting():
    codec = OperatorCodec(SCHEMA)
    overlays = {0: [{(key,): (text_of(key, 0),) for key in range(20)}, {}]}
    with (
        arrays_of(1900),
        pytest.raises(CapacityError, match=r"'text', field 's'.*GiB.*`tasks`"),
    ):
        codec.encode(overlays)
    with (
        arrays_of(2050),  # each column fits, their change does not
        pytest.raises(CapacityError, match=r"state 'text', changes of one key group.*GiB.*`tasks`"),
    ):
        codec.encode(overlays)


def test_changes_of_columns_name_the_variable_and_the_setting():
    state = SlotState(OperatorCodec(SCHEMA))
    none = np.zeros(20, np.int64)
    keys = Keys(KEY, [pa.array(range(20), pa.int64())], np.zeros(20, np.int32), none, none)
    values = {"s": pa.array([text_of(key, 0) for key in range(20)])}
    with arrays_of(1900), pytest.raises(CapacityError, match="state 'text', field 's'"):
        ColumnState(state.table, 0).put(keys, values)
    ColumnState(state.table, 0).put(keys, values)
    with (
        arrays_of(1900),
        pytest.raises(CapacityError, match=r"'text', field 'value.s'.*`tasks`"),
    ):
        state.table.changes()


def test_a_key_that_one_array_cannot_hold_names_the_variable_in_a_snapshot():
    listed = OperatorStateSchema(
        "op", KEY, (StateDescriptor("list", StateKind.LIST, pa.schema([("s", pa.string())])),)
    )
    state = KeyedState(OperatorCodec(listed))
    state.catch_up(KeyGroupRange(0, 0), -1, (), lambda: None)
    state.groups[0].tables[0][(1,)] = [(text_of(index, 0),) for index in range(5)]
    with arrays_of(490), pytest.raises(CapacityError, match="state 'list', field 's'"):
        state.snapshot(KeyGroupRange(0, 0), {}, -1)
