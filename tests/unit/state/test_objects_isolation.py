"""What a processor holds in its hands is never the state itself."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.support.state_objects import bind

from statelog.errors import UsageError
from statelog.state import objects
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import KeyGroupState
from statelog.state.kinds import StateKind
from statelog.state.schema import OperatorStateSchema, StateDescriptor

NESTED = pa.schema([("parts", pa.list_(pa.int64())), ("names", pa.map_(pa.string(), pa.int64()))])
VALUE = ([1, 2], {"a": 1})


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
    state.update(VALUE)
    spoil(state.get())
    assert state.get() == VALUE
    group.fold(overlay)
    overlay[0].clear()
    spoil(state.get())
    assert state.get() == VALUE


@pytest.mark.parametrize("ttl_ms", [None, 1000])
def test_changing_elements_that_were_read_does_not_change_the_list(ttl_ms):
    state, group, overlay = state_of(StateKind.LIST, NESTED, ttl_ms=ttl_ms)
    state.put([VALUE])
    group.fold(overlay)
    overlay[0].clear()
    state.append(VALUE)
    for element in state.get():
        spoil(element)
    assert list(state.get()) == [VALUE, VALUE]


@pytest.mark.parametrize("ttl_ms", [None, 1000])
def test_changing_entries_that_were_read_does_not_change_the_map(ttl_ms):
    user_key = pa.schema([("n", pa.int64())])
    state, group, overlay = state_of(StateKind.MAP, NESTED, user_key, ttl_ms)
    state.put((1,), VALUE)
    group.fold(overlay)
    overlay[0].clear()
    spoil(state.get((1,)))
    for value in state.values():
        spoil(value)
    for _, value in state.iterator():
        spoil(value)
    assert state.get((1,)) == VALUE


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
