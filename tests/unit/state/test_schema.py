"""The schema of state lies next to the data and is read without the program that wrote it."""

import json

import pyarrow as pa
import pytest

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.state.kinds import StateKind
from statelog.state.schema import (
    SCHEMA_VERSION,
    Aggregation,
    OperatorStateSchema,
    StateDescriptor,
    TtlChange,
    field_since,
    with_since,
)

KEY = pa.schema([("k", pa.string())])
TOTAL = StateDescriptor("total", StateKind.VALUE, pa.schema([("sum", pa.float64())]))
SEEN = StateDescriptor(
    "seen", StateKind.MAP, pa.schema([("n", pa.int64())]), pa.schema([("id", pa.string())])
)
LATER = with_since(pa.field("at", pa.int64()), 3)
MOST = StateDescriptor(
    "most",
    StateKind.VALUE,
    pa.schema([pa.field("s", pa.struct([LATER]))]),
    ttl_ms=5,
    aggregation=Aggregation.REDUCING,
    since=2,
    dropped=True,
    ttl_changes=(TtlChange(4, True, 99),),
)
STORED = OperatorStateSchema("op", KEY, (TOTAL, SEEN, MOST), generation=4)


def test_the_json_form_comes_back():
    back = OperatorStateSchema.from_json(json.loads(json.dumps(STORED.to_json())))
    assert STORED == back
    assert 3 == field_since(back.states[2].value_schema.field("s").type.field(0))


def test_a_dropped_variable_has_no_id():
    assert 1 == STORED.state_id("seen")
    with pytest.raises(KeyError):
        STORED.state_id("most")


@pytest.mark.parametrize("version", [1, 99])
def test_a_schema_of_a_different_version_is_not_called_corrupt(version):
    with pytest.raises(IncompatibleFormatError, match=f"version {version}; this statelog reads"):
        OperatorStateSchema.from_json({**STORED.to_json(), "version": version})


def test_a_schema_that_lacks_a_field_is_corrupt():
    with pytest.raises(CorruptionError):
        OperatorStateSchema.from_json({"version": SCHEMA_VERSION})
