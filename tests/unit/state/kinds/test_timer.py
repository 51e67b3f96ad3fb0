"""The index of a table of timers says what a look at all timers says."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import InvariantError
from statelog.state.kinds.timer import TimerTable, first_times, holds_time, timer_table

keys = st.tuples(st.integers(0, 4))
times = st.lists(st.integers(0, 9), max_size=4, unique=True).map(sorted)
rounds = st.lists(st.dictionaries(keys, times, max_size=4), max_size=6)


@given(rounds, st.integers(-1, 10), st.sets(keys))
@settings(max_examples=200, deadline=None)
def test_the_index_finds_the_entries_of_the_table(deltas, until_ms, changed):
    table = TimerTable()
    for delta in deltas:
        table.fold(delta)
        all_timers = [(time, key) for key, cell in table.items() for time in cell]
        assert sorted(timer for timer in all_timers if timer[0] <= until_ms) == sorted(
            table.due(until_ms)
        )
        others = [time for time, key in all_timers if key not in changed]
        assert min(others, default=None) == table.first(changed)


def test_the_index_follows_a_table_that_shrinks():
    table = TimerTable({(number,): (number,) for number in range(500)})
    assert 0 == table.first(())
    table.fold({(number,): () for number in range(499)})
    assert 499 == table.first(())
    assert [(499, (499,))] == list(table.due(10**6))


def test_other_tables_have_no_index():
    with pytest.raises(InvariantError):
        timer_table({})


def test_a_time_is_found_by_bisection():
    assert [time for time in range(9) if holds_time((1, 4, 7), time)] == [1, 4, 7]


def test_the_first_times_of_a_column_are_returned():
    column = pa.array([[3, 5], None, [], [1], [2]], pa.list_(pa.int64()))
    rows, first = first_times(column, np.array([True, True, True, True, False]))
    assert ([0, 3], [3, 1]) == (rows.tolist(), first.tolist())
