"""What may change in a state schema between two runs, and what may not."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from statelog.errors import CheckpointError, CorruptionError, IncompatibleFormatError
from statelog.state.schema import OperatorStateSchema, StateDescriptor, StateKind

KEY = pa.schema([("k", pa.string())])
TOTAL = StateDescriptor("total", StateKind.VALUE, pa.schema([("sum", pa.float64())]))
SEEN = StateDescriptor(
    "seen", StateKind.MAP, pa.schema([("n", pa.int64())]), pa.schema([("id", pa.string())])
)
STORED = OperatorStateSchema("op", KEY, (TOTAL, SEEN))


def test_the_json_form_comes_back() -> None:
    assert STORED == OperatorStateSchema.from_json(STORED.to_json())


def test_variables_keep_their_ids_and_new_ones_come_behind() -> None:
    extra = replace(TOTAL, name="extra")
    evolved = STORED.evolved(OperatorStateSchema("op", KEY, (extra, SEEN)))
    assert ["total", "seen", "extra"] == [state.name for state in evolved.states]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (replace(STORED, operator_id="other"), "operator 'op'"),
        (replace(STORED, key_schema=pa.schema([("k", pa.int64())])), "key is"),
        (replace(STORED, states=(replace(TOTAL, kind=StateKind.LIST),)), "'total' is a value"),
        (
            replace(
                STORED, states=(replace(TOTAL, value_schema=pa.schema([("sum", pa.int64())])),)
            ),
            "'total' has the type",
        ),
        (replace(STORED, states=(replace(TOTAL, ttl_ms=5),)), "time to live"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(wanted: OperatorStateSchema, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        STORED.evolved(wanted)


def test_a_newer_schema_is_not_called_corrupt() -> None:
    with pytest.raises(IncompatibleFormatError, match="upgrade"):
        OperatorStateSchema.from_json({**STORED.to_json(), "version": 99})
    with pytest.raises(CorruptionError):
        OperatorStateSchema.from_json({"version": 1})
