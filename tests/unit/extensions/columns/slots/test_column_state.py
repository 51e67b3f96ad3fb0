"""Whole columns of values, written to state: their types, and what is refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statelog.errors import UsageError
from statelog.extensions.columns.slots import ColumnState, Keys, SlotState
from statelog.state.encoding.changes import METADATA_KEY_GROUP, OperatorCodec
from statelog.state.kinds import StateKind
from statelog.state.schema import OperatorStateSchema, StateDescriptor, stored_field

KEY = pa.schema([("k", pa.int64())])
PAIR = pa.struct([pa.field("by", pa.int32(), nullable=False), pa.field("value", pa.string())])
TYPES = {
    "struct": (PAIR, {"by": 1, "value": None}, {"by": None, "value": "a"}, "f.by"),
    "list": (
        pa.list_(pa.field("element", pa.int32(), nullable=False)),
        [1],
        [1, None],
        "f.element",
    ),
    "list of structs": (
        pa.list_(pa.field("element", PAIR, nullable=False)),
        [{"by": 1, "value": "a"}],
        [{"by": None, "value": "a"}],
        "f.element.by",
    ),
    "map": (
        pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)),
        [("a", 1)],
        [("a", None)],
        "f.value",
    ),
}


def state_of(kind: pa.DataType) -> SlotState:
    """Return empty state with one variable, whose only field is of this type."""
    variable = StateDescriptor("v", StateKind.VALUE, pa.schema([pa.field("f", kind)]))
    return SlotState(OperatorCodec(OperatorStateSchema("op", KEY, (variable,))))


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


@pytest.mark.parametrize(
    ("kind", "value"), [value[:2] for value in TYPES.values()], ids=list(TYPES)
)
def test_values_of_log_and_processor_are_in_one_column(kind: pa.DataType, value: Any) -> None:
    other, worker = state_of(kind), state_of(kind)
    ColumnState(other.table, 0).put(keys_of([1]), {"f": pa.array([value], kind)})
    read_from_log(worker, other)
    state = ColumnState(worker.table, 0)
    state.put(keys_of([2, 3]), {"f": pa.array([value, None], kind)})
    assert state.get(keys_of([3, 2, 1])).column("f").to_pylist() == [None, value, value]


def test_maps_are_read_between_their_bounds() -> None:
    kind = TYPES["map"][0]
    maps = pa.array(
        [[("a", None)], [("b", 1)], None, [("c", None)]], stored_field(pa.field("f", kind)).type
    )
    state = ColumnState(state_of(kind).table, 0)
    state.put(keys_of([1, 2]), {"f": maps[1:3]})
    assert state.get(keys_of([1, 2])).column("f").to_pylist() == [[("b", 1)], None]


@pytest.mark.parametrize(
    ("kind", "value", "path"),
    [(value[0], value[2], value[3]) for value in TYPES.values()],
    ids=list(TYPES),
)
def test_a_null_inside_of_a_value_is_rejected(kind: pa.DataType, value: Any, path: str) -> None:
    state = ColumnState(state_of(kind).table, 0)
    with pytest.raises(UsageError, match=f"state 'v'.*'{path}' is NOT NULL"):
        state.put(
            keys_of([1, 2]), {"f": pa.array([None, value], stored_field(pa.field("f", kind)).type)}
        )
    assert state.exists(keys_of([1, 2])).tolist() == [False, False]
