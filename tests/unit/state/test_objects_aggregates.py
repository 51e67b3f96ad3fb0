"""Reducing and aggregating state gather values as plain Python would."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.errors import UsageError
from statelog.state import objects
from statelog.state.encoding.values import StructCodec
from statelog.state.heap import KeyGroupState
from statelog.state.kinds import StateKind
from statelog.state.objects import AggregatingState, ReducingState


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
