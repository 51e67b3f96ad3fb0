"""List state: elements in the order of their appends, under the current key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from statelog.state.kinds import Entry, ListDelta, StateKind, Values
from statelog.state.objects.bound_state import BoundState


class ListState(BoundState):
    """A list of tuples per key."""

    kind = StateKind.LIST

    def _delta(self) -> ListDelta:
        key = self._cursor.key
        delta: ListDelta | None = self._overlay.get(key)
        if delta is None:
            delta = self._overlay[key] = ListDelta()
        return delta

    def _stored(self) -> list[Entry]:
        key = self._cursor.key
        delta: ListDelta | None = self._overlay.get(key)
        if delta is None:
            return list(self._base.get(key, ()))
        return list(delta.tail) if delta.replaced else [*self._base.get(key, ()), *delta.tail]

    def _element(self, value: Values) -> Entry:
        return self._normalize(value)

    def get(self) -> Iterator[Values]:
        """Return an iterator over the elements as they are now."""
        elements = self._stored()
        return iter(elements) if self._copy is None else map(self._copy, elements)

    def exists(self) -> bool:
        """Return whether there is at least one element."""
        return next(self.get(), None) is not None

    def put(self, newState: Iterable[Values]) -> None:  # noqa: N803  # Spark's name
        """Replace the list; nothing changes if a value does not fit the schema."""
        delta = ListDelta(replaced=True)
        delta.tail = [self._element(value) for value in newState]
        self._overlay[self._cursor.key] = delta

    def append(self, value: Values) -> None:
        """Append one element."""
        self._delta().tail.append(self._element(value))

    def append_all(self, values: Iterable[Values]) -> None:
        """Append several elements; nothing changes if one does not fit the schema."""
        elements = [self._element(value) for value in values]
        self._delta().tail.extend(elements)

    def clear(self) -> None:
        """Remove all elements."""
        self._overlay[self._cursor.key] = ListDelta(replaced=True)


class ExpiringListState(ListState):
    """A `ListState` whose elements have a time to live each."""

    def _element(self, value: Values) -> Entry:
        return self._expires(), self._normalize(value)

    def get(self) -> Iterator[Values]:
        """Return an iterator over the elements that have not expired."""
        elements = [stored[1] for stored in self._stored() if self._live(stored)]
        return iter(elements) if self._copy is None else map(self._copy, elements)
