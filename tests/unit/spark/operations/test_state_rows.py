"""Rows of state as the columns of a snapshot: the inverse of reading rows."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.operations import state_rows
from statelog.spark.operations.state_rows import (
    StateRows,
    key_column,
    user_key_column,
    value_column,
)
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import snapshot_table
from statelog.state.heap.tables import KeyGroupState
from statelog.state.kinds import StateKind
from statelog.state.reader.rows import VariableRows
from statelog.state.schema.descriptors import TIMERS_NAME, OperatorStateSchema, StateDescriptor

KEY = pa.schema([("a", pa.string()), ("b", pa.float64())])
ONE = pa.schema([("n", pa.int64()), ("s", pa.string())])
SCHEMA = OperatorStateSchema(
    "op",
    KEY,
    (
        StateDescriptor("one", StateKind.VALUE, ONE),
        StateDescriptor("aged", StateKind.VALUE, ONE, ttl_ms=1000),
        StateDescriptor("many", StateKind.LIST, ONE, ttl_ms=1000),
        StateDescriptor("gone", StateKind.VALUE, ONE, dropped=True),
        StateDescriptor("by", StateKind.MAP, ONE, pa.schema([("u", pa.float64())])),
        StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([])),
    ),
)
CODEC = OperatorCodec(SCHEMA)
GROUPS = 6

floats = st.sampled_from([0.0, 1.5, math.nan, -2.0, None])
keys = st.tuples(st.sampled_from(["x", "y", "", None]), floats)
values = st.tuples(st.integers(-5, 5) | st.none(), st.sampled_from(["", "t", None]))
times = st.integers(0, 9)
CELLS = {
    "one": values,
    "aged": st.tuples(times, values),
    "many": st.lists(st.tuples(times, values), min_size=1, max_size=3),
    "by": st.dictionaries(
        st.tuples(st.sampled_from([0.5, 2.0, None])), values, min_size=1, max_size=3
    ),
    TIMERS_NAME: st.sets(times, min_size=1, max_size=3).map(lambda found: tuple(sorted(found))),
}
states = st.dictionaries(
    st.tuples(st.integers(0, GROUPS - 1), keys),
    st.fixed_dictionaries({}, optional=CELLS),
    max_size=12,
)


def groups_of(state: dict[Any, dict[str, Any]]) -> dict[int, KeyGroupState]:
    found: dict[int, KeyGroupState] = {}
    taken: set[Any] = set()
    for (key_group, key), cells in state.items():
        frozen = CODEC.key.freeze(key)
        if frozen in taken:  # a key is in one key group
            continue
        taken.add(frozen)
        group = found.setdefault(key_group, KeyGroupState(CODEC.kinds))
        for name, cell in cells.items():
            at = SCHEMA.state_id(name)
            CODEC.states[at].kind.insert_cells(
                {key_group: group.tables[at]}, [(key_group, frozen, cell)]
            )
    return found


def rows_of(table: pa.Table, cut: int) -> list[pa.RecordBatch]:
    """Return a snapshot as sorted rows of all variables, in batches of *cut* rows."""
    parts = []
    batches = table.combine_chunks().to_batches()
    for state_id in CODEC.live:
        state = CODEC.states[state_id]
        for batch in batches:
            flat = VariableRows(CODEC, state_id).of(batch, None)
            parts.append(_tagged(flat, state_id, state.expires))
    if not parts:
        return []
    whole = pa.concat_tables([pa.Table.from_batches([one]) for one in parts]).combine_chunks()
    rng = np.random.default_rng(len(whole))
    whole = whole.take(pa.array(rng.permutation(len(whole))))
    order = pa.compute.sort_indices(
        whole, [("__key_group", "ascending"), ("state_id", "ascending"), ("order", "ascending")]
    )
    return whole.take(order).combine_chunks().to_batches(max_chunksize=cut)


def _tagged(flat: pa.RecordBatch, state_id: int, expires: bool) -> pa.RecordBatch:
    count = flat.num_rows
    names = flat.schema.names
    order = pa.array(np.zeros(count, np.int64))
    for name in ("position", "fires_at_ms"):
        order = flat.column(name).cast(pa.int64()) if name in names else order
    columns = {
        "__key_group": flat.column("key_group"),
        "state_id": pa.array(np.full(count, state_id, np.int32)),
        "order": order,
        "expires_at_ms": flat.column("expires_at_ms") if expires else pa.nulls(count, pa.int64()),
        **{key_column(at): flat.column(f"key.{one.name}") for at, one in enumerate(KEY)},
    }
    for other in CODEC.live:
        descriptor = SCHEMA.states[other]
        parts = [("user_key", descriptor.user_key_schema, user_key_column(other))]
        if descriptor.kind is not StateKind.TIMER:
            parts.append(("value", descriptor.value_schema, value_column(other)))
        for prefix, schema, name in parts:
            if schema is None:
                continue
            fields = list(schema)
            columns[name] = (
                pa.StructArray.from_arrays(
                    [flat.column(f"{prefix}.{one.name}") for one in fields], fields=fields
                )
                if other == state_id
                else pa.nulls(count, pa.struct(fields))
            )
    return pa.RecordBatch.from_pydict(columns)


def plain(table: pa.Table) -> list[str]:
    """Return the rows as text, sorted; entries of a map have no order."""
    rows = [{**row, "by": sorted(row["by"] or (), key=repr)} for row in table.to_pylist()]
    return sorted(map(repr, rows))


@settings(max_examples=150, deadline=None)
@given(states, st.integers(1, 7), st.integers(1, 9))
def test_rows_make_the_snapshot_that_they_were_read_from(
    state: dict[Any, dict[str, Any]], cut: int, chunk: int
) -> None:
    table = snapshot_table(CODEC, groups_of(state), {}, KeyGroupRange(0, GROUPS - 1), now_ms=-1)
    batches = rows_of(table, cut)
    before, state_rows._CHUNK_ROWS = state_rows._CHUNK_ROWS, chunk
    try:
        found = list(StateRows(CODEC, KeyGroupRange(0, GROUPS - 1)).cells(batches))
    finally:
        state_rows._CHUNK_ROWS = before
    for one in found:
        assert one.table.schema.equals(table.schema, check_metadata=True)
    made = pa.concat_tables([one.table for one in found]) if found else table.schema.empty_table()
    assert plain(made) == plain(table)
    groups = made.column("key_group").to_pylist()
    assert groups == sorted(groups)
    entries = sum(batch.num_rows for batch in batches)
    assert sum(one.entries for one in found) == entries


def test_what_cannot_be_state_is_refused() -> None:
    groups = groups_of({(1, ("x", 0.0)): {"one": (1, "t"), "by": {(0.5,): (1, "t")}}})
    table = snapshot_table(CODEC, groups, {}, KeyGroupRange(0, 5), now_ms=-1)
    rows = rows_of(table, 99)
    again = pa.Table.from_batches([*rows, *rows]).sort_by("state_id").to_batches()
    with pytest.raises(UsageError, match=r"'one': the key \('x', 0\.0\) has more than one value"):
        list(StateRows(CODEC, KeyGroupRange(0, 5)).cells(again))
    maps = [one for one in again[0].to_pylist() if one["state_id"] == SCHEMA.state_id("by")]
    twice = pa.RecordBatch.from_pylist(maps, schema=again[0].schema)
    with pytest.raises(UsageError, match=r"entry of the map key \{'u': 0\.5\}"):
        list(StateRows(CODEC, KeyGroupRange(0, 5)).cells([twice]))
    with pytest.raises(UsageError, match="a task of key groups"):
        list(StateRows(CODEC, KeyGroupRange(2, 5)).cells(rows))
