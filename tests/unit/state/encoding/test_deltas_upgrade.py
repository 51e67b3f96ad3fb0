"""
Data of every schema a job ever had reads as the present one, whichever way it comes back.

A schedule is a chain of generations; each may change fields, types and time to live, and writes
some micro-batches.  The model carries its values over step by step, by name.  The log is read from
its beginning, and from a snapshot of any generation on; both must show what the model has.
"""

import decimal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.state_objects import bind_all, content

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.model import METADATA_KEY_GROUP, KeyGroupRange
from statelog.state import objects
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import migrated
from statelog.state.encoding.snapshot_file import read_snapshot, write_snapshot
from statelog.state.heap import CLOCK_STEP_MS, IncrementalExpiry, KeyGroupState
from statelog.state.kinds import StateKind
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor, evolve

KEY = pa.schema([("k", pa.int64())])
GROUPS = KeyGroupRange(0, 0)
TTL_MS = CLOCK_STEP_MS
STEP_MS = CLOCK_STEP_MS // 2
KINDS = tuple(StateKind)
TIMERS = KINDS.index(StateKind.TIMER)

# Each step of a ladder holds all values of the one before.
LADDERS: dict[str, list[pa.DataType]] = {
    "whole": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "real": [pa.int16(), pa.float32(), pa.float64()],
    "money": [pa.decimal128(4, 1), pa.decimal128(9, 1), pa.decimal128(20, 3)],
    "text": [pa.string()],
}
NESTED = ("struct", "list", "map")


@st.composite
def types(draw: Any, name: str, depth: int = 0) -> pa.DataType:
    if name in LADDERS:
        return draw(st.sampled_from(LADDERS[name]))
    if name == "map":
        return pa.map_(pa.string(), draw(types("whole")))
    inner = draw(schemas(depth + 1))
    struct = pa.struct(list(inner))
    return struct if name == "struct" else pa.list_(struct)


@st.composite
def schemas(draw: Any, depth: int = 0) -> pa.Schema:
    names = [*LADDERS, *(NESTED if not depth else ())]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    return pa.schema([(name, draw(types(name, depth))) for name in chosen])


def widened(draw: Any, name: str, old: pa.DataType) -> pa.DataType:
    """Draw a type that *old* may become."""
    if name in LADDERS:
        ladder = LADDERS[name]
        return draw(st.sampled_from(ladder[ladder.index(old) :]))
    if name == "map":
        return pa.map_(pa.string(), widened(draw, "whole", old.item_type))
    struct = old if name == "struct" else old.value_type
    inner = pa.struct(list(successor(draw, pa.schema(list(struct)), 1)))
    return inner if name == "struct" else pa.list_(inner)


def successor(draw: Any, old: pa.Schema, depth: int = 0) -> pa.Schema:
    """Draw a schema that *old* may become: fields added, removed, moved, widened."""
    fields = []
    for new in draw(schemas(depth)):
        is_old = new.name in old.names
        kind = widened(draw, new.name, old.field(new.name).type) if is_old else new.type
        fields.append((new.name, kind))
    return pa.schema(fields)


def value_of(draw: Any, kind: pa.DataType) -> Any:
    if draw(st.integers(0, 4)) == 0:
        return None
    if pa.types.is_struct(kind):
        return tuple(value_of(draw, inner.type) for inner in kind)
    if pa.types.is_list(kind):
        return [value_of(draw, kind.value_type) for _ in range(draw(st.integers(0, 2)))]
    if pa.types.is_map(kind):
        keys = draw(st.lists(st.sampled_from("ab"), unique=True))
        return {key: value_of(draw, kind.item_type) for key in keys}
    if pa.types.is_string(kind):
        return draw(st.sampled_from(["", "x"]))
    number = draw(st.integers(-100, 100))
    if pa.types.is_decimal(kind):
        return decimal.Decimal(number)
    return float(number) if pa.types.is_floating(kind) else number


def carried(value: Any, old: pa.DataType, new: pa.DataType) -> Any:
    """Return *value* as one step of evolution leaves it; the model's own rule, by name."""
    if value is None:
        return None
    if pa.types.is_struct(new):
        by_name = {inner.name: (part, inner.type) for part, inner in zip(value, old, strict=True)}
        return tuple(
            carried(*by_name[inner.name], inner.type) if inner.name in by_name else None
            for inner in new
        )
    if pa.types.is_list(new):
        return [carried(part, old.value_type, new.value_type) for part in value]
    return value  # a wider number equals the narrower one


@dataclass
class Model:
    """What each variable holds, by kind and key; entries are [expiry or None, value]."""

    cells: dict[Any, Any] = field(default_factory=dict)

    def entries(self, kind: StateKind) -> list[tuple[Any, Any, list[Any]]]:
        """Return (cell's place, place in the cell, entry) of all entries of a kind."""
        return [
            (place, inner, entry)
            for place, cell in self.cells.items()
            for inner, entry in cell.items()
            if place[0] is kind
        ]

    def evolve(self, old: StateDescriptor, new: StateDescriptor, now: int) -> None:
        before, after = (pa.struct(list(state.value_schema)) for state in (old, new))
        for place, inner, entry in self.entries(old.kind):
            entry[1] = carried(entry[1], before, after)
            if old.ttl_ms is None and new.ttl_ms is not None:
                entry[0] = now + new.ttl_ms
            if old.ttl_ms is not None and new.ttl_ms is None:
                if entry[0] <= now:
                    del self.cells[place][inner]
                entry[0] = None

    def seen(self, kind: StateKind, key: int, now: int) -> Any:
        cell = self.cells.get((kind, key), {})
        live = {inner: value for inner, (end, value) in cell.items() if end is None or end > now}
        match kind:
            case StateKind.VALUE:
                return live.get(0)
            case StateKind.LIST:
                return list(live.values())
            case StateKind.TIMER:
                return tuple(sorted(live))
            case _:
                return list(live.items())


def bound(codec: OperatorCodec, cursor: objects.Cursor) -> dict[StateKind, Any]:
    return dict(zip(KINDS, bind_all(codec, cursor).values(), strict=True))


def check(codec: OperatorCodec, group: Any, model: Model, now: int, overlay: Any = None) -> None:
    """Check all that a processor can read; without an overlay also what the timers' index has."""
    cursor = objects.Cursor(now)
    states = bound(codec, cursor)
    cursor.enter(group, [{} for _ in codec.states] if overlay is None else overlay)
    for key in range(3):
        cursor.key = (key,)
        for kind, state in states.items():
            assert model.seen(kind, key, now) == content(state), (kind, key)
    if overlay is not None:
        return
    timers = [(time, (key,)) for key in range(3) for time in model.seen(StateKind.TIMER, key, now)]
    due = [timer for timer in timers if timer[0] <= 3]
    assert sorted(due) == sorted(group.timers_due(TIMERS, 3))
    for changed in ((), ((0,),), ((1,), (2,))):
        others = [time for time, key in timers if key not in changed]
        assert min(others, default=None) == group.first_timer(TIMERS, changed)


def write(draw: Any, states: dict[StateKind, Any], model: Model, key: int, now: int) -> None:
    """Do a random call on a state and on the model."""
    kind = draw(st.sampled_from(KINDS))
    state = states[kind]
    cell = model.cells.setdefault((kind, key), {})
    if kind is StateKind.TIMER:
        set_timer(draw, state, cell)
        return
    if draw(st.integers(0, 4)) == 0:
        state.clear()
        cell.clear()
        return
    value = tuple(value_of(draw, inner.type) for inner in state._normalize.__self__.schema)
    end = None if state._ttl_ms is None else now + state._ttl_ms
    match kind:
        case StateKind.VALUE:
            state.update(value)
            cell[0] = [end, value]
        case StateKind.LIST:
            method = draw(st.sampled_from(["append", "append_all", "put"]))
            values = [value] * (1 if method == "append" else draw(st.integers(0, 2)))
            getattr(state, method)(value if method == "append" else values)
            if method == "put":
                cell.clear()
            for element in values:
                cell[max(cell, default=0) + 1] = [end, element]
        case _:
            user_key = (draw(st.sampled_from("pq")),)
            cell.pop(user_key, None)  # a map is read in the order of the last writes
            if draw(st.booleans()):
                state.put(user_key, value)
                cell[user_key] = [end, value]
            else:
                state.remove(user_key)


def set_timer(draw: Any, timers: objects.Timers, cell: dict[int, Any]) -> None:
    time = draw(st.integers(0, 5))
    if draw(st.booleans()):
        timers.register(time)
        cell[time] = [None, None]
    else:
        timers.delete(time)
        cell.pop(time, None)


def replayed(codec: OperatorCodec, group: KeyGroupState, log: list[Any]) -> KeyGroupState:
    reader = codec.reader()
    for key_groups, values in log:
        for overlay in reader.decode(key_groups, values).values():
            group.fold(overlay)
    return group


def restored(codec: OperatorCodec, data: bytes) -> KeyGroupState:
    group = KeyGroupState(codec.kinds)
    tables = read_snapshot(codec, data, GROUPS)
    if tables:
        group.tables = tables[0]
    return group


def all_ways(codec: OperatorCodec, log: list[Any], snapshots: Any) -> Iterator[KeyGroupState]:
    """Yield the state that comes back from the whole log, and from each snapshot and its log."""
    yield replayed(codec, KeyGroupState(codec.kinds), log)
    for position, snapshot in snapshots:
        yield replayed(codec, restored(codec, snapshot), log[position:])


def first_schema(draw: Any) -> OperatorStateSchema:
    states = []
    for kind in KINDS:
        if kind is StateKind.TIMER:
            states.append(StateDescriptor(TIMERS_NAME, kind, pa.schema([])))
        else:
            user_key = pa.schema([("u", pa.string())]) if kind is StateKind.MAP else None
            states.append(StateDescriptor(kind.value, kind, draw(schemas()), user_key))
    return OperatorStateSchema("op", KEY, tuple(states))


def next_state(draw: Any, old: StateDescriptor) -> StateDescriptor:
    if old.kind is StateKind.TIMER:
        return old
    ttl_ms = draw(st.sampled_from([None, TTL_MS, 3 * TTL_MS]))
    return replace(old, value_schema=successor(draw, old.value_schema), ttl_ms=ttl_ms)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_old_data_reads_as_the_present_schema_on_every_way(data):
    draw = data.draw
    stored = first_schema(draw)
    model, now = Model(), 0
    log: list[Any] = []
    snapshots: list[tuple[int, bytes]] = []
    for generation in range(draw(st.integers(1, 4))):
        if generation:
            states = tuple(next_state(draw, old) for old in stored.states)
            evolved = evolve(stored, replace(stored, states=states), now_ms=now)
            for old, new in zip(stored.states, evolved.states, strict=True):
                model.evolve(old, new, now)
            stored = evolved
        codec = OperatorCodec(OperatorStateSchema.from_json(stored.to_json()))
        group, *others = all_ways(codec, log, snapshots)
        for other in others:
            check(codec, other, model, now)
        expiry = IncrementalExpiry(codec.kinds, [state.ttl_ms for state in codec.schema.states])
        for _ in range(draw(st.integers(1, 3))):
            check(codec, group, model, now)
            cursor = objects.Cursor(now)
            bindings = bound(codec, cursor)
            overlay: list[Any] = [{} for _ in codec.states]
            cursor.enter(group, overlay)
            for _ in range(draw(st.integers(0, 6))):
                key = draw(st.integers(0, 2))
                cursor.key = (key,)
                write(draw, bindings, model, key, now)
            check(codec, group, model, now, overlay)
            changes = codec.encode({0: overlay})
            log.append(
                (
                    [METADATA_KEY_GROUP, *changes.key_groups.tolist()],
                    [codec.metadata_change(), *changes.values.to_pylist()],
                )
            )
            snapshot_is_due = draw(st.sampled_from(["never", "before the fold", "after the fold"]))
            if snapshot_is_due == "before the fold":
                snapshot = write_snapshot(codec, {0: group}, {0: overlay}, GROUPS, now_ms=now)
                snapshots.append((len(log), snapshot))
            group.fold(overlay)
            if snapshot_is_due == "after the fold":
                snapshot = write_snapshot(codec, {0: group}, {}, GROUPS, now_ms=now)
                snapshots.append((len(log), snapshot))
            expiry.expire({0: group}, now)
            now += draw(st.sampled_from([1, STEP_MS]))
        for state in (group, *all_ways(codec, log, snapshots)):
            check(codec, state, model, now)


STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("old", "new", "values", "expected"),
    [
        (
            STRUCT,
            pa.struct([("b", pa.string()), ("c", pa.bool_()), ("a", pa.int64())]),
            [{"a": 1, "b": "x"}, None],
            [{"b": "x", "c": None, "a": 1}, None],
        ),
        (
            pa.list_(STRUCT),
            pa.list_(pa.struct([("a", pa.float64())])),
            [[{"a": 1, "b": "x"}, None], None, []],
            [[{"a": 1.0}, None], None, []],
        ),
        (
            pa.map_(pa.string(), STRUCT),
            pa.map_(pa.string(), pa.struct([("b", pa.string())])),
            [[("k", {"a": 1, "b": "x"}), ("l", None)], None],
            [[("k", {"b": "x"}), ("l", None)], None],
        ),
    ],
)
def test_parts_of_columns_are_cast_too(old, new, values, expected):
    whole = pa.array([None, *values, None], old)
    for column in (pa.array(values, old), whole.slice(1, len(values))):
        (cast,) = migrated([column], pa.schema([("f", old)]), pa.schema([("f", new)]))
        assert new == cast.type
        assert expected == cast.to_pylist()


def codec_of(*states: StateDescriptor, **more: Any) -> OperatorCodec:
    return OperatorCodec(OperatorStateSchema("op", KEY, states, **more))


NUMBER = StateDescriptor("s", StateKind.VALUE, pa.schema([("n", pa.int64())]))
TEXT = StateDescriptor("s", StateKind.VALUE, pa.schema([("n", pa.string())]))


def test_a_variable_made_anew_does_not_see_the_one_that_was_deleted():
    first = codec_of(NUMBER)
    old = [{(1,): (5,)}]
    metadata = first.metadata_change()
    log = [([-1, 0], [metadata, first.encode({0: old}).values[0].as_py()])]
    group = KeyGroupState(first.kinds)
    group.fold(old)
    snapshot = write_snapshot(first, {0: group}, {}, GROUPS, now_ms=-1)
    without = replace(first.schema, states=(), deleted=frozenset("s"))
    dropped = evolve(first.schema, without, now_ms=0)
    again = evolve(dropped, replace(first.schema, states=(TEXT,)), now_ms=0)
    codec = OperatorCodec(again)
    for back in (replayed(codec, KeyGroupState(codec.kinds), log), restored(codec, snapshot)):
        assert [{}, {}] == back.tables
    new = codec.encode({0: [{}, {(2,): ("x",)}]})
    log.append(([-1, *new.key_groups.tolist()], [codec.metadata_change(), *new.values.to_pylist()]))
    back = replayed(codec, KeyGroupState(codec.kinds), log)
    assert [{}, {(2,): ("x",)}] == back.tables
    written = write_snapshot(codec, {0: back}, {}, GROUPS, now_ms=-1)
    assert [{}, {(2,): ("x",)}] == restored(codec, written).tables


def test_changes_without_a_schema_or_with_a_later_one_are_refused():
    codec = codec_of(NUMBER)
    change = codec.encode({0: [{(1,): (5,)}]}).values[0].as_py()
    with pytest.raises(CorruptionError, match="precedes the state schema"):
        codec.reader().decode([0], [change])
    later = codec_of(NUMBER, generation=1).metadata_change()
    with pytest.raises(CorruptionError, match="generation 1"):
        codec.reader().decode([-1, 0], [later, change])
    other_key = OperatorCodec(OperatorStateSchema("op", pa.schema([("k", pa.string())]), (NUMBER,)))
    with pytest.raises(CorruptionError, match="state changes with the key"):
        codec.reader().decode([-1], [other_key.metadata_change()])
    with pytest.raises(IncompatibleFormatError, match="kind 9"):
        codec.decode([0], [b"\x09" + change[1:]])


def test_a_snapshot_without_a_schema_is_no_snapshot():
    import pyarrow.parquet as pq

    codec = codec_of(NUMBER)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"key_group": [0], "key.k": [1]}), sink)
    with pytest.raises(CorruptionError, match="snapshot"):
        read_snapshot(codec, sink.getvalue().to_pybytes(), GROUPS)
