"""Map state: one value for each map key, under the current key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from statelog.errors import InvariantError
from statelog.state.encoding.deltas import StateCodec
from statelog.state.encoding.values import StructCodec
from statelog.state.kinds import Entry, MapDelta, StateKind, Values
from statelog.state.objects.bound_state import MISSING, BoundState, Cursor


class MapState(BoundState):
    """
    A map from tuples to tuples per key.

    Args:
        cursor: The current key.
        state_id: Position of the variable in the operator's schema.
        codec: Normalizes values.
        user_key_codec: Normalizes map keys.
        ttl_ms: Time to live of an entry in milliseconds, or None.
    """

    kind = StateKind.MAP

    def __init__(
        self,
        cursor: Cursor,
        state_id: int,
        codec: StructCodec,
        user_key_codec: StructCodec,
        ttl_ms: int | None = None,
    ) -> None:
        super().__init__(cursor, state_id, codec, ttl_ms)
        self._normalize_key = user_key_codec.normalize

    @classmethod
    def bound_to(cls, cursor: Cursor, state_id: int, codec: StateCodec) -> Self:
        """Return the object of a variable, given the variable's codec."""
        if codec.user_key is None:
            raise InvariantError("a map state has a map key")
        return cls(cursor, state_id, codec.value, codec.user_key, codec.descriptor.ttl_ms)

    def _stored(self, user_key: Values) -> Entry | None:
        delta: MapDelta | None = self._overlay.get(self._cursor.key)
        if delta is not None:
            value: Any = delta.entries.get(user_key, MISSING)
            if value is not MISSING:
                return value  # type: ignore[no-any-return]
            if delta.cleared:
                return None
        entries = self._base.get(self._cursor.key)
        return None if entries is None else entries.get(user_key)

    def _entry(self, value: Values) -> Entry:
        return self._normalize(value)

    def _shown(self, stored: Entry) -> Values | None:
        return stored if self._copy is None else self._copy(stored)

    def _entries(self) -> dict[Values, Entry]:
        delta: MapDelta | None = self._overlay.get(self._cursor.key)
        cleared = delta is not None and delta.cleared
        entries = {} if cleared else dict(self._base.get(self._cursor.key, {}))
        if delta is not None:
            for user_key, stored in delta.entries.items():
                entries.pop(user_key, None)
                if stored is not None:
                    entries[user_key] = stored
        return entries

    def _delta(self) -> MapDelta:
        delta: MapDelta | None = self._overlay.get(self._cursor.key)
        if delta is None:
            delta = self._overlay[self._cursor.key] = MapDelta()
        return delta

    def exists(self) -> bool:
        """Return whether there is at least one entry."""
        return next(self.iterator(), None) is not None

    def get(self, user_key: Values) -> Values | None:
        """Return the value under *user_key*, or None."""
        stored = self._stored(self._normalize_key(user_key))
        return None if stored is None else self._shown(stored)

    def contains(self, user_key: Values) -> bool:
        """Return whether there is a value under *user_key*."""
        return self.get(user_key) is not None

    def put(self, user_key: Values, value: Values) -> None:
        """Set the value under *user_key*."""
        entry = self._entry(value)
        key = self._normalize_key(user_key)
        entries = self._delta().entries
        entries.pop(key, None)
        entries[key] = entry

    def remove(self, user_key: Values) -> None:
        """Remove the value under *user_key*, if there is one."""
        self._delta().entries[self._normalize_key(user_key)] = None

    def iterator(self) -> Iterator[tuple[Values, Values]]:
        """Return an iterator over the entries, in the order of their last write."""
        pairs = []
        for user_key, stored in self._entries().items():
            value = self._shown(stored)
            if value is not None:
                pairs.append((user_key, value))
        return iter(pairs)

    def keys(self) -> Iterator[Values]:
        """Return an iterator over the map keys."""
        return iter([user_key for user_key, _ in self.iterator()])

    def values(self) -> Iterator[Values]:
        """Return an iterator over the map values."""
        return iter([value for _, value in self.iterator()])

    def clear(self) -> None:
        """Remove all entries."""
        self._overlay[self._cursor.key] = MapDelta(cleared=True)


class ExpiringMapState(MapState):
    """A `MapState` whose entries have a time to live each."""

    def _entry(self, value: Values) -> Entry:
        return self._expires(), self._normalize(value)

    def _shown(self, stored: Entry) -> Values | None:
        if not self._live(stored):
            return None
        return stored[1] if self._copy is None else self._copy(stored[1])
