"""
Dict tables and columns do the same, whatever happens.

A program is a list of micro-batches over a real log: calls of all kinds of state, tasks whose ranges
change from batch to batch, attempts that fail, snapshots, workers that die, go stale or roll back,
local files that are damaged.  Beside every columnar worker runs one with dict tables only.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.changelogs import direct_storage
from tests.support.locations.checkpoints import record_of
from tests.support.locations.histories import Tiny
from tests.support.simulated_runtime import SimulatedIds
from tests.support.state_objects import bind_all, content

from statelog.format import arrow_limits
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, KeyGroupRange, split_key_groups
from statelog.model.checkpoint import (
    ChangelogStateBackendHandle,
    CompletedCheckpoint,
    MaterializedHandle,
    live_log,
    live_snapshots,
)
from statelog.runtime.clock import RandomIds
from statelog.state.columnar import run_files
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import MemoryLimits
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_groups import key_group_of
from statelog.state.kinds import StateKind
from statelog.state.objects import Cursor, ListState, MapState, Timers
from statelog.state.schema import OperatorStateSchema, StateDescriptor, evolve
from statelog.store import ObjectStore, open_store

pytestmark = pytest.mark.campaign

GROUPS = 10
KEYS = 24
UNIT = 10_000
"""A batch takes several; an expired entry is kept for six of them."""
TTL_MS = 15 * UNIT
VALUE = pa.schema([("n", pa.int64()), ("text", pa.string())])
ELEMENT = pa.schema([("x", pa.float64())])
USER_KEY = pa.schema([("u", pa.string())])


def schema_of(*, growing: bool, value: pa.Schema = VALUE) -> OperatorStateSchema:
    """With *growing*, lists and maps too, which are not replayed in columns."""
    states = [
        StateDescriptor("value", StateKind.VALUE, value),
        StateDescriptor("value_ttl", StateKind.VALUE, value, None, TTL_MS),
    ]
    if growing:
        states += [
            StateDescriptor("list", StateKind.LIST, ELEMENT),
            StateDescriptor("list_ttl", StateKind.LIST, ELEMENT, None, TTL_MS),
            StateDescriptor("map", StateKind.MAP, value, USER_KEY),
            StateDescriptor("map_ttl", StateKind.MAP, value, USER_KEY, TTL_MS),
        ]
    states.append(StateDescriptor("$timers", StateKind.TIMER, pa.schema([])))
    key = pa.schema([("k", pa.int64()), ("name", pa.string())])
    return OperatorStateSchema("op", key, tuple(states))


def key_of(number: int) -> tuple[Any, ...]:
    return number, None if number % 5 == 0 else "x" * (number % 40)


class StateObjects:
    """State objects on one cursor, and what they show."""

    def __init__(self, codec: OperatorCodec, now: int) -> None:
        self.more = len(codec.states[0].value.schema) - len(VALUE)
        self.cursor = Cursor(now)
        self.by_name = bind_all(codec, self.cursor)

    def seen(self) -> dict[str, Any]:
        values = {name: content(state) for name, state in self.by_name.items()}
        return {
            # The order of the entries of a map may differ.
            name: dict(value) if isinstance(self.by_name[name], MapState) else value
            for name, value in values.items()
        }

    def change(self, rng: random.Random) -> None:
        state = rng.choice(list(self.by_name.values()))
        value = (rng.randrange(-9, 9), rng.choice(["", "text", None]))
        value += tuple(rng.choice([None, 7]) for _ in range(self.more))
        if isinstance(state, Timers):
            (state.register if rng.random() < 0.7 else state.delete)(UNIT * rng.randrange(100))
        elif rng.random() < 0.2:
            state.clear()
        elif isinstance(state, MapState):
            user_key = (rng.choice("abc"),)
            if rng.random() < 0.3:
                state.remove(user_key)
            else:
                state.put(user_key, value)
        elif isinstance(state, ListState):
            elements = [(rng.random(),) for _ in range(rng.randrange(3))]
            (state.append_all if rng.random() < 0.7 else state.put)(elements)
        else:
            state.update(value)


@dataclass
class World:
    """A location, its commits, and workers in pairs: columns and dict tables."""

    folder: Path
    schema: OperatorStateSchema
    rng: random.Random
    limits: MemoryLimits
    files: bool = True
    array_bytes: int = arrow_limits.ARRAY_BYTES
    """How much one array holds where state is read or a snapshot is written."""
    store: ObjectStore = field(default_factory=lambda: open_store("memory:///"))
    newest: CompletedCheckpoint | None = None
    history: list[CompletedCheckpoint] = field(default_factory=list)
    next_id: int = 0
    local: int = 0
    compacted: int = 0

    def __post_init__(self) -> None:
        self.codec = OperatorCodec(self.schema)
        self.ids = SimulatedIds(self.rng)
        self.storage = direct_storage(self.store, self.ids)
        self.workers = [self.worker() for _ in range(2)]

    def evolve(self) -> None:
        """Start the query again with one more field in each value."""
        more = [*self.schema.states[0].value_schema, pa.field(f"f{self.next_id}", pa.int64())]
        wanted = schema_of(growing=len(self.schema.states) > 3, value=pa.schema(more))
        self.schema = evolve(self.schema, wanted, now_ms=self.next_id * 7 * UNIT)
        self.codec = OperatorCodec(self.schema)
        self.workers = [self.worker() for _ in range(2)]

    def worker(self) -> tuple[KeyedState, KeyedState]:
        def runs(layout: RowLayout) -> RunFiles | None:
            return RunFiles(self.folder, "here", layout, self.ids) if self.files else None

        return KeyedState(self.codec, self.limits, runs), KeyedState(self.codec)

    def batch(self, now: int, *, tasks: int, snapshot: bool, fails: bool) -> None:
        """One micro-batch; *fails* after its tasks did their work."""
        checkpoint_id = self.next_id
        self.next_id += 1
        log, snapshots = [], []
        for part in split_key_groups(GROUPS, tasks):
            pair = self.rng.choice(self.workers)
            handle, materialized = self.task(pair, part, checkpoint_id, now, snapshot)
            log += [] if handle is None else [handle]
            snapshots += [] if materialized is None else [materialized]
        if fails:
            return
        base = self.newest
        materialized = live_snapshots((*(base.materialized if base else ()), *snapshots), GROUPS)
        log = live_log((*(base.log if base else ()), *log), materialized, GROUPS)
        self.newest = record_of(
            log, materialized, checkpoint_id=checkpoint_id, max_parallelism=GROUPS
        )
        self.history.append(self.newest)

    def catch_up(self, pair: tuple[KeyedState, KeyedState], part: KeyGroupRange) -> None:
        base = self.newest
        base_id = -1 if base is None else base.checkpoint_id
        committed = (
            ()
            if base is None
            else [x.state_handle_id for x in base.log if x.checkpoint_id == base_id]
        )

        def load() -> tuple[ObjectStore, ChangelogStateBackendHandle]:
            assert base is not None
            return self.store, base.for_range(part)

        columnar, dicts = pair
        with self.small_arrays():
            done = columnar.catch_up(part, base_id, committed, load)
        self.local += done.local
        self.compacted += done.compacted
        dicts.catch_up(part, base_id, committed, load)

    @contextlib.contextmanager
    def small_arrays(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrow_limits, "ARRAY_BYTES", self.array_bytes)
            yield

    def task(
        self,
        pair: tuple[KeyedState, KeyedState],
        part: KeyGroupRange,
        checkpoint_id: int,
        now: int,
        snapshot: bool,
    ) -> Any:
        self.catch_up(pair, part)
        columnar, _ = pair
        touched: dict[int, list[Any]] = {}
        for number in self.rng.sample(range(KEYS), self.rng.randrange(KEYS)):
            key = key_of(number)
            key_group = key_group_of(key, self.schema.key_schema, GROUPS)
            if key_group in part:
                touched.setdefault(key_group, []).append(key)
        with self.small_arrays():
            columnar.prepare(touched)
        seed = self.rng.random()
        overlays = [self.process(state, part, touched, now, random.Random(seed)) for state in pair]
        changes, other = map(self.codec.encode, overlays)
        assert changes.key_groups.tolist() == other.key_groups.tolist()
        assert changes.values.equals(other.values)
        base_id = -1 if self.newest is None else self.newest.checkpoint_id
        handle = None
        if len(changes):
            with self.storage.create_writer("op", part) as writer:
                writer.append_meta(self.codec.metadata_change())
                writer.append_batch(changes.key_groups, changes.values)
                start = writer.initial_sequence_number()
                handle = writer.persist(start, checkpoint_id).result().job_manager_owned
            for state, overlay in zip(pair, overlays, strict=True):
                state.stage(checkpoint_id, base_id, handle.state_handle_id, part, overlay)
        materialized = None
        if snapshot:
            with self.small_arrays():
                data = columnar.snapshot(part, overlays[0], now)
            path = f"taskowned/{self.ids.new_id()}"
            self.store.put(path, data)
            where = FileStateHandle(path, len(data), checksum([data]))
            materialized = MaterializedHandle(part, checkpoint_id, where)
            columnar.end_snapshot(materialized)
        for state in pair:
            state.expire_incrementally(part, now)
        return handle, materialized

    def process(
        self,
        state: KeyedState,
        part: KeyGroupRange,
        touched: dict[int, list[Any]],
        now: int,
        rng: random.Random,
    ) -> dict[int, Any]:
        """Change keys, then those that have timers due; return the overlays."""
        objects = StateObjects(self.codec, now)
        overlays: dict[int, Any] = {}

        def change(key_group: int, key: Any) -> None:
            overlay = overlays.setdefault(key_group, [{} for _ in self.codec.states])
            objects.cursor.enter(state.groups[key_group], overlay)
            objects.cursor.key = key
            for _ in range(rng.randrange(3)):
                objects.change(rng)

        for key_group, keys in touched.items():
            for key in keys:
                change(key_group, key)
        timers = self.schema.state_id("$timers")
        state.prepare_due(part, timers, now)
        due = sorted(
            (time, key_group, key[0], key)
            for key_group in part
            for time, key in state.groups[key_group].timers_due(timers, now)
        )
        for time, key_group, _, key in due:
            change(key_group, key)
            objects.by_name["$timers"].delete(time)
        return overlays

    def check(self, now: int) -> None:
        """Both of each pair show the same of every key, and count the same."""
        part = KeyGroupRange(0, GROUPS - 1)
        for pair in self.workers:
            self.catch_up(pair, part)
            columnar, _ = pair
            keys: dict[int, list[Any]] = {}
            for number in range(KEYS):
                key = key_of(number)
                keys.setdefault(key_group_of(key, self.schema.key_schema, GROUPS), []).append(key)
            columnar.prepare(keys)
            values = []
            for state in pair:
                objects = StateObjects(self.codec, now)
                seen = {}
                for key_group, members in keys.items():
                    overlay = [{} for _ in self.codec.states]
                    objects.cursor.enter(state.groups[key_group], overlay)
                    for key in members:
                        objects.cursor.key = key
                        seen[key] = objects.seen()
                values.append(seen)
            assert values[0] == values[1]


def run(world: World, batches: int) -> None:
    rng = world.rng
    for number in range(batches):
        now = number * 7 * UNIT
        event = rng.random()
        if event < 0.15:
            world.workers[rng.randrange(2)] = world.worker()
        elif event < 0.2 and world.history:
            world.newest = rng.choice(world.history[-3:])
            world.workers = [world.worker() for _ in range(2)]  # a new epoch
        elif event < 0.25:
            for path in world.folder.rglob("*.run"):
                data = bytearray(path.read_bytes())
                data[rng.randrange(len(data))] ^= 0x40
                path.unlink()  # a mapped file must not change under its readers
                path.write_bytes(data)
        elif event < 0.32:
            world.evolve()
        world.batch(
            now, tasks=rng.randint(1, 3), snapshot=rng.random() < 0.2, fails=rng.random() < 0.2
        )
        if rng.random() < 0.3:
            world.check(now)
    world.check(batches * 7 * UNIT)


@contextlib.contextmanager
def replay_in_columns(wanted: bool) -> Iterator[None]:
    """Let the shortest log be long enough for the columnar replay, or none."""
    size = -1 if wanted else 1 << 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statelog.state.replay._COLUMNAR_REPLAY_BYTES", size)
        patch.setattr("statelog.state.replay._COLUMNAR_RESTORE_BYTES", size)
        yield


@given(
    seed=st.integers(0, 2**32),
    growing=st.booleans(),
    files=st.booleans(),
    dict_rows=st.sampled_from([0, 10, 50_000]),
    recent=st.sampled_from([0, 3_000, 1 << 40]),
    in_columns=st.booleans(),
    array_bytes=st.sampled_from([arrow_limits.ARRAY_BYTES, 120, 45]),
)
@settings(max_examples=30, deadline=None)
def test_columns_and_dict_tables_do_the_same(
    tmp_path_factory, seed, growing, files, dict_rows, recent, in_columns, array_bytes
):
    folder = tmp_path_factory.mktemp("local")
    folder.chmod(0o700)
    limits = Tiny(64 << 20, dict_rows, recent)
    schema = schema_of(growing=growing)
    world = World(folder, schema, random.Random(seed), limits, files, array_bytes)
    with replay_in_columns(in_columns):
        run(world, 12)


def test_keys_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    real = RowLayout.hashes
    monkeypatch.setattr(RowLayout, "hashes", lambda self, columns: real(self, columns) & 1)
    tmp_path.chmod(0o700)
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir(mode=0o700)
        limits = Tiny(64 << 20, 0)
        world = World(folder, schema_of(growing=False), random.Random(seed), limits)
        with replay_in_columns(True):
            run(world, 10)


def test_a_new_worker_finds_the_files_of_an_earlier_one(tmp_path):
    tmp_path.chmod(0o700)
    limits = Tiny(64 << 20, 0)
    world = World(tmp_path, schema_of(growing=True), random.Random(5), limits)
    for number in range(6):
        world.batch(number, tasks=2, snapshot=False, fails=False)
    assert world.compacted
    world.workers = [world.worker()]
    world.local = 0
    world.check(6)
    assert world.local == GROUPS
    # The files of a snapshot stand in for it, as soon as its checkpoint is there.
    world.batch(7, tasks=1, snapshot=True, fails=False)
    world.workers = [world.worker()]
    world.local = 0
    world.check(7)
    assert world.local == GROUPS


def test_files_of_other_hashes_are_unused(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    world = World(tmp_path, schema_of(growing=True), random.Random(5), Tiny(64 << 20, 0))
    with monkeypatch.context() as earlier:
        earlier.setattr(run_files, "_HASHES", b"1")
        world.workers = [world.worker()]
        for number in range(6):
            world.batch(number, tasks=2, snapshot=False, fails=False)
    assert list(tmp_path.rglob("*.run"))
    world.workers, world.local = [world.worker()], 0
    world.check(6)
    assert world.local == 0


def test_files_of_rolled_back_checkpoints_are_unused(tmp_path):
    tmp_path.chmod(0o700)
    world = World(tmp_path, schema_of(growing=True), random.Random(6), Tiny(64 << 20, 0))
    world.workers = [world.worker()]
    for number in range(3):
        world.batch(number, tasks=1, snapshot=False, fails=False)
    older = world.newest
    for number in range(3, 6):
        world.batch(number, tasks=1, snapshot=True, fails=False)
    assert list(tmp_path.rglob("*.run"))
    world.newest, world.workers, world.local = older, [world.worker()], 0
    world.check(5)
    assert world.local == 0
    world.batch(6, tasks=1, snapshot=False, fails=False)  # goes on beside what was there
    world.workers = [world.worker()]
    world.check(6)


def test_a_full_disk_costs_memory_only(tmp_path, monkeypatch, caplog):
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    tmp_path.chmod(0o700)
    monkeypatch.setattr(run_files.RunFiles, "begin", refuse)
    world = World(tmp_path, schema_of(growing=True), random.Random(8), Tiny(64 << 20, 0))
    run(world, 8)
    assert world.compacted
    assert "No space left on device" in caplog.text
    assert list(tmp_path.rglob("*.run")) == []


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    layout = RowLayout(OperatorCodec(schema_of(growing=False)))
    with pytest.raises(PermissionError, match="private"):
        RunFiles(tmp_path, "here", layout, RandomIds())
