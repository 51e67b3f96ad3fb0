"""State objects and codecs of all kinds: keys, snapshots by range, and what is refused."""

import pyarrow as pa
import pytest
from tests.support.state_objects import bind_all

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec, schema_of_changes
from statelog.state.encoding.snapshot_file import read_snapshot, write_snapshot
from statelog.state.heap import KeyGroupState
from statelog.state.kinds import StateKind
from statelog.state.objects import Cursor
from statelog.state.schema import OperatorStateSchema, StateDescriptor

TTL_MS = 10
VALUE = pa.schema([("count", pa.int64()), ("name", pa.string())])
ELEMENT = pa.schema([("x", pa.float64())])
USER_KEY = pa.schema([("u", pa.string())])
NO_FIELDS = pa.schema([])
SCHEMA = OperatorStateSchema(
    "op",
    pa.schema([("k", pa.int64())]),
    (
        StateDescriptor("value", StateKind.VALUE, VALUE),
        StateDescriptor("list", StateKind.LIST, ELEMENT),
        StateDescriptor("map", StateKind.MAP, VALUE, USER_KEY),
        StateDescriptor("list_ttl", StateKind.LIST, ELEMENT, None, TTL_MS),
        StateDescriptor("map_ttl", StateKind.MAP, VALUE, USER_KEY, TTL_MS),
        StateDescriptor("$timers", StateKind.TIMER, NO_FIELDS),
    ),
)
CODEC = OperatorCodec(SCHEMA)


def empty_overlay() -> list[dict]:
    return [{} for _ in CODEC.states]


def test_a_snapshot_is_read_by_key_group_range():
    groups = {}
    for key_group in range(4):
        group = groups[key_group] = KeyGroupState(CODEC.kinds)
        group.tables[0][(key_group,)] = (key_group, "x")
    data = write_snapshot(CODEC, groups, {}, KeyGroupRange(0, 3), now_ms=-1)
    tables = read_snapshot(CODEC, data, KeyGroupRange(1, 2))
    assert [1, 2] == sorted(tables)
    assert {(2,): (2, "x")} == tables[2][0]


def test_the_metadata_change_brings_the_schema_back():
    assert SCHEMA == schema_of_changes(CODEC.metadata_change())


def test_a_list_read_before_an_append_does_not_see_it():
    cursor = Cursor()
    state = bind_all(CODEC, cursor)["list"]
    cursor.enter(KeyGroupState(CODEC.kinds), empty_overlay())
    state.append((1.0,))
    before = state.get()
    state.append((2.0,))
    assert [(1.0,)] == list(before)


def test_state_without_a_key_is_refused():
    cursor = Cursor()
    states = bind_all(CODEC, cursor)

    def refused() -> None:
        for call in (
            states["value"].get,
            lambda: states["value"].update((1, "x")),
            states["list_ttl"].exists,
            lambda: states["list"].append((1.0,)),
            lambda: list(states["map"].keys()),
            lambda: states["map_ttl"].put(("a",), (1, "x")),
            states["map"].clear,
            lambda: states["$timers"].register(5),
        ):
            with pytest.raises(UsageError, match="belongs to a key"):
                call()

    refused()
    cursor.enter(KeyGroupState(CODEC.kinds), empty_overlay())
    states["value"].update((1, "x"))
    cursor.leave()
    refused()


def test_not_null_fields_survive_keys_that_have_no_value():
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


def test_a_value_without_fields_is_refused():
    empty = StateDescriptor("empty", StateKind.VALUE, NO_FIELDS)
    with pytest.raises(UsageError, match="'empty' does not have fields"):
        OperatorCodec(OperatorStateSchema("op", pa.schema([("k", pa.int64())]), (empty,)))
