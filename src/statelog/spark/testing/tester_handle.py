"""
The handle of a `ProcessorTester`: the state and the timers of one key.

Source: the handle of PySpark's TwsTester.  Deviations: it has only the state variables that `init`
creates; each call commits its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from statelog.spark.query.state_variables import (
    STATE_CLASSES,
    StateVariables,
    WantedVariable,
    bind_variable,
    methods_of,
)
from statelog.spark.rows.spark_errors import (
    MissingStateError,
    UnsupportedOperationError,
    WrongArgumentError,
    WrongTimeError,
)
from statelog.spark.worker.handle import TaskHandle
from statelog.state.objects import BoundState
from statelog.state.schema.descriptors import TIMERS_NAME, StateDescriptor


class KnownStates(TaskHandle):
    """A handle of one key that says at once which states there are when asked for another one."""

    def _variable(self, asked: WantedVariable) -> BoundState:
        """Return the state object; of a reducing or aggregating state, what is kept."""
        name = asked.name
        names = [state.name for state in self._codec.schema.states if state.name != TIMERS_NAME]
        if name not in names:
            raise WrongArgumentError(
                f"init creates no state {name!r}; it creates {', '.join(names) or 'none'}"
            )
        state_id = self._codec.schema.state_id(name)
        state = self._codec.states[state_id]
        if state.descriptor.kind is not asked.kind:
            raise WrongArgumentError(f"state {name!r} is a {state.descriptor.kind_text} state")
        return bind_variable(self._cursor, state_id, state)

    variable = _variable


Open = Callable[[Any], tuple[KnownStates, Callable[[], None]]]


class TesterHandle(StateVariables):
    """
    The handle of a tester, at the key of `setGroupingKey`.

    Args:
        open_key: Returns a handle of a key, and a function that commits its changes.
        states: The state variables.
        drop: Deletes a state variable for all keys.
        time_mode: "none", "processingtime" or "eventtime".
    """

    def __init__(
        self,
        open_key: Open,
        states: Sequence[StateDescriptor],
        drop: Callable[[str], None],
        time_mode: str,
    ) -> None:
        self._open_key = open_key
        self._kinds = {state.name: state.kind for state in states if state.name != TIMERS_NAME}
        self._drop = drop
        self._time_mode = time_mode
        self._watermark_ms = 0
        self.grouping_key: Any = None

    def setGroupingKey(self, key: Any) -> None:
        """Use the state and timers of *key* from now on."""
        self.grouping_key = key

    def setWatermark(self, watermarkMs: int) -> None:
        """Reject timers up to this watermark; the tester's `setWatermark` calls this."""
        self._watermark_ms = watermarkMs

    def _variable(self, asked: WantedVariable) -> Any:
        """Return the state variable of the current key; raises for an unknown one."""
        self._open_key(self.grouping_key)[0].variable(asked)
        return _KEYED[asked.kind](self, asked)

    def call(self, asked: WantedVariable, method: str, *args: Any) -> Any:
        """Call a method of a state variable, and commit its changes."""
        handle, commit = self._open_key(self.grouping_key)
        result = getattr(handle.variable(asked), method)(*args)
        if isinstance(result, Iterator):
            result = iter(list(result))
        commit()
        return result

    def _timers(self) -> tuple[KnownStates, Callable[[], None]]:
        if self._time_mode == "none":
            raise UnsupportedOperationError(
                "timers need the time mode ProcessingTime or EventTime; this tester has None",
                condition="UNSUPPORTED_OPERATION",
            )
        return self._open_key(self.grouping_key)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key, later than the watermark."""
        handle, commit = self._timers()
        if self._time_mode == "eventtime" and expiryTimestampMs <= self._watermark_ms:
            raise WrongTimeError(
                f"a timer at {expiryTimestampMs} ms is not later than the watermark, "
                f"{self._watermark_ms} ms"
            )
        handle.registerTimer(expiryTimestampMs)
        commit()

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        handle, commit = self._timers()
        handle.deleteTimer(expiryTimestampMs)
        commit()

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key, ascending."""
        return self._timers()[0].listTimers()

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys, if it exists."""
        if stateName in self._kinds:
            self._drop(stateName)

    def deleteState(self, stateName: str) -> None:
        """Delete a state variable of the current key."""
        kind = self._kinds.get(stateName)
        if kind is None:
            raise MissingStateError(
                f"init creates no state {stateName!r}; it creates {', '.join(self._kinds)}",
                condition="STATE_NOT_EXISTS",
            )
        self.call(WantedVariable(stateName, kind, ""), "clear")


def _keyed(sparks: type[BoundState]) -> type:
    """Return a class of state objects that follow the current key of a tester."""

    def method(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            return self._handle.call(self._wanted, name, *args)

        return call

    def begin(self: Any, handle: TesterHandle, asked: WantedVariable) -> None:
        self._handle, self._wanted = handle, asked

    methods = {name: method(name) for name in methods_of(sparks)}
    return type(f"Keyed{sparks.__name__}", (sparks,), {"__init__": begin, **methods})


_KEYED: Final = {classes.plain.kind: _keyed(classes.plain) for classes in STATE_CLASSES}
