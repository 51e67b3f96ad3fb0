"""
The handle of a `ProcessorTester`: the state and the timers of one key.

Source: the handle of PySpark's TwsTester.  Deviations: it has only the state variables that `init`
creates; each call commits its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from statelog.extensions.testing.memory_job import KeyHandle
from statelog.spark.query.state_variables import (
    STATE_CLASSES,
    StateVariables,
    WantedVariable,
    methods_of,
)
from statelog.spark.rows.spark_versions import (
    MissingStateError,
    UnsupportedOperationError,
    WrongTimeError,
)
from statelog.state.objects import BoundState
from statelog.state.schema import TIMERS_NAME, StateDescriptor

Open: TypeAlias = Callable[[object], AbstractContextManager[KeyHandle]]
"""Returns the handle of a key, whose changes are committed at the end of the block."""


class TesterHandle(StateVariables):
    """The handle of a tester, at the key of `setGroupingKey`."""

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
        self.grouping_key: object = None

    def setGroupingKey(self, key: object) -> None:
        """Use the state and timers of *key* from now on."""
        self.grouping_key = key

    def setWatermark(self, watermarkMs: int) -> None:
        """Reject timers up to this watermark; the tester's `setWatermark` calls this."""
        self._watermark_ms = watermarkMs

    def _variable(self, asked: WantedVariable) -> object:
        """Return the state variable of the current key; raises for an unknown one."""
        with self._open_key(self.grouping_key) as handle:
            handle.variable(asked)
        return _KEYED[asked.kind](self, asked)

    def call(self, asked: WantedVariable, method: str, *args: object) -> object:
        """Call a method of a state variable, and commit its changes."""
        with self._open_key(self.grouping_key) as handle:
            result: object = getattr(handle.variable(asked), method)(*args)
            return iter(list(result)) if isinstance(result, Iterator) else result

    def _timers(self) -> AbstractContextManager[KeyHandle]:
        if self._time_mode == "none":
            raise UnsupportedOperationError(
                "timers need the time mode ProcessingTime or EventTime; this tester has None",
                condition="UNSUPPORTED_OPERATION",
            )
        return self._open_key(self.grouping_key)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key, later than the watermark."""
        with self._timers() as handle:
            if self._time_mode == "eventtime" and expiryTimestampMs <= self._watermark_ms:
                raise WrongTimeError(
                    f"a timer at {expiryTimestampMs} ms is not later than the watermark, "
                    f"{self._watermark_ms} ms"
                )
            handle.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        with self._timers() as handle:
            handle.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key, ascending."""
        with self._timers() as handle:
            return handle.listTimers()

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

    def method(name: str) -> Callable[..., object]:
        def call(self: Any, *args: Any) -> Any:
            return self._handle.call(self._wanted, name, *args)

        return call

    def begin(self: Any, handle: TesterHandle, asked: WantedVariable) -> None:
        self._handle, self._wanted = handle, asked

    methods = {name: method(name) for name in methods_of(sparks)}
    return type(f"Keyed{sparks.__name__}", (sparks,), {"__init__": begin, **methods})


_KEYED: Final = {classes.plain.kind: _keyed(classes.plain) for classes in STATE_CLASSES}
