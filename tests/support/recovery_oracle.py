"""
A world of workers that recover, and an oracle that shares no code with them.

The oracle keeps what each committed checkpoint changed, as plain dictionaries by checkpoint id, and
folds them by hand along the parents.  Workers catch up to any checkpoint of the line, in any order,
while loads fail midway, schemas evolve and local files are damaged; whatever `catch_up` brings
forward must be what the oracle says.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changelogs import direct_storage
from tests.support.locations.checkpoints import record_of
from tests.support.locations.histories import Tiny
from tests.support.simulated_runtime import SimulatedIds
from tests.support.state_objects import bind_all

from statelog.errors import StoreError
from statelog.format import arrow_limits
from statelog.format.buffers import checksum
from statelog.model import ChangeBatch, FileStateHandle, KeyGroupRange
from statelog.model.checkpoint import (
    ChangelogStateBackendHandle,
    CompletedCheckpoint,
    MaterializedHandle,
    live_log,
    live_snapshots,
)
from statelog.state.cache import CatchUp
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import StateKind
from statelog.state.objects import Cursor
from statelog.state.schema import OperatorStateSchema, StateDescriptor, evolve
from statelog.store import ObjectStore
from statelog.testing.faulty_store import FaultyStore

GROUPS = 6
KEYS = 18
ELEMENT = pa.schema([("x", pa.int64())])
USER_KEY = pa.schema([("u", pa.string())])
NAMES = ("value", "value_ttl", "list", "list_ttl", "map", "map_ttl", "timers")
TIMERS = "$timers"
BATCH_MS = 70_000
TTL_MS = 150_000
DUE = 4
"""Timers of the first half of the times that are drawn are due."""

Change = tuple[int, str, str, Any]
"""(key, variable, what is done, its argument)."""
Cells = dict[tuple[int, str], Any]
"""(key, variable) -> an int, a list, a dict or a set."""


# --- the oracle: dictionaries only ----------------------------------------------------------------


@dataclass
class Commit:
    """What a committed checkpoint changed, and what it continues."""

    parent: int
    overlay: dict[int, list[Change]]
    now_ms: int = 0


class Oracle:
    """Committed overlays by checkpoint id, folded by hand."""

    def __init__(self) -> None:
        self.commits: dict[int, Commit] = {}

    def line(self, checkpoint_id: int) -> list[int]:
        """Return the checkpoint and those it continues, the oldest first."""
        line: list[int] = []
        while checkpoint_id != -1:
            line.insert(0, checkpoint_id)
            checkpoint_id = self.commits[checkpoint_id].parent
        return line

    def cells(self, checkpoint_id: int, key_groups: range, now_ms: int = 0) -> Cells:
        """Return all cells of these key groups; empty and expired ones are left out."""
        cells: Cells = {}
        for ancestor in self.line(checkpoint_id):
            commit = self.commits[ancestor]
            for key, changes in commit.overlay.items():
                if key % GROUPS in key_groups:
                    for change in changes:
                        fold(cells, change, commit.now_ms)
        live = {where: live_cell(where[1], cell, now_ms) for where, cell in cells.items()}
        return without_empty(live)


def kind_of(name: str) -> str:
    return name.removesuffix("_ttl")


def without_empty(cells: Cells) -> Cells:
    return {where: cell for where, cell in cells.items() if cell not in (None, [], {}, set())}


def live_cell(name: str, cell: Any, now_ms: int) -> Any:
    """Return what a processor sees of a cell, whose entries are (when it expires, entry)."""
    match kind_of(name):
        case "value":
            return cell[1] if cell[0] > now_ms else None
        case "list":
            return [element for end, element in cell if end > now_ms]
        case "map":
            return {user_key: value for user_key, (end, value) in cell.items() if end > now_ms}
        case _:
            return cell


def fold(cells: Cells, change: Change, now_ms: int) -> None:
    key, name, what, argument = change
    where = key, name
    end = now_ms + TTL_MS if name.endswith("_ttl") else math.inf
    match kind_of(name), what:
        case _, "clear":
            cells.pop(where, None)
        case "value", _:
            cells[where] = end, argument
        case "list", "append":
            cells[where] = [*cells.get(where, []), (end, argument)]
        case "list", "put":
            cells[where] = [(end, element) for element in argument]
        case "map", "put":
            cells[where] = {**cells.get(where, {}), argument[0]: (end, argument[1])}
        case "map", "remove":
            cells[where] = {u: v for u, v in cells.get(where, {}).items() if u != argument}
        case "timers", "register":
            cells[where] = {*cells.get(where, set()), argument}
        case "timers", "delete":
            cells[where] = cells.get(where, set()) - {argument}


def draw_change(rng: random.Random, key: int, names: tuple[str, ...]) -> Change:
    name = rng.choice(names)
    if rng.random() < 0.12 and name != "timers":
        return key, name, "clear", None
    match kind_of(name):
        case "value":
            return key, name, "update", rng.randrange(1000)
        case "list":
            if rng.random() < 0.85:
                return key, name, "append", rng.randrange(1000)
            return key, name, "put", [rng.randrange(1000) for _ in range(rng.randrange(3))]
        case "map":
            if rng.random() < 0.7:
                return key, name, "put", (rng.choice("abc"), rng.randrange(1000))
            return key, name, "remove", rng.choice("abc")
        case _:
            return key, name, rng.choice(["register", "register", "delete"]), rng.randrange(9)


# --- what is tested -------------------------------------------------------------------------------


def schema_of(names: tuple[str, ...], fields: int = 1) -> OperatorStateSchema:
    """Return a schema whose values have this number of fields; the first one has the number."""
    value = pa.schema([("n" if not field else f"n{field}", pa.int64()) for field in range(fields)])

    def state(name: str) -> StateDescriptor:
        ttl_ms = TTL_MS if name.endswith("_ttl") else None
        match kind_of(name):
            case "value":
                return StateDescriptor(name, StateKind.VALUE, value, ttl_ms=ttl_ms)
            case "list":
                return StateDescriptor(name, StateKind.LIST, ELEMENT, ttl_ms=ttl_ms)
            case "map":
                return StateDescriptor(name, StateKind.MAP, value, USER_KEY, ttl_ms)
            case _:
                return StateDescriptor(TIMERS, StateKind.TIMER, pa.schema([]))

    return OperatorStateSchema("op", pa.schema([("k", pa.int64())]), tuple(map(state, names)))


class Objects:
    """The state objects of a processor, by variable."""

    def __init__(self, codec: OperatorCodec, names: tuple[str, ...], now_ms: int) -> None:
        self.cursor = Cursor(now_ms)
        self.others = (None,) * (len(codec.schema.states[0].value_schema) - 1)
        self.by_name = dict(zip(names, bind_all(codec, self.cursor).values(), strict=True))

    def apply(self, change: Change) -> None:
        _, name, what, argument = change
        state = self.by_name[name]
        match kind_of(name), what:
            case _, "clear":
                state.clear()
            case "value", _:
                state.update((argument, *self.others))
            case "list", "append":
                state.append((argument,))
            case "list", "put":
                state.put([(element,) for element in argument])
            case "map", "put":
                state.put((argument[0],), (argument[1], *self.others))
            case "map", "remove":
                state.remove((argument,))
            case _:
                getattr(state, what)(argument)

    def cell(self, name: str) -> Any:
        state = self.by_name[name]
        match kind_of(name):
            case "value":
                value = state.get()
                return None if value is None else value[0]
            case "list":
                return [element[0] for element in state.get()]
            case "map":
                return {user_key[0]: value[0] for user_key, value in state.iterator()}
            case _:
                return set(state.times())


class FlakyStore(FaultyStore):
    """Fails one read: the one after `reads_left` more."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_left: int | None = None
        self.failed = 0

    def get(self, path: str) -> memoryview:
        if self.reads_left is not None:
            self.reads_left -= 1
            if self.reads_left < 0:
                self.reads_left = None
                self.failed += 1
                raise StoreError(f"get {path}: connection reset", path=path)
        return super().get(path)


@dataclass(frozen=True)
class Mode:
    """How workers keep their state."""

    name: str
    names: tuple[str, ...] = NAMES
    columns: bool = False
    files: bool = False
    dict_rows: int = 0
    recent_bytes: int = 0
    replays_columns: bool = False
    array_bytes: int = arrow_limits.ARRAY_BYTES
    """How much one array holds where state is read or a snapshot is written."""


MODES = (
    Mode("dict"),
    Mode("columns", columns=True),
    Mode("files", columns=True, files=True),
    Mode("recent", columns=True, files=True, dict_rows=10, recent_bytes=3_000),
    Mode("small arrays", columns=True, replays_columns=True, array_bytes=45),
    Mode("replay", ("value", "value_ttl", "timers"), columns=True, replays_columns=True),
    Mode("light", ("value", "timers"), columns=True, files=True, dict_rows=5, replays_columns=True),
)


class World:
    """A history from a seed."""

    def __init__(self, seed: int, mode: Mode, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.mode, self.folder = mode, folder
        self.codec = OperatorCodec(schema_of(mode.names))
        self.fields = 1
        self.store = FlakyStore()
        self.ids = SimulatedIds(self.rng)
        self.storage = direct_storage(self.store, self.ids, inline_bytes=0)
        self.oracle = Oracle()
        self.checkpoints: dict[int, CompletedCheckpoint] = {}
        self.newest = -1
        self.next_id = 0
        self.workers = [self.worker() for _ in range(3)]
        seen = ("failed", "folded", "rolled back", "zombies", "looks", "evolved")
        self.seen = dict.fromkeys(seen, 0)

    def worker(self) -> Any:
        if not self.mode.columns:
            return KeyedState(self.codec)

        def local(layout: RowLayout) -> RunFiles | None:
            return RunFiles(self.folder, "here", layout, self.ids) if self.mode.files else None

        limits = Tiny(64 << 20, self.mode.dict_rows, self.mode.recent_bytes)
        return KeyedState(self.codec, limits, local)

    @property
    def now_ms(self) -> int:
        return self.next_id * BATCH_MS

    @contextlib.contextmanager
    def small_arrays(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrow_limits, "ARRAY_BYTES", self.mode.array_bytes)
            yield

    # --- a worker at a checkpoint ---------------------------------------------------------------

    def look(self, worker: Any, part: KeyGroupRange, base_id: int) -> None:
        """Bring a worker to a checkpoint, maybe after loads that failed, and ask the oracle."""
        while self.rng.random() < 0.3:
            self.store.reads_left = self.rng.randrange(6)
            try:
                self.catch_up(worker, part, base_id)
            except StoreError:
                self.seen["failed"] += 1
            self.store.reads_left = None
            if self.rng.random() < 0.3:  # another task comes before the next attempt of this one
                other = self.rng.choice([-1, *self.oracle.line(self.newest)])
                self.catch_up(worker, self.draw_range(), other)
        self.catch_up(worker, part, base_id)
        self.seen["looks"] += 1
        key_groups = range(part.start, part.end + 1)
        expected = self.oracle.cells(base_id, key_groups, self.now_ms)
        assert expected == self.cells(worker, part)

    def catch_up(self, worker: Any, part: KeyGroupRange, base_id: int) -> CatchUp:
        committed: list[str] = []
        if base_id >= 0:
            log = self.checkpoints[base_id].log
            committed = [
                handle.state_handle_id for handle in log if handle.checkpoint_id == base_id
            ]

        def load() -> tuple[ObjectStore, ChangelogStateBackendHandle]:
            return self.store, self.checkpoints[base_id].for_range(part)

        with self.small_arrays():
            done: CatchUp = worker.catch_up(part, base_id, committed, load)
        self.seen["folded"] += done.folded
        return done

    def cells(self, worker: Any, part: KeyGroupRange) -> Cells:
        """Return what a processor would see of the keys, and nothing else may be there."""
        keys: dict[int, list[Any]] = {}
        for key in range(KEYS):
            if key % GROUPS in part:
                keys.setdefault(key % GROUPS, []).append((key,))
        timers = self.codec.schema.state_id(TIMERS)
        with self.small_arrays():
            worker.prepare_due(part, timers, DUE)
            due = sorted(
                (key[0], time)
                for key_group in part
                for time, key in worker.groups[key_group].timers_due(timers, DUE)
            )
            worker.prepare(keys)
        objects = Objects(self.codec, self.mode.names, self.now_ms)
        cells: Cells = {}
        for key_group, members in keys.items():
            group = worker.groups[key_group]
            objects.cursor.enter(group, [{} for _ in self.codec.states])
            for key in members:
                objects.cursor.key = key
                for name in self.mode.names:
                    cells[key[0], name] = objects.cell(name)
            there = {key for table in group.tables for key in table}
            assert there <= set(members), f"key group {key_group} has keys of others"
        times = [
            (key, time) for key, name in cells if name == "timers" for time in cells[key, name]
        ]
        assert sorted(timer for timer in times if timer[1] <= DUE) == due
        return without_empty(cells)

    # --- attempts -------------------------------------------------------------------------------

    def attempt(
        self, worker: Any, part: KeyGroupRange, checkpoint_id: int, base_id: int, snapshot: bool
    ) -> tuple[Any, Any, dict[int, list[Change]]]:
        """Let a task do its work; return its log handle, its snapshot and what it changed."""
        self.look(worker, part, base_id)
        changes: dict[int, list[Change]] = {}
        for key in range(KEYS):
            if key % GROUPS in part and self.rng.random() < 0.4:
                changes[key] = [
                    draw_change(self.rng, key, self.mode.names)
                    for _ in range(self.rng.randrange(1, 4))
                ]
        overlays = self.overlays(worker, changes)
        handle = self.persist(part, checkpoint_id, self.codec.encode(overlays))
        if handle is not None:
            worker.stage(checkpoint_id, base_id, handle.state_handle_id, part, overlays)
        materialized = None
        if snapshot:
            with self.small_arrays():
                data = worker.snapshot(part, overlays, self.now_ms)
            path = f"taskowned/{self.ids.new_id()}"
            self.store.put(path, data)
            where = FileStateHandle(path, len(data), checksum([data]))
            materialized = MaterializedHandle(part, checkpoint_id, where)
            worker.end_snapshot(materialized)
        worker.expire_incrementally(part, self.now_ms)
        return handle, materialized, changes

    def overlays(self, worker: Any, changes: Mapping[int, list[Change]]) -> dict[int, Any]:
        by_group: dict[int, list[Any]] = {}
        for key in changes:
            by_group.setdefault(key % GROUPS, []).append((key,))
        worker.prepare(by_group)
        objects = Objects(self.codec, self.mode.names, self.now_ms)
        overlays: dict[int, Any] = {}
        for key_group, keys in by_group.items():
            overlay = overlays[key_group] = [{} for _ in self.codec.states]
            objects.cursor.enter(worker.groups[key_group], overlay)
            for key in keys:
                objects.cursor.key = key
                for change in changes[key[0]]:
                    objects.apply(change)
        return overlays

    def persist(self, part: KeyGroupRange, checkpoint_id: int, encoded: ChangeBatch) -> Any:
        """Write the changes in up to two files, so that a replay can fail between them."""
        if not len(encoded):
            return None
        middle = self.rng.randrange(len(encoded) + 1)
        with self.storage.create_writer("op", part) as writer:
            start = writer.initial_sequence_number()
            writer.append_meta(self.codec.metadata_change())
            for piece in (slice(None, middle), slice(middle, None)):
                if len(encoded.key_groups[piece]):
                    writer.append_batch(encoded.key_groups[piece], encoded.values[piece])
                    handle = writer.persist(start, checkpoint_id).result().job_manager_owned
        return handle

    def draw_range(self) -> KeyGroupRange:
        first, last = sorted(self.rng.choices(range(GROUPS), k=2))
        return KeyGroupRange(first, last)

    # --- a micro-batch --------------------------------------------------------------------------

    def ranges(self) -> Iterator[KeyGroupRange]:
        cuts = sorted(self.rng.sample(range(1, GROUPS), self.rng.randrange(3)))
        for start, stop in zip([0, *cuts], [*cuts, GROUPS], strict=True):
            yield KeyGroupRange(start, stop - 1)

    def micro_batch(self, *, snapshots_of: float = 0.15) -> None:
        """Every task has one or two attempts, anywhere; one of them counts, or the batch fails."""
        self.next_id += 1
        checkpoint_id = self.next_id - 1
        log, snapshots, overlay = [], [], {}
        for part in self.ranges():
            snapshot = self.rng.random() < snapshots_of
            attempts = [
                self.attempt(
                    self.rng.choice(self.workers), part, checkpoint_id, self.newest, snapshot
                )
                for _ in range(self.rng.choice([1, 1, 2]))
            ]
            handle, materialized, changes = self.rng.choice(attempts)
            log += [] if handle is None else [handle]
            snapshots += [] if materialized is None else [materialized]
            overlay.update(changes)
        if self.rng.random() < 0.15:
            return
        base = self.checkpoints.get(self.newest)
        live = live_snapshots((*(base.materialized if base else ()), *snapshots), GROUPS)
        log = live_log((*(base.log if base else ()), *log), live, GROUPS)
        self.checkpoints[checkpoint_id] = record_of(
            log, live, checkpoint_id=checkpoint_id, max_parallelism=GROUPS
        )
        self.oracle.commits[checkpoint_id] = Commit(self.newest, overlay, self.now_ms)
        self.newest = checkpoint_id

    def zombie(self) -> None:
        """Let a late task of an earlier micro-batch work once more; no batch commits it."""
        line = self.oracle.line(self.newest)
        if line:
            checkpoint_id = self.rng.choice(line)
            base_id = self.oracle.commits[checkpoint_id].parent
            worker = self.rng.choice(self.workers)
            self.attempt(worker, self.draw_range(), checkpoint_id, base_id, False)
            self.seen["zombies"] += 1

    def roll_back(self) -> None:
        """Go on from an earlier checkpoint; living workers are asked for it before they go on."""
        line = self.oracle.line(self.newest)
        if line:
            self.newest = self.rng.choice([-1, *line])
            self.seen["rolled back"] += 1
            for number, worker in enumerate(self.workers):
                if self.rng.random() < 0.3:
                    self.workers[number] = self.worker()
                else:
                    self.look(worker, KeyGroupRange(0, GROUPS - 1), self.newest)

    def evolve(self) -> None:
        """Start the query again with one more field in each value."""
        self.fields += 1
        declared = schema_of(self.mode.names, self.fields)
        self.codec = OperatorCodec(evolve(self.codec.schema, declared, now_ms=self.now_ms))
        self.workers = [self.worker() for _ in self.workers]
        self.seen["evolved"] += 1

    def damage_files(self) -> None:
        """Flip a bit of each file of the host, and let new workers find them."""
        for path in sorted(self.folder.rglob("*.run")):
            data = bytearray(path.read_bytes())
            data[self.rng.randrange(len(data))] ^= 0x40
            path.unlink()  # a mapped file must not change under its readers
            path.write_bytes(data)
        self.workers = [self.worker() for _ in self.workers]

    def run(self, batches: int = 12) -> None:
        for _ in range(batches):
            event = self.rng.random()
            if event < 0.08:
                self.workers[self.rng.randrange(3)] = self.worker()
            elif event < 0.22:
                self.roll_back()
            elif event < 0.4:
                self.zombie()
            elif event < 0.5:  # a reader of the past
                past = self.rng.choice([-1, *self.oracle.line(self.newest)])
                self.look(self.rng.choice(self.workers), self.draw_range(), past)
            elif event < 0.56:
                self.damage_files()
            elif event < 0.68:
                self.evolve()
            self.micro_batch()
        for worker in self.workers:
            self.look(worker, KeyGroupRange(0, GROUPS - 1), self.newest)
