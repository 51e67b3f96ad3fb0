"""Expired entries leave memory, with bounded work in each batch and never too early."""

from typing import Any

import pyarrow as pa
import pytest

from statelog.model import KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import (
    CLOCK_STEP_MS,
    MIN_LOOKED_AT,
    IncrementalExpiry,
    KeyGroupState,
    choose_groups,
)
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import ListDelta, MapDelta, StateKind
from statelog.state.schema import OperatorStateSchema, StateDescriptor

VALUE = pa.schema([("n", pa.int64())])
STATES = (
    StateDescriptor("value", StateKind.VALUE, VALUE, ttl_ms=1000),
    StateDescriptor("list", StateKind.LIST, VALUE, ttl_ms=5000),
    StateDescriptor("map", StateKind.MAP, VALUE, VALUE, ttl_ms=5000),
    StateDescriptor("for_ever", StateKind.VALUE, VALUE),
)
CODEC = OperatorCodec(OperatorStateSchema("op", pa.schema([("k", pa.int64())]), STATES))
TTLS = [state.ttl_ms for state in STATES]


def test_groups_that_are_due_longest_are_chosen_up_to_the_credit():
    candidates = {1: (30, 10), 2: (10, 10), 3: (20, 10), 4: (99, 10), 5: (5, 0)}
    assert ([2, 3], 4) == choose_groups(candidates, 24, now_ms=50)
    assert ([2, 3, 1], 0) == choose_groups(candidates, 40, now_ms=50)  # nothing is saved up
    assert ([], 9) == choose_groups(candidates, 9, now_ms=50)
    assert ([], 0) == choose_groups(candidates, 99, now_ms=4)


def lists(*entries: Any) -> ListDelta:
    return ListDelta(list(entries), replaced=True)


def maps(**entries: Any) -> MapDelta:
    delta = MapDelta(cleared=True)
    delta.entries = {(name,): entry for name, entry in entries.items()}
    return delta


def test_expired_elements_are_removed_one_by_one():
    group = KeyGroupState(CODEC.kinds)
    group.fold(
        [
            {(1,): (100, (1,)), (2,): (200, (2,))},
            {(1,): lists((100, (1,)), (200, (2,))), (2,): lists((100, (3,)))},
            {(1,): maps(a=(100, (1,)), b=(200, (2,))), (2,): maps(a=(100, (3,)))},
            {(1,): (7,)},
        ]
    )
    expiry = IncrementalExpiry(CODEC.kinds, TTLS)
    assert 0 == expiry.expire({0: group}, 99 + CLOCK_STEP_MS)
    assert 5 == expiry.expire({0: group}, 100 + CLOCK_STEP_MS)
    assert [
        {(2,): (200, (2,))},
        {(1,): [(200, (2,))]},
        {(1,): {("b",): (200, (2,))}},
        {(1,): (7,)},
    ] == group.tables
    assert 3 == expiry.expire({0: group}, 200 + CLOCK_STEP_MS)
    assert [{}, {}, {}, {(1,): (7,)}] == group.tables


def test_a_group_is_checked_only_when_an_entry_can_have_expired():
    group = KeyGroupState(CODEC.kinds)
    group.fold([{(1,): (100, (1,))}, {}, {}, {}])
    expiry = IncrementalExpiry(CODEC.kinds, TTLS)
    expiry.expire({0: group}, 50)
    assert 100 + CLOCK_STEP_MS == group.expiry_due_ms
    expiry.expire({0: group}, 100 + CLOCK_STEP_MS)
    assert group.expiry_due_ms == 100 + CLOCK_STEP_MS + 1000 + CLOCK_STEP_MS


def test_without_a_clock_nothing_expires():
    group = KeyGroupState(CODEC.kinds)
    group.fold([{(1,): (100, (1,))}, {}, {}, {}])
    assert 0 == IncrementalExpiry(CODEC.kinds, TTLS).expire({0: group}, -1)
    assert 0 == IncrementalExpiry(CODEC.kinds, [None] * 4).expire({0: group}, 10**15)


@pytest.mark.parametrize("changes", [10, 500])
def test_memory_follows_the_live_entries_and_work_the_changes(changes):
    """Each batch writes new keys that live for 50 batches; without expiry they would pile up."""
    groups = range(16)
    step_ms, life = 1000, 50
    ttl_ms = step_ms * life - CLOCK_STEP_MS + 30_000
    states = (StateDescriptor("value", StateKind.VALUE, VALUE, ttl_ms=ttl_ms),)
    codec = OperatorCodec(OperatorStateSchema("op", pa.schema([("k", pa.int64())]), states))
    state = KeyedState(codec)
    state.groups = {group: KeyGroupState(codec.kinds) for group in groups}
    whole = KeyGroupRange(0, 15)
    live = (ttl_ms + CLOCK_STEP_MS) // step_ms * changes
    key = 0
    for batch in range(6 * life):
        now = batch * step_ms
        for _ in range(changes):
            key += 1
            state.groups[key % 16].fold([{(key,): (now + ttl_ms, (key,))}])
        before = sum(len(group.tables[0]) for group in state.groups.values())
        taken = state.expire_incrementally(whole, now)
        assert taken <= before
        entries = before - taken
        if batch > 2 * life:
            assert entries <= 1.6 * live + MIN_LOOKED_AT, batch
        ends = [end for group in state.groups.values() for end, _ in group.tables[0].values()]
        written = (number * step_ms + ttl_ms for number in range(batch + 1))
        expected = changes * sum(end > now for end in written)
        assert expected == sum(end > now for end in ends), "what counts is gone"
    assert key > 2 * len(ends)
