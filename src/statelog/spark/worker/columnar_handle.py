"""The handle of a columnar processor in a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from statelog.errors import UsageError
from statelog.spark.query.declared_state import check_not_reserved
from statelog.spark.query.state_variables import SchemaLike
from statelog.state.kinds import StateKind
from statelog.state.slots import ColumnState, ColumnTimers, SlotTable

_ONLY_IN_INIT: Final = "state {!r}: state variables are {} in init() only"


class ColumnarTaskHandle:
    """
    State variables by name, and the timers.

    Args:
        table: The cells of the worker.
        timers: The timers; None in the time mode None.
        drop: Deletes a variable of all keys, by state id.
    """

    def __init__(
        self, table: SlotTable, timers: ColumnTimers | None, drop: Callable[[int], None]
    ) -> None:
        self._table = table
        self._timers = timers
        self._drop = drop
        self._initialized = False

    def initialized(self) -> None:
        """End the time in which state variables may be created."""
        self._initialized = True

    def getColumnState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> ColumnState:
        """Return a state variable; raises `UsageError` if the driver does not know it."""
        if self._initialized:
            raise UsageError(_ONLY_IN_INIT.format(stateName, "created"))
        schemas = self._table.codec.schema
        try:
            state_id = schemas.state_id(stateName)
        except KeyError:
            raise UsageError(
                f"init() asks for state {stateName!r} in a task, but did not on the driver; it must "
                "ask for the same state everywhere"
            ) from None
        descriptor = schemas.states[state_id]
        if descriptor.kind is not StateKind.VALUE:
            raise UsageError(f"state {stateName!r} is a {descriptor.kind_text} state")
        return ColumnState(self._table, state_id)

    @property
    def timers(self) -> ColumnTimers:
        """The timers."""
        if self._timers is None:
            raise UsageError(
                "timers need the time mode ProcessingTime or EventTime; this query has None"
            )
        return self._timers

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys; in `init` only."""
        if self._initialized:
            raise UsageError(_ONLY_IN_INIT.format(stateName, "deleted"))
        check_not_reserved(stateName)
        try:
            self._drop(self._table.codec.schema.state_id(stateName))
        except KeyError:
            return
