"""
The state variable that marks frozen keys, where `onError` is "freeze".

A key that failed has a mark from the checkpoint of its failure on.  The processor is not called for a key
with a mark: its rows and timers become dead letters, so its state stays as it was before the failure.
`statelog.unfreeze` removes marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from statelog.spark.query.error_policy import OnError
from statelog.spark.query.query import OperatorDefinition
from statelog.state.kinds import StateKind
from statelog.state.schema.descriptors import (
    FROZEN_NAME,
    OperatorStateSchema,
    StateDescriptor,
)

MARK: Final = StateDescriptor(
    FROZEN_NAME,
    StateKind.VALUE,
    pa.schema([("since_checkpoint", pa.int64()), ("error", pa.string())]),
)
"""The checkpoint of the failure, and its error."""


def with_marks(
    operators: Sequence[OperatorDefinition], on_error: OnError
) -> tuple[OperatorDefinition, ...]:
    """Return operators with a variable for marks, where keys that fail are frozen."""
    if on_error is not OnError.FREEZE:
        return tuple(operators)
    return tuple(replace(each, schema=marked_schema(each.schema)) for each in operators)


def marked_schema(schema: OperatorStateSchema) -> OperatorStateSchema:
    """Return a schema with the variable for marks."""
    return replace(schema, states=(*schema.states, MARK))
