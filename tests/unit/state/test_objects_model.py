"""
State objects against a plain model: whatever the calls, what a restart reads is what was written.

One schedule is a list of micro-batches of calls.  After each batch the overlay goes four ways, and
all of them must give the model's answer: folded in memory, encoded and replayed, written to a
snapshot, and snapshot plus replay.
"""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec, schema_of_changes
from statelog.state.encoding.snapshot_file import read_snapshot, write_snapshot
from statelog.state.heap import KeyGroupState
from statelog.state.kinds import StateKind
from statelog.state.objects import (
    Cursor,
    ExpiringListState,
    ExpiringMapState,
    ExpiringValueState,
    ListState,
    MapState,
    Timers,
    ValueState,
)
from statelog.state.schema import OperatorStateSchema, StateDescriptor

TTL_MS = 10
VALUE = pa.schema([("count", pa.int64()), ("name", pa.string())])
ELEMENT = pa.schema([("x", pa.float64())])
USER_KEY = pa.schema([("u", pa.string())])
NO_FIELDS = pa.schema([])


def descriptor(name: str, kind: StateKind, ttl_ms: int | None = None) -> StateDescriptor:
    value = {StateKind.LIST: ELEMENT, StateKind.TIMER: NO_FIELDS}.get(kind, VALUE)
    return StateDescriptor(name, kind, value, USER_KEY if kind is StateKind.MAP else None, ttl_ms)


SCHEMA = OperatorStateSchema(
    "op",
    pa.schema([("k", pa.int64())]),
    (
        descriptor("value", StateKind.VALUE),
        descriptor("list", StateKind.LIST),
        descriptor("map", StateKind.MAP),
        descriptor("value_ttl", StateKind.VALUE, TTL_MS),
        descriptor("list_ttl", StateKind.LIST, TTL_MS),
        descriptor("map_ttl", StateKind.MAP, TTL_MS),
        descriptor("$timers", StateKind.TIMER),
    ),
)
CODEC = OperatorCodec(SCHEMA)

keys = st.integers(0, 3)
values = st.tuples(st.integers(-(2**63), 2**63 - 1) | st.none(), st.text(max_size=3) | st.none())
elements = st.tuples(st.floats(allow_nan=False))
user_keys = st.tuples(st.sampled_from("abc"))
suffix = st.sampled_from(["", "_ttl"])
call = st.one_of(
    st.tuples(st.just("value"), suffix, st.sampled_from(["update"]), keys, values),
    st.tuples(st.just("value"), suffix, st.sampled_from(["clear"]), keys),
    st.tuples(st.just("list"), suffix, st.just("append"), keys, elements),
    st.tuples(st.just("list"), suffix, st.just("put"), keys, st.lists(elements, max_size=3)),
    st.tuples(st.just("list"), suffix, st.just("append_all"), keys, st.lists(elements, max_size=3)),
    st.tuples(st.just("list"), suffix, st.just("clear"), keys),
    st.tuples(st.just("map"), suffix, st.just("put"), keys, user_keys, values),
    st.tuples(st.just("map"), suffix, st.just("remove"), keys, user_keys),
    st.tuples(st.just("map"), suffix, st.just("clear"), keys),
    st.tuples(st.just("timers"), st.just(""), st.just("register"), keys, st.integers(0, 5)),
    st.tuples(st.just("timers"), st.just(""), st.just("delete"), keys, st.integers(0, 5)),
)
schedules = st.lists(st.lists(call, max_size=12), min_size=1, max_size=5)


class Model:
    """A dict that is always right: (variable, key) -> value with expiry."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}

    def apply(self, now: int, variable: str, ttl: str, method: str, key: int, *args: Any) -> None:
        name = variable + ttl
        expires = now + TTL_MS if ttl else None
        at = (name, key)
        match variable, method:
            case _, "clear":
                self.values.pop(at, None)
            case "value", "update":
                self.values[at] = (expires, args[0])
            case "list", "put":
                self.values[at] = [(expires, element) for element in args[0]]
            case "list", "append":
                self.values.setdefault(at, []).append((expires, args[0]))
            case "list", "append_all":
                self.values.setdefault(at, []).extend((expires, element) for element in args[0])
            case "map", "put":
                entries = self.values.setdefault(at, {})
                entries.pop(args[0], None)  # a map is read in the order of the last writes
                entries[args[0]] = (expires, args[1])
            case "map", "remove":
                self.values.setdefault(at, {}).pop(args[0], None)
            case "timers", "register":
                self.values.setdefault(at, set()).add(args[0])
            case "timers", "delete":
                self.values.setdefault(at, set()).discard(args[0])

    def seen(self, name: str, key: int, now: int) -> Any:
        def live(entry: Any) -> bool:
            return entry[0] is None or entry[0] > now

        stored = self.values.get((name, key))
        match name.removesuffix("_ttl"):
            case "value":
                return stored[1] if stored and live(stored) else None
            case "list":
                return [entry[1] for entry in stored or () if live(entry)]
            case "map":
                return [(k, entry[1]) for k, entry in (stored or {}).items() if live(entry)]
            case _:
                return tuple(sorted(stored or ()))


def bind(cursor: Cursor) -> dict[str, Any]:
    states = CODEC.states
    return {
        "value": ValueState(cursor, 0, states[0].value),
        "list": ListState(cursor, 1, states[1].value),
        "map": MapState(cursor, 2, states[2].value, states[2].user_key),
        "value_ttl": ExpiringValueState(cursor, 3, states[3].value, TTL_MS),
        "list_ttl": ExpiringListState(cursor, 4, states[4].value, TTL_MS),
        "map_ttl": ExpiringMapState(cursor, 5, states[5].value, states[5].user_key, TTL_MS),
        "timers": Timers(cursor, 6, states[6].value),
    }


def observed(states: dict[str, Any], name: str) -> Any:
    match name.removesuffix("_ttl"):
        case "value":
            return states[name].get()
        case "list":
            return list(states[name].get())
        case "map":
            return list(states[name].iterator())
        case _:
            return states[name].times()


def check_equal(group: KeyGroupState, overlay: Any, model: Model, now: int) -> None:
    cursor = Cursor(now)
    states = bind(cursor)
    cursor.enter(group, overlay)
    for key in range(4):
        cursor.key = (key,)
        for name in states:
            assert model.seen(name, key, now) == observed(states, name), (name, key)
    due = sorted(group.timers_due(6, 3))
    expected = sorted(
        (time, (key,)) for key in range(4) for time in model.seen("timers", key, now) if time <= 3
    )
    if not any(overlay):
        assert expected == due
    for changed in ((), ((0,),), ((1,), (2,)), tuple((key,) for key in range(4))):
        left = [
            time
            for key in range(4)
            if (key,) not in changed
            for time in group.tables[6].get((key,), ())
        ]
        assert min(left, default=None) == group.first_timer(6, changed)


def empty_overlay() -> list[dict[Any, Any]]:
    return [{} for _ in CODEC.states]


@given(schedules)
@settings(max_examples=250, deadline=None)
def test_every_way_back_gives_what_was_written(batches: list[list[Any]]) -> None:
    model = Model()
    folded = KeyGroupState(CODEC.kinds)
    replayed = KeyGroupState(CODEC.kinds)
    restored = KeyGroupState(CODEC.kinds)
    cursor = Cursor()
    states = bind(cursor)
    for number, batch in enumerate(batches):
        now = number * 6
        cursor.now_ms = now
        overlay = empty_overlay()
        cursor.enter(folded, overlay)
        for variable, ttl, method, key, *args in batch:
            cursor.key = (key,)
            getattr(states[variable + ttl], method)(*copy.deepcopy(args))
            model.apply(now, variable, ttl, method, key, *args)
        check_equal(folded, overlay, model, now)
        snapshot = write_snapshot(CODEC, {7: folded}, {7: overlay}, KeyGroupRange(0, 9), now_ms=now)
        changes = CODEC.encode({7: overlay})
        decoded = CODEC.decode(changes.key_groups.tolist(), changes.values.to_pylist())
        folded.fold(overlay)
        for delta in decoded.values():
            replayed.fold(delta)
            restored.fold(delta)
        from_snapshot = KeyGroupState(CODEC.kinds)
        tables = read_snapshot(CODEC, snapshot, KeyGroupRange(7, 7))
        if tables:
            from_snapshot.tables = tables[7]
        for group in (folded, replayed, restored, from_snapshot):
            check_equal(group, empty_overlay(), model, now)
        restored = from_snapshot


def test_a_snapshot_is_read_by_key_group_range() -> None:
    groups = {}
    for key_group in range(4):
        group = groups[key_group] = KeyGroupState(CODEC.kinds)
        group.tables[0][(key_group,)] = (key_group, "x")
    data = write_snapshot(CODEC, groups, {}, KeyGroupRange(0, 3), now_ms=-1)
    tables = read_snapshot(CODEC, data, KeyGroupRange(1, 2))
    assert [1, 2] == sorted(tables)
    assert {(2,): (2, "x")} == tables[2][0]


def test_the_metadata_change_brings_the_schema_back() -> None:
    assert SCHEMA == schema_of_changes(CODEC.metadata_change())


def test_a_list_read_before_an_append_does_not_see_it() -> None:
    cursor = Cursor()
    state = bind(cursor)["list"]
    cursor.enter(KeyGroupState(CODEC.kinds), empty_overlay())
    state.append((1.0,))
    before = state.get()
    state.append((2.0,))
    assert [(1.0,)] == list(before)


def test_state_without_a_key_is_refused() -> None:
    cursor = Cursor()
    states = bind(cursor)

    def refused() -> None:
        for call in (
            states["value"].get,
            lambda: states["value"].update((1, "x")),
            states["list_ttl"].exists,
            lambda: states["list"].append((1.0,)),
            lambda: list(states["map"].keys()),
            lambda: states["map_ttl"].put(("a",), (1, "x")),
            states["map"].clear,
            lambda: states["timers"].register(5),
        ):
            with pytest.raises(UsageError, match="belongs to a key"):
                call()

    refused()
    cursor.enter(KeyGroupState(CODEC.kinds), empty_overlay())
    states["value"].update((1, "x"))
    cursor.leave()
    refused()


def test_not_null_fields_survive_keys_that_have_no_value() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    states = (
        StateDescriptor("a", StateKind.VALUE, schema),
        StateDescriptor("b", StateKind.LIST, pa.schema([("l", pa.list_(schema.field(0)))])),
    )
    codec = OperatorCodec(OperatorStateSchema("op", pa.schema([("k", pa.int64())]), states))
    group = KeyGroupState(codec.kinds)
    group.tables = [{(1,): (5,)}, {(2,): [([1, 2],)]}]
    data = write_snapshot(codec, {0: group}, {}, KeyGroupRange(0, 0), now_ms=-1)
    assert {0: group.tables} == read_snapshot(codec, data, KeyGroupRange(0, 0))
    changes = codec.encode({0: [{(1,): None}, {}]})
    decoded = codec.decode(changes.key_groups.tolist(), changes.values.to_pylist())
    assert {0: [{(1,): None}, {}]} == decoded


def test_a_value_without_fields_is_refused() -> None:
    empty = StateDescriptor("empty", StateKind.VALUE, NO_FIELDS)
    with pytest.raises(UsageError, match="'empty' has no fields"):
        OperatorCodec(OperatorStateSchema("op", pa.schema([("k", pa.int64())]), (empty,)))
