"""Value state: one value under the current key."""

from __future__ import annotations

from typing import Any

from statelog.errors import UsageError
from statelog.state.kinds import StateKind, Values
from statelog.state.objects.bound_state import MISSING, BoundState


class ValueState(BoundState):
    """One tuple per key."""

    kind = StateKind.VALUE

    def get(self) -> Values | None:
        """Return the value, or None if there is none."""
        key = self._cursor.key
        value: Any = self._overlay.get(key, MISSING)
        if value is MISSING:
            value = self._base.get(key)
        return value if value is None or self._copy is None else self._copy(value)

    def exists(self) -> bool:
        """Return whether there is a value."""
        return self.get() is not None

    def update(self, newValue: Values) -> None:  # noqa: N803  # Spark's name: it may be in a call
        """Set the value; raises `UsageError` if it does not fit the schema."""
        if newValue is None:
            raise UsageError("a value state takes a tuple, not None; use clear()")
        self._overlay[self._cursor.key] = self._normalize(newValue)

    def clear(self) -> None:
        """Remove the value."""
        self._overlay[self._cursor.key] = None


class ExpiringValueState(ValueState):
    """A `ValueState` with a time to live."""

    def get(self) -> Values | None:
        """Return the value, or None if there is none or it expired."""
        cursor = self._cursor
        stored: Any = self._overlay.get(cursor.key, MISSING)
        if stored is MISSING:
            stored = self._base.get(cursor.key)
        if stored is None or stored[0] <= cursor.now_ms:
            return None
        return stored[1] if self._copy is None else self._copy(stored[1])

    def update(self, newValue: Values) -> None:  # noqa: N803  # Spark's name
        """Set the value and start its time again."""
        if newValue is None:
            raise UsageError("a value state takes a tuple, not None; use clear()")
        self._overlay[self._cursor.key] = (self._expires(), self._normalize(newValue))
