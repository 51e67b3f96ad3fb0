"""Whole columns of values, written to state: their types, and what is refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statelog.errors import UsageError
from statelog.extensions.columns.slots import ColumnState, Keys, SlotState
from statelog.extensions.columns.slots.keys import zoned, zoned_field
from statelog.spark.rows.types import known_zone
from statelog.state.encoding.changes import METADATA_KEY_GROUP, OperatorCodec
from statelog.state.encoding.converters import relabelled
from statelog.state.kinds import StateKind
from statelog.state.schema import OperatorStateSchema, StateDescriptor, stored_field

KEY = pa.schema([("k", pa.int64())])
PAIR = pa.struct([pa.field("by", pa.int32(), nullable=False), pa.field("value", pa.string())])
NUMBERS = pa.list_(pa.field("element", pa.int32(), nullable=False))
PAIRS = pa.list_(pa.field("element", PAIR, nullable=False))
COUNTS = pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))
TYPES = {
    "struct": (PAIR, {"by": 1, "value": None}, {"by": None, "value": "a"}, "f.by"),
    "list": (NUMBERS, [1], [1, None], "f.element"),
    "list of structs": (
        PAIRS, [{"by": 1, "value": "a"}], [{"by": None, "value": "a"}], "f.element.by",
    ),
    "map": (COUNTS, [("a", 1)], [("a", None)], "f.value"),
}  # fmt: skip
"""By name: a type, a value of it, a value with a null where it may have none, and the path of that."""


def state_of(kind: pa.DataType) -> SlotState:
    """Return empty state with one variable, whose only field is of this type."""
    variable = StateDescriptor("v", StateKind.VALUE, pa.schema([pa.field("f", kind)]))
    return SlotState(OperatorCodec(OperatorStateSchema("op", KEY, (variable,))))


def stored_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values in the type that the log has for them, in which all may be null."""
    return pa.array(values, stored_field(pa.field("f", kind)).type)


def keys_of(numbers: list[int]) -> Keys:
    none = np.zeros(len(numbers), np.int64)
    return Keys(KEY, [pa.array(numbers, pa.int64())], np.zeros(len(numbers), np.int32), none, none)


def read_from_log(worker: SlotState, written: SlotState) -> None:
    """Bring what one worker wrote into another one, through the bytes of the log."""
    changes = written.table.changes()
    reader = written.codec.reader()
    reader.schema_is(written.codec.metadata_change())
    numbers, values = changes.key_groups.tolist(), changes.values.to_pylist()
    assert METADATA_KEY_GROUP not in numbers
    for state_id, batches in reader.batches(numbers, values).items():
        worker.table.apply(state_id, batches)


@pytest.mark.parametrize("name", TYPES)
def test_values_of_log_and_processor_are_in_one_column(name: str) -> None:
    kind, value, _, _ = TYPES[name]
    other, worker = state_of(kind), state_of(kind)
    ColumnState(other.table, 0).put(keys_of([1]), {"f": pa.array([value], kind)})
    read_from_log(worker, other)
    state = ColumnState(worker.table, 0)
    state.put(keys_of([2, 3]), {"f": pa.array([value, None], kind)})
    assert state.get(keys_of([3, 2, 1])).column("f").to_pylist() == [None, value, value]


def test_maps_are_read_between_their_bounds() -> None:
    maps = stored_array([[("a", None)], [("b", 1)], None, [("c", None)]], COUNTS)
    state = ColumnState(state_of(COUNTS).table, 0)
    state.put(keys_of([1, 2]), {"f": maps[1:3]})
    assert state.get(keys_of([1, 2])).column("f").to_pylist() == [[("b", 1)], None]


@pytest.mark.parametrize("name", TYPES)
def test_a_null_inside_of_a_value_is_rejected(name: str) -> None:
    kind, _, with_null, path = TYPES[name]
    state = ColumnState(state_of(kind).table, 0)
    with pytest.raises(UsageError, match=f"state 'v'.*'{path}' is NOT NULL"):
        state.put(keys_of([1, 2]), {"f": stored_array([None, with_null], kind)})
    assert state.exists(keys_of([1, 2])).tolist() == [False, False]


IN_UTC, IN_BERLIN = pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")


def pair_of(at: pa.DataType, *, nullable: bool) -> pa.DataType:
    return pa.struct([pa.field("at", at, nullable=nullable), pa.field("n", pa.int32())])


def kinds(at: pa.DataType, *, nullable: bool) -> list[pa.DataType]:
    pair = pair_of(at, nullable=nullable)
    return [
        at,
        pair,
        pa.list_(pa.field("element", pair, nullable=nullable)),
        pa.map_(pa.field("key", at, nullable=False), pa.field("value", pair, nullable=nullable)),
    ]


CELL = {"at": 5, "n": None}
VALUES: list[list[Any]] = [
    [1, None, 2, 3],
    [CELL, None, CELL, None],
    [[CELL], None, [], [CELL, CELL]],
    [[(1, CELL)], None, [], [(2, CELL), (3, CELL)]],
]


@pytest.mark.parametrize("which", range(4), ids=["time", "struct", "list", "map"])
@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_values_stay_and_types_change(which: int, start: int) -> None:
    strict = kinds(IN_BERLIN, nullable=False)[which]
    stored = kinds(IN_UTC, nullable=True)[which]
    column = pa.array(VALUES[which], strict).slice(start)
    in_utc = zoned(column, "UTC")
    assert stored == in_utc.type == zoned_field(pa.field("x", strict), "UTC").type
    assert pa.array(VALUES[which][start:], stored).to_pylist() == in_utc.to_pylist()
    back = relabelled(in_utc, strict)
    back.validate(full=False)
    assert strict == back.type
    assert column.to_pylist() == back.to_pylist()


def test_a_local_time_has_no_zone() -> None:
    column = pa.array([1, None], pa.timestamp("us"))
    assert zoned(column, "Europe/Berlin") is column


def test_a_time_zone_that_only_java_knows_is_utc() -> None:
    known = ["UTC", "Etc/UTC", "Europe/Berlin", "+00:00", "-08:00"]
    assert known == list(map(known_zone, known))
    assert ["UTC"] * 4 == list(map(known_zone, ["Z", "PST", "GMT+1", "no zone"]))
