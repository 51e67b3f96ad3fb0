"""Records of micro-batches of a query with one operator."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.metrics.table import BatchFigures

_FIGURES = {field.name for field in fields(BatchFigures)}
_OF_OPERATOR = {field.name for field in msgspec.structs.fields(OperatorRecord)}


def one_operator(**values: Any) -> BatchRecord:
    entries = values.get("state_entries", 0)
    figures = {name: values.pop(name) for name in [*values] if name in _FIGURES}
    of_operator = {name: values.pop(name) for name in [*values] if name in _OF_OPERATOR}
    operator = OperatorRecord(
        **({"operator_id": "op", "schema": {}, "state_entries": entries} | of_operator)
    )
    defaults: dict[str, Any] = {
        "query_id": "q",
        "batch_id": 0,
        "location": "",
        "timeline": 0,
        "delivery": "staged",
        "time_mode": "none",
        "now_ms": -1,
        "output_files": [],
        "figures": BatchFigures(**({"tasks": 1} | figures)),
    }
    return BatchRecord(operators=(operator,), **(defaults | values))
