"""
The handle in a task: state variables by name, and the timers of the current key.

Source: pyspark.sql.streaming.stateful_processor.StatefulProcessorHandle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from statelog.errors import UsageError
from statelog.spark.extension_table import ExtensionRow
from statelog.spark.query.declared_state import check_not_reserved
from statelog.spark.query.state_variables import (
    RefusedState,
    StateVariables,
    WantedVariable,
    bind_variable,
    refuse_use,
)
from statelog.spark.worker.extension import NO_EXTENSIONS, TaskExtensions
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.objects import BoundState, Cursor, Timers

NO_TIMERS: Final = (
    "timers require the ProcessingTime or EventTime time mode, but this query uses None: pass "
    'timeMode="ProcessingTime" to transform_with_state'
)
"""The error of a handle in the time mode None."""


class TaskHandle(StateVariables):
    """A task's state variables by name, and the timers of the current key."""

    def __init__(
        self,
        cursor: Cursor,
        codec: OperatorCodec,
        timers: Timers | None,
        drop: Callable[[int], None],
        extensions: TaskExtensions = NO_EXTENSIONS,
    ) -> None:
        self._cursor = cursor
        self._codec = codec
        self._timers = timers
        self._drop = drop
        self._extensions = extensions
        self._initialized = False
        self._created: dict[str, list[BoundState | RefusedState]] = {}
        self._unfounded: dict[str, UsageError] = {}

    def initialized(self) -> None:
        """End the phase in which state variables may be created."""
        for error in self._unfounded.values():
            raise error
        self._initialized = True

    def _variable(self, asked: WantedVariable) -> object:
        """Return the state object, or an object that rejects all use."""
        name = asked.name
        self._only_in_init(name, "created")
        state: BoundState | RefusedState
        try:
            state = bind_variable(self._cursor, *self._find(asked))
        except UsageError as error:
            # A deletion may follow in init(), which the driver knows of; else `initialized` raises.
            state = RefusedState(asked.kind, error)
            self._unfounded[name] = error
        self._created.setdefault(name, []).append(state)
        return state

    def _find(self, asked: WantedVariable) -> tuple[int, StateCodec]:
        name = asked.name
        try:
            state_id = self._codec.schema.state_id(name)
        except KeyError:
            raise UsageError(
                f"init() declares state {name!r} in a task, but did not declare it on the driver; it must declare "
                "the same state everywhere"
            ) from None
        state = self._codec.states[state_id]
        descriptor = state.descriptor
        if (descriptor.kind, descriptor.aggregation) != (asked.kind, asked.aggregation):
            raise UsageError(f"state {name!r} is a {descriptor.kind_text} state")
        return state_id, state

    def _only_in_init(self, name: str, what: str) -> None:
        if self._initialized:
            raise UsageError(
                f"state {name!r}: state variables can be {what} only in init(): move the call there"
            )

    def _call_of(self, row: ExtensionRow, method: str) -> Callable[..., object]:
        return self._extensions.call(row, method)

    def _timers_or_error(self) -> Timers:
        if self._timers is None:
            raise UsageError(NO_TIMERS)
        return self._timers

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer for the current key."""
        self._timers_or_error().register(int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        self._timers_or_error().delete(int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key in ascending order."""
        return iter(self._timers_or_error().times())

    def deleteIfExists(self, stateName: str) -> None:
        """
        Delete a state variable for all keys; allowed only in `init`.

        Where `init` asks for the variable behind it, each batch begins without what was in it.
        What `init` asked for before it can no longer be used.
        """
        self._only_in_init(stateName, "deleted")
        check_not_reserved(stateName)
        self._unfounded.pop(stateName, None)
        # A reference that `init` kept must not read what the deletion removes.
        for state in self._created.pop(stateName, []):
            refuse_use(state, stateName)
        try:
            self._drop(self._codec.schema.state_id(stateName))
        except KeyError:
            return
