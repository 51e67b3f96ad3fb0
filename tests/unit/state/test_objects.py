"""State objects and codecs of all kinds: keys, snapshots by range, and what is refused."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.state_objects import bind, bind_all

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.state import objects
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import read_snapshot, write_snapshot
from statelog.state.encoding.values import StructCodec
from statelog.state.heap import KeyGroupState
from statelog.state.kinds import StateKind
from statelog.state.objects import AggregatingState, Cursor, ReducingState
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


class Mean:
    """Gathers numbers as (sum, count)."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: Any) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, first: Any, second: Any) -> tuple[int, int]:
        return first[0] + second[0], first[1] + second[1]


def value_state(names: str, ttl_ms: int | None = None) -> tuple[Any, objects.Cursor, KeyGroupState]:
    codec = StructCodec(pa.schema([(name, pa.int64()) for name in names]), what="state 's'")
    cursor = objects.Cursor(now_ms=0)
    kind = objects.ValueState if ttl_ms is None else objects.ExpiringValueState
    state = kind(cursor, 0, codec, ttl_ms)
    group = KeyGroupState((StateKind.VALUE,))
    cursor.key = (1,)
    cursor.enter(group, [{}])
    return state, cursor, group


@given(st.lists(st.lists(st.integers(-5, 5)), max_size=4))
def test_the_result_does_not_depend_on_the_batches(batches):
    value, cursor, group = value_state("n")
    reducing = ReducingState(value, lambda first, second: (max(first[0], second[0]),))
    accumulator, other, accumulators = value_state("sn")
    aggregating = AggregatingState(accumulator, Mean())
    for batch in batches:
        for number in batch:
            reducing.add((number,))
            aggregating.add(number)
        for a_cursor, tables in ((cursor, group), (other, accumulators)):
            tables.fold(a_cursor.overlay)
            a_cursor.enter(tables, [{}])
    numbers = [number for batch in batches for number in batch]
    assert ((max(numbers),) if numbers else None) == reducing.get()
    assert (sum(numbers) / len(numbers) if numbers else None) == aggregating.get()
    assert bool(numbers) == reducing.exists() == aggregating.exists()
    reducing.clear()
    aggregating.clear()
    assert reducing.get() is None
    assert aggregating.get() is None


def test_accumulators_are_merged():
    state = AggregatingState(value_state("sn")[0], Mean())
    assert state.accumulator() is None
    state.merge((10, 2))
    state.merge((5, 1))
    assert (15, 3) == state.accumulator()
    assert 5.0 == state.get()


def test_the_time_to_live_begins_with_the_last_value():
    value, cursor, _ = value_state("n", ttl_ms=10)
    state = ReducingState(value, lambda first, second: (first[0] + second[0],))
    state.add((1,))
    cursor.now_ms = 9
    state.add((2,))
    cursor.now_ms = 18
    assert (3,) == state.get()
    cursor.now_ms = 19
    assert state.get() is None
    state.add((4,))
    assert (4,) == state.get()


def test_a_value_that_does_not_fit_changes_nothing():
    state = ReducingState(value_state("n")[0], lambda first, second: None)
    with pytest.raises(UsageError, match="None"):
        state.add(None)
    state.add((1,))
    with pytest.raises(UsageError, match="not None"):
        state.add((2,))
    with pytest.raises(UsageError, match="'n'"):
        ReducingState(value_state("n")[0], max).add(("x",))
    assert (1,) == state.get()


NESTED = pa.schema([("parts", pa.list_(pa.int64())), ("names", pa.map_(pa.string(), pa.int64()))])
NESTED_VALUE = ([1, 2], {"a": 1})


def state_of(
    kind: StateKind, value: pa.Schema, user_key: pa.Schema | None = None, ttl_ms: int | None = None
) -> tuple[Any, KeyGroupState, list[Any]]:
    """Return a state object for the key (1,), the table behind it, and its overlay."""
    descriptor = StateDescriptor("s", kind, value, user_key, ttl_ms)
    codec = OperatorCodec(OperatorStateSchema("op", pa.schema([("k", pa.int64())]), (descriptor,)))
    cursor = objects.Cursor(now_ms=0)
    group = KeyGroupState(codec.kinds)
    overlay: list[Any] = [{}]
    cursor.key = (1,)
    cursor.enter(group, overlay)
    return bind(codec, cursor, 0), group, overlay


def spoil(value: Any) -> None:
    value[0].append(3)
    value[1]["b"] = 2


@pytest.mark.parametrize("ttl_ms", [None, 1000])
def test_changing_a_value_that_was_read_does_not_change_the_state(ttl_ms):
    state, group, overlay = state_of(StateKind.VALUE, NESTED, ttl_ms=ttl_ms)
    state.update(NESTED_VALUE)
    spoil(state.get())
    assert state.get() == NESTED_VALUE
    group.fold(overlay)
    overlay[0].clear()
    spoil(state.get())
    assert state.get() == NESTED_VALUE


@pytest.mark.parametrize("ttl_ms", [None, 1000])
def test_changing_elements_that_were_read_does_not_change_the_list(ttl_ms):
    state, group, overlay = state_of(StateKind.LIST, NESTED, ttl_ms=ttl_ms)
    state.put([NESTED_VALUE])
    group.fold(overlay)
    overlay[0].clear()
    state.append(NESTED_VALUE)
    for element in state.get():
        spoil(element)
    assert list(state.get()) == [NESTED_VALUE, NESTED_VALUE]


@pytest.mark.parametrize("ttl_ms", [None, 1000])
def test_changing_entries_that_were_read_does_not_change_the_map(ttl_ms):
    user_key = pa.schema([("n", pa.int64())])
    state, group, overlay = state_of(StateKind.MAP, NESTED, user_key, ttl_ms)
    state.put((1,), NESTED_VALUE)
    group.fold(overlay)
    overlay[0].clear()
    spoil(state.get((1,)))
    for value in state.values():
        spoil(value)
    for _, value in state.iterator():
        spoil(value)
    assert state.get((1,)) == NESTED_VALUE


@pytest.mark.parametrize(
    ("number", "expected"),
    [("7", "7.00"), ("1.005", "1.01"), ("-1.005", "-1.01"), ("1E+2", "100.00")],
)
def test_a_decimal_has_the_digits_of_its_type_at_once(number, expected):
    state, _, _ = state_of(StateKind.VALUE, pa.schema([("amount", pa.decimal128(5, 2))]))
    state.update((decimal.Decimal(number),))
    assert expected == str(state.get()[0])


@pytest.mark.parametrize("amount", ["1000", "-999.995", "NaN", "Infinity"])
def test_a_decimal_that_is_too_large_is_refused(amount):
    state, _, _ = state_of(StateKind.VALUE, pa.schema([("amount", pa.decimal128(5, 2))]))
    state.update((decimal.Decimal(1),))
    with pytest.raises(UsageError, match=r"'s'.*'amount'.*decimal128"):
        state.update((decimal.Decimal(amount),))
    assert "1.00" == str(state.get()[0])


def test_times_of_day_and_zones_do_not_matter_for_a_local_timestamp():
    state, _, _ = state_of(StateKind.VALUE, pa.schema([("at", pa.timestamp("us", "UTC"))]))
    moment = dt.datetime(2011, 12, 9, 12, 50, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    state.update((moment,))
    assert moment == state.get()[0].astimezone()
