"""What every kind of state promises, whatever the kind: tables, operations, columns, expiry."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import InvariantError
from statelog.state.encoding.deltas import StateCodec
from statelog.state.encoding.values import KeyCodec
from statelog.state.kinds import ListDelta, MapDelta, StateKind
from statelog.state.kinds.kind import OP_CLEAR, Operations
from statelog.state.kinds.timer import TimerTable, first_times, holds_time, timer_table
from statelog.state.schema import StateDescriptor

KEY = pa.schema([("k", pa.int64())])
VALUE = pa.schema([("n", pa.int64()), ("text", pa.string())])
USER_KEY = pa.schema([("u", pa.string())])
TTL_MS = 10

keys = st.tuples(st.integers(0, 4))
values = st.tuples(st.integers(-9, 9) | st.none(), st.sampled_from(["", "x", None]))
user_keys = st.tuples(st.sampled_from("abc"))
times = st.lists(st.integers(0, 20), max_size=4, unique=True).map(sorted)


def list_delta(replaced: bool, tail: list[Any]) -> ListDelta:
    return ListDelta(tail, replaced=replaced)


def map_delta(cleared: bool, entries: dict[Any, Any]) -> MapDelta:
    delta = MapDelta(cleared)
    delta.entries = entries
    return delta


def cells(kind: StateKind, entries: Any) -> Any:
    """Return cells that a table may hold: none of them empty."""
    match kind:
        case StateKind.VALUE:
            return entries
        case StateKind.LIST:
            return st.lists(entries, min_size=1, max_size=3)
        case StateKind.MAP:
            return st.dictionaries(user_keys, entries, min_size=1, max_size=3)
        case StateKind.TIMER:
            return times.filter(len).map(tuple)


def deltas(kind: StateKind, entries: Any) -> Any:
    match kind:
        case StateKind.VALUE:
            return st.none() | entries
        case StateKind.LIST:
            return st.builds(list_delta, st.booleans(), st.lists(entries, max_size=3))
        case StateKind.MAP:
            changes = st.dictionaries(user_keys, st.none() | entries, max_size=3)
            return st.builds(map_delta, st.booleans(), changes)
        case StateKind.TIMER:
            return times


def entries_of(ttl: bool) -> Any:
    return st.tuples(st.integers(1, 20), values) if ttl else values


def codec_of(kind: StateKind, ttl: bool = False) -> StateCodec:
    value = pa.schema([]) if kind is StateKind.TIMER else VALUE
    user_key = USER_KEY if kind is StateKind.MAP else None
    descriptor = StateDescriptor("v", kind, value, user_key, TTL_MS if ttl else None)
    return StateCodec(KeyCodec(KEY), descriptor)


def table_of(kind: StateKind, stored: dict[Any, Any]) -> Any:
    table = kind.rules.new_table()
    table.update(copy.deepcopy(stored))
    return table


def shown(table: Any) -> Any:
    """Return a table as plain values, with the order of map entries."""
    cells = table.items()
    return {key: list(cell.items()) if isinstance(cell, dict) else cell for key, cell in cells}


def plain(delta: Any) -> Any:
    match delta:
        case ListDelta():
            return delta.replaced, delta.tail
        case MapDelta():
            return delta.cleared, list(delta.entries.items())
        case list():
            return tuple(delta)
        case _:
            return delta


KINDS = [
    pytest.param(kind, ttl, id=f"{kind.value}{'-ttl' if ttl else ''}")
    for kind in StateKind
    for ttl in (False, True)
    if not (ttl and kind is StateKind.TIMER)
]
EXPIRING = [param for param in KINDS if param.values[1]]
a_few = settings(max_examples=25, deadline=None)


def of_every_kind(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with drawn data for every kind of state, with and without a time to live."""
    return pytest.mark.parametrize(("kind", "ttl"), KINDS)(given(data=st.data())(a_few(test)))


def draw_table(data: Any, kind: StateKind, ttl: bool) -> Any:
    stored = st.dictionaries(keys, cells(kind, entries_of(ttl)), max_size=4)
    return table_of(kind, data.draw(stored))


def draw_deltas(data: Any, kind: StateKind, ttl: bool) -> Any:
    return data.draw(st.dictionaries(keys, deltas(kind, entries_of(ttl)), max_size=5))


def test_a_kind_is_known_by_its_name():
    assert ["value", "list", "map", "timer"] == [kind.value for kind in StateKind]
    for kind in StateKind:
        assert StateKind(kind.rules.name) is kind


@of_every_kind
def test_deltas_fold_in_parts_as_in_one_piece(kind, ttl, data):
    whole = draw_table(data, kind, ttl)
    parts = copy.deepcopy(whole)
    changes = draw_deltas(data, kind, ttl)
    operations = kind.rules.operations(changes)
    at = data.draw(st.integers(0, len(operations.keys)))
    kind.rules.fold(whole, changes)
    for part in (slice(at), slice(at, None)):
        chunk = Operations(*(column[part] for column in operations))
        kind.rules.fold(parts, kind.rules.deltas(chunk))
    assert shown(whole) == shown(parts)


@of_every_kind
def test_a_merge_is_a_fold_that_changes_neither(kind, ttl, data):
    table = draw_table(data, kind, ttl)
    changes = draw_deltas(data, kind, ttl)
    before = copy.deepcopy((shown(table), [plain(delta) for delta in changes.values()]))
    merged = kind.rules.merge(table, changes)
    assert before == (shown(table), [plain(delta) for delta in changes.values()])
    kind.rules.fold(table, changes)
    assert shown(table) == shown(merged)
    assert [plain(delta) for delta in changes.values()] == before[1]


@of_every_kind
def test_a_clearing_delta_leaves_no_cell(kind, ttl, data):
    table = draw_table(data, kind, ttl)
    removed = copy.deepcopy(table)
    for key in list(removed):
        kind.rules.remove(removed, key)
    kind.rules.fold(table, {key: kind.rules.clear_delta() for key in table})
    assert {} == table == removed


@of_every_kind
def test_deltas_come_back_from_columns(kind, ttl, data):
    codec = codec_of(kind, ttl)
    groups = [draw_deltas(data, kind, ttl) for _ in range(2)]
    operations = Operations([], [], [], [])
    counts = []
    for changes in groups:
        of_group = codec.operations(changes)
        operations.extend(of_group)
        counts.append(len(of_group.keys))
    back = codec.deltas(codec.batch(operations), counts)
    for changes, decoded in zip(groups, back, strict=True):
        table = draw_table(data, kind, ttl)
        other = copy.deepcopy(table)
        kind.rules.fold(table, changes)
        kind.rules.fold(other, decoded)
        assert shown(table) == shown(other)


@of_every_kind
def test_cells_come_back_from_a_column(kind, ttl, data):
    codec = codec_of(kind, ttl)
    stored = data.draw(st.lists(st.none() | cells(kind, entries_of(ttl)), max_size=4))
    column = codec.encode_cells(stored)
    assert [cell is None for cell in stored] == column.is_null().to_pylist()
    tables = {7: kind.rules.new_table()}
    numbered = enumerate(codec.decode_cells(column))
    kind.rules.insert_cells(tables, ((7, (number,), cell) for number, cell in numbered))
    expected = {(number,): cell for number, cell in enumerate(stored) if cell is not None}
    assert shown(expected) == shown(tables[7])


@of_every_kind
def test_the_last_delta_that_replaces_is_the_cell(kind, ttl, data):
    codec = codec_of(kind, ttl)
    changes = draw_deltas(data, kind, ttl)
    batch = codec.batch(codec.operations(changes))
    columns = batch.columns[len(KEY) + 1 :]
    if not kind.rules.replaces:
        with pytest.raises(InvariantError):
            kind.rules.operation_cells(columns, codec.entry_fields())
        return
    decoded = list(codec.decode_cells(kind.rules.operation_cells(columns, codec.entry_fields())))
    table = kind.rules.new_table()
    kind.rules.fold(table, changes)
    ops = batch.column(len(KEY)).to_pylist()
    for key, op, cell in zip(changes, ops, decoded, strict=True):
        assert table.get(key) == (None if op == OP_CLEAR else cell)


@of_every_kind
def test_a_column_has_a_row_for_each_entry(kind, ttl, data):
    codec = codec_of(kind, ttl)
    stored = data.draw(st.lists(st.none() | cells(kind, entries_of(ttl)), min_size=1, max_size=4))
    expected = []
    for number, cell in enumerate(stored):
        for position, entry in enumerate(flat_entries(kind, ttl, cell)):
            before = [position] if kind is StateKind.LIST else []
            expected.append((number, *before, *entry))
    start = data.draw(st.integers(0, len(stored)))
    column = codec.encode_cells(stored).slice(start)
    rows, columns = kind.rules.rows(column)
    fields = kind.rules.row_fields(codec)
    assert [field.type for field in fields] == [column.type for column in columns]
    values = [column.to_pylist() for column in columns]
    found = zip((rows + start).tolist(), *values, strict=True)
    assert [row for row in expected if row[0] >= start] == list(found)


def flat_entries(kind: StateKind, ttl: bool, cell: Any) -> Any:
    def flat(entry: Any) -> Any:
        return (*entry[1], entry[0]) if ttl else entry

    match kind, cell:
        case _, None:
            return []
        case StateKind.VALUE, _:
            return [flat(cell)]
        case StateKind.LIST, _:
            return map(flat, cell)
        case StateKind.MAP, _:
            return [(*user_key, *flat(entry)) for user_key, entry in cell.items()]
        case StateKind.TIMER, _:
            return [(time,) for time in cell]


@pytest.mark.parametrize(("kind", "ttl"), EXPIRING)
@given(data=st.data(), until_ms=st.integers(0, 21))
@a_few
def test_cells_expire_as_columns_do(kind, ttl, data, until_ms):
    codec = codec_of(kind, ttl)
    stored = data.draw(st.lists(cells(kind, entries_of(ttl)), min_size=1, max_size=4))
    live = [kind.rules.live_cell(cell, until_ms) for cell in stored]
    column = kind.rules.live_column(codec.encode_cells(stored), until_ms)
    assert [cell or None for cell in live] == list(codec.decode_cells(column))
    for before, after in zip(stored, live, strict=True):
        later = kind.rules.expiry_times(after) if after else ()
        due = [time for time in kind.rules.expiry_times(before) if time <= until_ms]
        assert len(kind.rules.expiry_times(before)) == len(due) + len(later)
        assert all(time > until_ms for time in later)


def test_timers_have_no_time_to_live():
    for call in (StateKind.TIMER.rules.live_cell, StateKind.TIMER.rules.live_column):
        with pytest.raises(InvariantError):
            call((1,), 1)


@of_every_kind
def test_migrated_deltas_fold_to_migrated_cells(kind, ttl, data):
    """A time to live was added and removed: entries that end in "x" had expired."""

    def migrate(entry: Any) -> Any:
        value = entry[1] if ttl else entry
        return None if value[1] == "x" else (99, value)

    changes = draw_deltas(data, kind, ttl)
    table = kind.rules.new_table()
    kind.rules.fold(table, changes)
    expected = {key: kind.rules.migrate_cell(cell, migrate) for key, cell in table.items()}
    migrated = kind.rules.new_table()
    kind.rules.fold(migrated, kind.rules.migrate_deltas(changes, migrate))
    assert {key: cell for key, cell in expected.items() if cell} == migrated


few_times = st.lists(st.integers(0, 9), max_size=4, unique=True).map(sorted)
rounds = st.lists(st.dictionaries(keys, few_times, max_size=4), max_size=6)


@given(rounds, st.integers(-1, 10), st.sets(keys))
@settings(max_examples=200, deadline=None)
def test_the_index_finds_the_entries_of_the_table(deltas, until_ms, changed):
    table = TimerTable()
    for delta in deltas:
        table.fold(delta)
        all_timers = [(time, key) for key, cell in table.items() for time in cell]
        due = [timer for timer in all_timers if timer[0] <= until_ms]
        assert sorted(due) == sorted(table.due(until_ms))
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
