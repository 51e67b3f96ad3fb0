"""
The marks of frozen keys.

Where `onError` is "freeze", a key that failed has a mark from the checkpoint of its failure on.
The processor is not called for a key with a mark: its rows and timers become dead letters, and its
state stays as it was.  `statelog.unfreeze` removes marks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from statelog.extensions.bad_records.policy import error_policy
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.kinds import StateKind, Values
from statelog.state.schema import StateDescriptor

if TYPE_CHECKING:
    from statelog.spark.query.settings import QuerySettings

FROZEN_NAME: Final = "$frozen"
"""Name of the variable that marks the keys that failed."""
FROZEN_MARK: Final = StateDescriptor(
    FROZEN_NAME,
    StateKind.VALUE,
    pa.schema([("since_checkpoint", pa.int64()), ("error", pa.string())]),
)
"""The variable of the marks: the checkpoint of the failure, and its error."""
_MARK_MAX: Final = 500


def variables(settings: QuerySettings) -> tuple[StateDescriptor, ...]:
    """Return the variable that stores the marks, if the query freezes keys."""
    policy = error_policy(settings)
    return (FROZEN_MARK,) if policy is not None and policy.freezes else ()


class FrozenMarks:
    """The marks that one task reads and sets."""

    def __init__(self, codec: OperatorCodec, checkpoint_id: int) -> None:
        self.state_id = codec.schema.state_id(FROZEN_NAME)
        self._normalize = codec.states[self.state_id].value.normalize
        self._checkpoint_id = checkpoint_id

    def reason(self, mark: Values) -> str:
        """Describe when and why a key was frozen."""
        return f"frozen since checkpoint {mark[0]}: {mark[1]}"

    def mark(self, error: str) -> Values:
        """Return the mark for a key that failed with an error."""
        return self._normalize((self._checkpoint_id, error[:_MARK_MAX]))
