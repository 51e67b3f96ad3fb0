"""
The base of the state objects that a processor uses, and the cursor they share.

The *cursor* holds the current key, and the tables and overlay of its key group.  A read looks into
the overlay first, then into the table; a write changes the overlay only.  Elements are tuples, and
behave as copies.
Source: Flink's ValueState, ListState, MapState; the rules of time to live are Spark's (expired
values are hidden at once, a write restarts the time).  Deviation: a map's entries are in the order
of their last write, in Spark in the order of their encoded keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NoReturn, Self

from statelog.errors import UsageError
from statelog.state.encoding.deltas import StateCodec
from statelog.state.encoding.values import StructCodec
from statelog.state.heap.tables import KeyGroupState, Overlay
from statelog.state.kinds import Entry, Key, StateKind, Values

MISSING: Final = object()
"""What a look-up returns for a key that an overlay does not have; None there is a removal."""


class _NoKey(dict[Key, Any]):
    """Take the place of table and overlay where no key is current."""

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise UsageError(
            "state belongs to a key: read and write it while rows or timers are handled, not in "
            "init() or close()"
        )

    get = __getitem__ = __setitem__ = _refuse


_NO_KEY = _NoKey()


class Cursor:
    """
    The current key of the state objects.

    Args:
        now_ms: Processing time of the batch in milliseconds, for time to live.
    """

    __slots__ = ("_bound", "group", "key", "now_ms", "overlay")

    def __init__(self, now_ms: int = -1) -> None:
        self.key: Key = ()
        self.now_ms = now_ms
        self.group: KeyGroupState | None = None
        self.overlay: Overlay = []
        self._bound: list[BoundState] = []

    def bind(self, state: BoundState) -> None:
        """Make *state* follow this cursor."""
        self._bound.append(state)
        if self.group is not None:
            state.enter(self.group, self.overlay)

    def enter(self, group: KeyGroupState, overlay: Overlay) -> None:
        """Move to a key group; set `key` afterwards."""
        self.group, self.overlay = group, overlay
        for state in self._bound:
            state.enter(group, overlay)

    def leave(self) -> None:
        """Have no current key; reads and writes are refused until `enter`."""
        self.group, self.overlay = None, []
        for state in self._bound:
            state.leave()


class BoundState:
    """
    Share what all state objects need: the current key's table and overlay.

    Args:
        cursor: The current key.
        state_id: Position of the variable in the operator's schema.
        codec: Normalizes values.
        ttl_ms: Time to live in milliseconds, or None.
    """

    kind: ClassVar[StateKind]

    def __init__(
        self, cursor: Cursor, state_id: int, codec: StructCodec, ttl_ms: int | None = None
    ) -> None:
        self._cursor = cursor
        self._state_id = state_id
        self._normalize: Callable[[Iterable[Any]], Values] = codec.normalize
        # A processor may change a list or dict it was given; the tables must not see that.
        self._copy = codec.normalize if codec.is_mutable else None
        self._ttl_ms = ttl_ms
        self._base: dict[Key, Any] = _NO_KEY
        self._overlay: dict[Key, Any] = _NO_KEY
        cursor.bind(self)

    @classmethod
    def bound_to(cls, cursor: Cursor, state_id: int, codec: StateCodec) -> Self:
        """Return the object of a variable, given the variable's codec."""
        return cls(cursor, state_id, codec.value, codec.descriptor.ttl_ms)

    def enter(self, group: KeyGroupState, overlay: Overlay) -> None:
        """Use the table of *group* under *overlay*."""
        self._base = group.tables[self._state_id]
        self._overlay = overlay[self._state_id]

    def leave(self) -> None:
        """Use no table until `enter`."""
        self._base = self._overlay = _NO_KEY

    def _expires(self) -> int:
        return self._cursor.now_ms + (self._ttl_ms or 0)

    def _live(self, stored: Entry) -> bool:
        expires_ms: int = stored[0]
        return expires_ms > self._cursor.now_ms
