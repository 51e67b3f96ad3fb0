"""
Random histories of one operator, and a model of plain lists that says what its state is.

Each micro-batch has other tasks, some of which write a snapshot of a part of their key groups.  In
between the schema changes: fields, times to live, variables that are dropped and made anew.  The
model keeps rows, carried over by name, and shares no code with what is tested.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.changelogs import direct_storage
from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import ManualClock
from tests.support.simulated_runtime import SimulatedIds
from tests.support.state_objects import bind

from statelog.checkpoint import CheckpointCoordinator, CheckpointOptions
from statelog.checkpoint.batch_record import BatchRecord
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, KeyGroupRange, TaskStateSnapshot
from statelog.model.checkpoint import CompletedCheckpoint, MaterializedHandle
from statelog.runtime.clock import IdSource
from statelog.state import objects
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import MemoryLimits
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_groups import key_group_of
from statelog.state.kinds import StateKind
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor, evolve
from statelog.store import PATHS, ObjectStore, open_store

GROUPS = 6
KEYS = 15
TTL_MS = 100_000
START_MS = 1_700_000_000_000
KEY = pa.schema([("k", pa.int64()), ("name", pa.string())])
FIELDS = {"a": pa.int64(), "b": pa.string(), "c": pa.list_(pa.int64())}
NAMES = {"total": StateKind.VALUE, "recent": StateKind.LIST, "counts": StateKind.MAP}

Row = tuple[Any, ...]
"""Position, map key or time of a row, its value by field, and its expiry; None where it has none."""
Rows = dict[int, list[Row]]
"""The rows of one variable by key, in order."""


def key_of(number: int) -> tuple[int, str | None]:
    return number, None if number % 4 == 0 else f"key {number}"


GROUP_OF = {number: key_group_of(key_of(number), KEY, GROUPS) for number in range(KEYS)}


def group_of(number: int) -> int:
    """Return the key group of a key; that of Spark, by which single keys are found."""
    return GROUP_OF[number]


@dataclass
class Entry:
    """One value, element or map entry; `place` is a map key, or None."""

    value: dict[str, Any]
    expires_at_ms: int | None
    place: Any = None


@dataclass
class Model:
    """Entries by variable and key in the order of a reader; timers by key."""

    schema: OperatorStateSchema
    entries: dict[str, dict[int, list[Entry]]] = field(default_factory=dict)
    timers: dict[int, set[int]] = field(default_factory=dict)

    def rows(self, name: str, now_ms: int | None) -> Rows:
        """Return the rows of a variable that are not expired at *now_ms*; None for all."""
        if name == TIMERS_NAME:
            timers = {key: sorted(times) for key, times in self.timers.items() if times}
            return {key: [(time, None, None) for time in times] for key, times in timers.items()}
        rows: Rows = {}
        for key, entries in self.entries.get(name, {}).items():
            live = [
                entry
                for entry in entries
                if now_ms is None or entry.expires_at_ms is None or entry.expires_at_ms > now_ms
            ]
            is_list = NAMES[name] is StateKind.LIST
            for position, entry in enumerate(live):
                place = position if is_list else entry.place
                rows.setdefault(key, []).append((place, entry.value, entry.expires_at_ms))
        return rows

    def evolve(self, new: OperatorStateSchema, now_ms: int) -> None:
        """Carry the entries over to the schema that a restart continues with."""
        olds = {state.identity: state for state in self.schema.states if not state.dropped}
        news = {state.identity: state for state in new.states if not state.dropped}
        for identity, old in olds.items():
            if identity not in news:
                self.entries.pop(old.name, None)
                continue
            after = news[identity]
            for key, entries in self.entries.get(old.name, {}).items():
                live = []
                for entry in entries:
                    entry.value = {name: entry.value.get(name) for name in after.value_schema.names}
                    if old.ttl_ms is None and after.ttl_ms is not None:
                        entry.expires_at_ms = now_ms + after.ttl_ms
                    if old.ttl_ms is not None and after.ttl_ms is None:
                        if (entry.expires_at_ms or 0) <= now_ms:
                            continue
                        entry.expires_at_ms = None
                    live.append(entry)
                self.entries[old.name][key] = live
        self.schema = new


def local(folder: Path | str) -> ObjectStore:
    """Return a store in a folder that does not wait for the disk."""
    return open_store(str(folder), storage_options={"fsync": False})


class History:
    """A location that micro-batches write to."""

    def __init__(
        self, seed: int | str, store: ObjectStore, retained: int = 3, ids: IdSource | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.store = store
        self.now_ms = START_MS
        self.ids = SimulatedIds(self.rng) if ids is None else ids
        inline_bytes = self.rng.choice([0, 800, 10**6])
        self.storage = direct_storage(store, self.ids, inline_bytes=inline_bytes)
        self.restart(retained=retained, owner_id="writer")
        states = tuple(self.descriptor(name) for name in NAMES)
        timers = StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([]))
        self.model = Model(OperatorStateSchema("op", KEY, (*states, timers)))
        self.expected: dict[int, Model] = {}
        self.taken_at_ms: dict[int, int] = {}
        self.checkpoint_id = -1

    def restart(
        self, checkpoint_id: int | None = None, retained: int = 3, owner_id: str = "again"
    ) -> CompletedCheckpoint | None:
        """Let a new run of the query continue a checkpoint, the newest by default; return it."""
        self.coordinator = CheckpointCoordinator(
            self.store,
            owner_id=owner_id,
            max_parallelism=GROUPS,
            options=CheckpointOptions(retained=retained),
            clock_ms=ManualClock(),
        )
        self.coordinator.claim()
        return self.coordinator.restore(checkpoint_id)

    def rewind(self, checkpoint_id: int, retained: int = 3) -> None:
        """Let a new run of the query continue an older checkpoint, with the state of then."""
        self.restart(checkpoint_id, retained)
        self.model = copy.deepcopy(self.expected[checkpoint_id])

    def descriptor(self, name: str) -> StateDescriptor:
        names = self.rng.sample(sorted(FIELDS), self.rng.randrange(1, 4))
        return StateDescriptor(
            name,
            NAMES[name],
            pa.schema([(field, FIELDS[field]) for field in names]),
            pa.schema([("u", pa.string())]) if NAMES[name] is StateKind.MAP else None,
            self.rng.choice([None, TTL_MS]),
        )

    @property
    def last_ms(self) -> int:
        """When the newest checkpoint was taken."""
        return self.taken_at_ms[self.checkpoint_id]

    def run(self, batches: int = 10) -> None:
        for _ in range(batches):
            if self.checkpoint_id >= 0 and self.rng.random() < 0.25:
                self.evolve()
            self.micro_batch()

    def evolve(self) -> None:
        """Restart with other variables; one may be dropped, and comes back as another one."""
        stored = self.model.schema
        dropped = {self.rng.choice([*NAMES, *[""] * 5])}
        present = tuple(self.descriptor(name) for name in NAMES if name not in dropped)
        timers = tuple(state for state in stored.states if state.kind is StateKind.TIMER)
        deleted = frozenset(dropped - {""})
        declared = replace(stored, states=(*present, *timers), deleted=deleted)
        new = evolve(stored, declared, now_ms=self.now_ms)
        self.model.evolve(OperatorStateSchema.from_json(new.to_json()), self.now_ms)

    # --- a micro-batch --------------------------------------------------------------------------

    def ranges(self) -> Iterator[KeyGroupRange]:
        cuts = sorted(self.rng.sample(range(1, GROUPS), self.rng.randrange(3)))
        for start, stop in zip([0, *cuts], [*cuts, GROUPS], strict=True):
            yield KeyGroupRange(start, stop - 1)

    def micro_batch(self) -> None:
        checkpoint_id = self.coordinator.next_checkpoint_id
        ranges = list(self.ranges())
        self.coordinator.trigger(checkpoint_id, ranges)
        codec = OperatorCodec(self.model.schema)
        for part in ranges:
            self.coordinator.acknowledge(checkpoint_id, self.task(codec, part, checkpoint_id))
        self.coordinator.complete(checkpoint_id, properties=self.record().to_properties())
        self.coordinator.clean_up()
        self.checkpoint_id = checkpoint_id
        self.expected[checkpoint_id] = copy.deepcopy(self.model)
        self.taken_at_ms[checkpoint_id] = self.now_ms
        self.now_ms += self.rng.choice([1, TTL_MS // 3, TTL_MS])

    def record(self) -> BatchRecord:
        schema = self.model.schema.to_json()
        return one_operator(schema=schema, time_mode="processingtime", now_ms=self.now_ms)

    def task(
        self, codec: OperatorCodec, part: KeyGroupRange, checkpoint_id: int
    ) -> TaskStateSnapshot:
        state = KeyedState(codec)
        base = self.coordinator.latest
        if base is None:
            state.catch_up(part, -1, (), lambda: (self.store, None))  # type: ignore[arg-type,return-value]
        else:
            state.catch_up(part, base.checkpoint_id, (), lambda: (self.store, base.for_range(part)))
        overlays = self.change(codec, state, part)
        log = None
        encoded = codec.encode(overlays)
        if len(encoded):
            with self.storage.create_writer("op", part) as writer:
                writer.append_meta(codec.metadata_change())
                writer.append_batch(encoded.key_groups, encoded.values)
                start = writer.initial_sequence_number()
                log = writer.persist(start, checkpoint_id).result().job_manager_owned
        snapshot = None
        if self.rng.random() < 0.25:
            first, last = sorted(self.rng.choices(list(part), k=2))
            piece = KeyGroupRange(first, last)
            changes = {kg: overlay for kg, overlay in overlays.items() if kg in piece}
            data = state.snapshot(piece, changes, self.now_ms)
            path = PATHS.task_owned(self.ids.new_id())
            self.store.put(path, data)
            handle = FileStateHandle(path, len(data), checksum([data]))
            snapshot = MaterializedHandle(piece, checkpoint_id, handle)
        return TaskStateSnapshot(part, log, snapshot)

    def change(
        self, codec: OperatorCodec, state: KeyedState, part: KeyGroupRange
    ) -> dict[int, Any]:
        """Let a processor change some keys, and the model likewise."""
        cursor = objects.Cursor(self.now_ms)
        bound = {
            codec.states[state_id].descriptor.name: bind(codec, cursor, state_id)
            for state_id in codec.live
        }
        overlays: dict[int, Any] = {}
        for key in range(KEYS):
            if group_of(key) not in part or self.rng.random() < 0.6:
                continue
            overlay = overlays.setdefault(group_of(key), [{} for _ in codec.states])
            cursor.enter(state.groups[group_of(key)], overlay)
            cursor.key = key_of(key)
            for _ in range(self.rng.randrange(1, 5)):
                self.step(codec.schema, bound, key)
        return overlays

    def step(self, schema: OperatorStateSchema, bound: dict[str, Any], key: int) -> None:
        """Do one random call on a state object and on the model."""
        name = self.rng.choice(sorted(bound))
        state = bound[name]
        if name == TIMERS_NAME:
            times, time = self.model.timers.setdefault(key, set()), self.rng.randrange(9)
            if self.rng.random() < 0.7:
                state.register(time)
                times.add(time)
            else:
                state.delete(time)
                times.discard(time)
            return
        entries = self.model.entries.setdefault(name, {}).setdefault(key, [])
        if self.rng.random() < 0.15:
            state.clear()
            entries.clear()
            return
        descriptor = schema.states[schema.state_id(name)]
        ttl_ms = descriptor.ttl_ms
        value = {field: self.value(field) for field in descriptor.value_schema.names}
        entry = Entry(value, None if ttl_ms is None else self.now_ms + ttl_ms)
        match descriptor.kind:
            case StateKind.VALUE:
                state.update(tuple(value.values()))
                entries[:] = [entry]
            case StateKind.LIST:
                state.append(tuple(value.values()))
                entries.append(entry)
            case _:
                entry.place = self.rng.choice("pqr")
                entries[:] = [other for other in entries if other.place != entry.place]
                if self.rng.random() < 0.7:
                    state.put((entry.place,), tuple(value.values()))
                    entries.append(entry)
                else:
                    state.remove((entry.place,))

    def value(self, name: str) -> Any:
        if self.rng.random() < 0.2:
            return None
        number = self.rng.randrange(1000)
        return {"a": number, "b": f"text {number}", "c": [number, number + 1]}[name]


def rows_of(table: pa.Table) -> Rows:
    """Return a reader's rows in the form of the model."""
    rows: Rows = {}
    values = [name for name in table.column_names if name.startswith("value.")]
    places = {"position", "user_key.u", "fires_at_ms"}.intersection(table.column_names)
    for row in table.to_pylist():
        number = row["key.k"]
        assert (number, row["key.name"]) == key_of(number)
        assert row["key_group"] == group_of(number)
        place = next((row[name] for name in places), None)
        value = {name.removeprefix("value."): row[name] for name in values} or None
        rows.setdefault(number, []).append((place, value, row.get("expires_at_ms")))
    return rows


@dataclass(frozen=True)
class Tiny(MemoryLimits):
    """Limits under which state is stored in columns from the start."""

    dict_rows: int = 0
    recent: int = 0
    pending: int = 300

    @property
    def recent_bytes(self) -> int:
        return self.recent

    @property
    def pending_bytes(self) -> int:
        return self.pending


class Calm(History):
    """A history without snapshots and other schemas, but those that are asked for."""

    def __init__(self, name: str, store: Any, retained: int = 3) -> None:
        super().__init__(name, store, retained)
        outer = self.rng

        class NoSnapshots(random.Random):
            def random(self) -> float:
                return max(outer.random(), 0.25)

        self.rng = NoSnapshots(name)


def live_names(model: Model) -> list[str]:
    return [state.name for state in model.schema.states if not state.dropped]


def has_all_variables(history: History) -> bool:
    return {*NAMES} <= {*live_names(history.model)}


def first_history(
    title: str,
    store_of: Callable[[int], ObjectStore],
    is_fit: Callable[[History], object] = has_all_variables,
    batches: int = 6,
) -> History:
    """Return the first history, by its seed, that is fit after its micro-batches."""
    for seed in range(100):
        history = History(f"{title} {seed}", store_of(seed))
        history.run(batches)
        if is_fit(history):
            return history
    raise AssertionError("no seed is fit")


def as_python(name: str, rows: list[Row]) -> Any:
    """Return the model's rows of one key as `get` does."""
    if name == TIMERS_NAME:
        return [place for place, _, _ in rows]
    match NAMES[name]:
        case StateKind.VALUE:
            return rows[0][1] if rows else None
        case StateKind.LIST:
            return [value for _, value, _ in rows]
        case _:
            return {place: value for place, value, _ in rows}
