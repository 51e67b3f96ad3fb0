"""Records of micro-batches of a query with one operator."""

from __future__ import annotations

from typing import Any

import msgspec

from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord

_OF_OPERATOR = {field.name for field in msgspec.structs.fields(OperatorRecord)}


def one_operator(**values: Any) -> BatchRecord:
    """Return a record; values that are left out are 0, and those of the operator may be given."""
    own = {name: values.pop(name) for name in [*values] if name in _OF_OPERATOR}
    numbers = dict.fromkeys(("rows", "keys", "output_rows", "state_entries"), 0)
    operator = OperatorRecord(**({"operator_id": "op", "schema": {}} | numbers | own))
    defaults: dict[str, Any] = {
        "query_id": "q",
        "batch_id": 0,
        "location": "",
        "timeline": 0,
        "tasks": 1,
        "delivery": "staged",
        "time_mode": "none",
        "now_ms": -1,
        "delta_bytes": 0,
        "output_bytes": 0,
        "output_files": [],
    }
    return BatchRecord(operators=(operator,), **(defaults | values))
