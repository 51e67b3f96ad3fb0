"""
The state objects that a processor uses, and the cursor that they share.

The *cursor* holds the current key, and the tables and overlay of its key group.  A read looks into
the overlay first, then into the table; a write changes the overlay only.  Elements are tuples, and
behave as copies.
Source: Flink's ValueState, ListState, MapState, ReducingState, AggregatingState and
AggregateFunction; the rules of time to live are Spark's (expired values are hidden at once, a write
restarts the time).
Deviations: a map's entries are in the order of their last write, in Spark in the order of their
encoded keys; None is rejected where Flink treats it as a clear.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NoReturn, Protocol, Self

from statelog.errors import InvariantError, UsageError
from statelog.state.encoding.deltas import StateCodec
from statelog.state.encoding.values import MapKeyCodec, StructCodec
from statelog.state.heap import KeyGroupState, Overlay
from statelog.state.kinds import Deltas, Entry, Key, ListDelta, MapDelta, StateKind, Table, Values
from statelog.state.kinds.timer import holds_time

MISSING: Final[Any] = object()
"""The result of a look-up for a key that is not in an overlay; None means removed."""

ReduceFunction = Callable[[Any, Any], Values]
"""Combines two values into one; must be associative."""


class _NoKey(Table):
    """Replaces the table and the overlay without a current key; rejects all access."""

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise UsageError(
            "state belongs to a key: read and write it while rows or timers are handled, not in "
            "init() or close()"
        )

    get = setdefault = __getitem__ = __setitem__ = _refuse


_NO_KEY = _NoKey()


class Cursor:
    """The current key, which all state objects of a processor share."""

    __slots__ = ("_bound", "group", "key", "now_ms", "overlay")

    def __init__(self, now_ms: int = -1) -> None:
        self.key: Key = ()
        self.now_ms = now_ms
        self.group: KeyGroupState | None = None
        self.overlay: Overlay = []
        self._bound: list[BoundState] = []

    def bind(self, state: BoundState) -> None:
        """Attach *state* to this cursor."""
        self._bound.append(state)
        if self.group is not None:
            state.enter(self.group, self.overlay)

    def enter(self, group: KeyGroupState, overlay: Overlay) -> None:
        """Move to a key group; the caller sets `key` afterwards."""
        self.group = group
        self.overlay = overlay
        for state in self._bound:
            state.enter(group, overlay)

    def leave(self) -> None:
        """Reject reads and writes until `enter` is called; until then, no key is current."""
        self.group = None
        self.overlay = []
        for state in self._bound:
            state.leave()


class BoundState:
    """The base class of all state objects: the table and overlay of the current key group."""

    kind: ClassVar[StateKind]

    def __init__(
        self, cursor: Cursor, state_id: int, codec: StructCodec, ttl_ms: int | None = None
    ) -> None:
        self._cursor = cursor
        self._state_id = state_id
        self._normalize: Callable[[Iterable[object]], Values] = codec.normalize
        # A processor may change a list or dict it was given; the tables must not see that.
        self._copy = codec.normalize if codec.is_mutable else None
        self._ttl_ms = ttl_ms
        self._base: Table = _NO_KEY
        self._overlay: Deltas = _NO_KEY
        cursor.bind(self)

    @classmethod
    def bound_to(cls, cursor: Cursor, state_id: int, codec: StateCodec) -> Self:
        """Create the state object of a variable from its codec."""
        return cls(cursor, state_id, codec.value, codec.descriptor.ttl_ms)

    def enter(self, group: KeyGroupState, overlay: Overlay) -> None:
        """Use the table of *group*, with *overlay* on top."""
        self._base = group.tables[self._state_id]
        self._overlay = overlay[self._state_id]

    def leave(self) -> None:
        """Use no table until `enter` is called."""
        self._base = self._overlay = _NO_KEY

    def _expires(self) -> int:
        return self._cursor.now_ms + (self._ttl_ms or 0)

    def _live(self, stored: Entry) -> bool:
        expires_ms: int = stored[0]
        return expires_ms > self._cursor.now_ms


class ValueState(BoundState):
    """State with one tuple per key."""

    kind = StateKind.VALUE

    def get(self) -> Values | None:
        """Return the value, or None if the key does not have one."""
        key = self._cursor.key
        # None in the overlay is a removal in this micro-batch, so it must not fall through to the
        # table.
        value = self._overlay.get(key, MISSING)
        if value is MISSING:
            value = self._base.get(key)
        return value if value is None or self._copy is None else self._copy(value)

    def exists(self) -> bool:
        """Return whether the key has a value."""
        return self.get() is not None

    def update(self, newValue: Values) -> None:  # noqa: N803  # Spark's name: it may be in a call
        """Set the value; raises `UsageError` if it does not fit the schema."""
        if newValue is None:
            raise UsageError(
                "a value state requires a tuple, not None; to remove the value, use clear()"
            )
        self._overlay[self._cursor.key] = self._normalize(newValue)

    def clear(self) -> None:
        """Remove the value."""
        self._overlay[self._cursor.key] = None


class ExpiringValueState(ValueState):
    """A `ValueState` with a time to live."""

    def get(self) -> Values | None:
        """Return the value, or None if the key does not have one or it has expired."""
        cursor = self._cursor
        stored = self._overlay.get(cursor.key, MISSING)
        if stored is MISSING:
            stored = self._base.get(cursor.key)
        if stored is None or stored[0] <= cursor.now_ms:
            return None
        return stored[1] if self._copy is None else self._copy(stored[1])

    def update(self, newValue: Values) -> None:  # noqa: N803  # Spark's name
        """Set the value and restart its time to live."""
        if newValue is None:
            raise UsageError(
                "a value state requires a tuple, not None; to remove the value, use clear()"
            )
        self._overlay[self._cursor.key] = (self._expires(), self._normalize(newValue))


class ListState(BoundState):
    """State with a list of tuples per key."""

    kind = StateKind.LIST

    def _stored(self) -> list[Entry]:
        key = self._cursor.key
        delta: ListDelta | None = self._overlay.get(key)
        if delta is None:
            return list(self._base.get(key, ()))
        return list(delta.tail) if delta.replaced else [*self._base.get(key, ()), *delta.tail]

    def _elements(self, values: Iterable[Values]) -> list[Entry]:
        return list(map(self._normalize, values))

    def get(self) -> Iterator[Values]:
        """Return an iterator over the current elements."""
        elements = self._stored()
        return iter(elements) if self._copy is None else map(self._copy, elements)

    def exists(self) -> bool:
        """Return whether the list has at least one element."""
        return next(self.get(), None) is not None

    def put(self, newState: Iterable[Values]) -> None:  # noqa: N803  # Spark's name
        """Replace the list; it stays unchanged if a value does not fit the schema."""
        # A value that does not fit raises here, before the overlay is changed.
        self._overlay[self._cursor.key] = ListDelta(self._elements(newState), replaced=True)

    def append(self, value: Values) -> None:
        """Append one element."""
        self.append_all((value,))

    def append_all(self, values: Iterable[Values]) -> None:
        """Append several elements; the list stays unchanged if a value does not fit the schema."""
        elements = self._elements(values)
        key = self._cursor.key
        delta: ListDelta | None = self._overlay.get(key)
        if delta is None:
            self._overlay[key] = ListDelta(elements)
        else:
            delta.tail += elements

    def clear(self) -> None:
        """Remove all elements."""
        self._overlay[self._cursor.key] = ListDelta([], replaced=True)


class ExpiringListState(ListState):
    """A `ListState` in which each element has its own time to live."""

    def _elements(self, values: Iterable[Values]) -> list[Entry]:
        expires_ms = self._expires()
        return [(expires_ms, self._normalize(value)) for value in values]

    def get(self) -> Iterator[Values]:
        """Return an iterator over the elements that have not expired."""
        elements = [stored[1] for stored in self._stored() if self._live(stored)]
        return iter(elements) if self._copy is None else map(self._copy, elements)


class MapState(BoundState):
    """State with a map from tuples to tuples per key."""

    kind = StateKind.MAP

    def __init__(
        self,
        cursor: Cursor,
        state_id: int,
        codec: StructCodec,
        user_key_codec: MapKeyCodec,
        ttl_ms: int | None = None,
    ) -> None:
        super().__init__(cursor, state_id, codec, ttl_ms)
        self._normalize_key = user_key_codec.normalizer
        self._shows_what_it_stores = self._copy is None and ttl_ms is None

    @classmethod
    def bound_to(cls, cursor: Cursor, state_id: int, codec: StateCodec) -> Self:
        """Create the state object of a variable from its codec."""
        if codec.user_key is None:
            raise InvariantError("a map state requires a map key")
        return cls(cursor, state_id, codec.value, codec.user_key, codec.descriptor.ttl_ms)

    def _stored(self, user_key: Values) -> Entry | None:
        key = self._cursor.key
        delta: MapDelta | None = self._overlay.get(key)
        if delta is not None:
            value: Entry | None = delta.entries.get(user_key, MISSING)
            if value is not MISSING:
                return value
            if delta.cleared:
                return None
        entries = self._base.get(key)
        return None if entries is None else entries.get(user_key)

    def _shown(self, stored: Entry) -> Values | None:
        return stored if self._copy is None else self._copy(stored)

    def _entries(self) -> dict[Values, Entry]:
        delta: MapDelta | None = self._overlay.get(self._cursor.key)
        cleared = delta is not None and delta.cleared
        entries = {} if cleared else dict(self._base.get(self._cursor.key, {}))
        if delta is not None:
            # As `MapKind.fold` does it, so that the order is the same before and after the commit.
            for user_key, stored in delta.entries.items():
                entries.pop(user_key, None)
                if stored is not None:
                    entries[user_key] = stored
        return entries

    def exists(self) -> bool:
        """Return whether the map has at least one entry."""
        return next(self.iterator(), None) is not None

    def get(self, user_key: Values) -> Values | None:
        """Return the value for *user_key*, or None."""
        stored = self._stored(self._normalize_key(user_key))
        if stored is None or self._shows_what_it_stores:
            return stored
        return self._shown(stored)

    def contains(self, user_key: Values) -> bool:
        """Return whether the map has a value for *user_key*."""
        return self.get(user_key) is not None

    def put(self, user_key: Values, value: Values) -> None:
        """Set the value for *user_key*."""
        entry = self._normalize(value)
        if self._ttl_ms is not None:
            entry = self._expires(), entry
        map_key = self._normalize_key(user_key)
        key = self._cursor.key
        delta: MapDelta | None = self._overlay.get(key)
        if delta is None:
            delta = self._overlay[key] = MapDelta()
        entries = delta.entries
        # Last written, last in the order.
        entries.pop(map_key, None)
        entries[map_key] = entry

    def remove(self, user_key: Values) -> None:
        """Remove the value for *user_key*, if there is one."""
        delta: MapDelta = self._overlay.setdefault(self._cursor.key, MapDelta())
        delta.entries[self._normalize_key(user_key)] = None

    def iterator(self) -> Iterator[tuple[Values, Values]]:
        """Return an iterator over the entries, in the order in which they were last written."""
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
    """A `MapState` in which each entry has its own time to live."""

    def _shown(self, stored: Entry) -> Values | None:
        if not self._live(stored):
            return None
        return stored[1] if self._copy is None else self._copy(stored[1])


class Timers(BoundState):
    """
    The timers of each key: a set of times in milliseconds.

    The overlay holds a key's times as an ascending list, made once per key and micro-batch and
    changed in place, so that a key with thousands of timers is not copied at every call.
    """

    kind = StateKind.TIMER

    def _held(self) -> Sequence[int]:
        times: Sequence[int] | None = self._overlay.get(self._cursor.key)
        return self._base.get(self._cursor.key, ()) if times is None else times

    def _own(self) -> list[int]:
        key = self._cursor.key
        times: list[int] | None = self._overlay.get(key)
        if times is None:
            times = self._overlay[key] = list(self._base.get(key, ()))
        return times

    def register(self, time_ms: int) -> None:
        """Add a timer, unless the key already has one for the same time."""
        # The usual case, a timer later than the others of the key, is without calls.
        key = self._cursor.key
        changed: list[int] | None = self._overlay.get(key)
        times: Sequence[int] = self._base.get(key, ()) if changed is None else changed
        if times and times[-1] >= time_ms:
            if not holds_time(times, time_ms):
                bisect.insort(self._own(), time_ms)
        elif changed is None:
            self._overlay[key] = [*times, time_ms]
        else:
            changed.append(time_ms)

    def delete(self, time_ms: int) -> None:
        """Remove a timer, if it is set."""
        # The usual case, the first timer of the key, is without calls.
        key = self._cursor.key
        changed: list[int] | None = self._overlay.get(key)
        times: Sequence[int] = self._base.get(key, ()) if changed is None else changed
        if times and times[0] == time_ms:
            if changed is None:
                self._overlay[key] = list(times[1:])
            else:
                del changed[0]
        elif holds_time(times, time_ms):
            del self._own()[bisect.bisect_left(times, time_ms)]

    def contains(self, time_ms: int) -> bool:
        """Return whether the current key has a timer at *time_ms*."""
        return holds_time(self._held(), time_ms)

    def times(self) -> tuple[int, ...]:
        """Return the timers of the current key in ascending order."""
        return tuple(self._held())


class AggregateFunction(Protocol):
    """
    Aggregates values in an accumulator, which is a tuple that matches the state's schema.

    No method may keep or change its arguments; each returns a new accumulator or result.
    Source: Flink's AggregateFunction.
    """

    def create_accumulator(self) -> Values:
        """Return the initial accumulator."""
        ...

    def add(self, value: Any, accumulator: Any) -> Values:
        """Return *accumulator* with *value* added."""
        ...

    def get_result(self, accumulator: Any) -> object:
        """Compute the result from *accumulator*."""
        ...

    def merge(self, first: Any, second: Any) -> Values:
        """Merge two accumulators into one."""
        ...


class ReducingState:
    """State with one value per key: the reduction of all added values, stored in a `ValueState`."""

    def __init__(self, value: ValueState, reduce: ReduceFunction) -> None:
        self._value = value
        self._reduce = reduce

    def add(self, value: Values) -> None:
        """Combine *value* with the stored value; raises `UsageError` if it does not fit."""
        if value is None:
            raise UsageError(
                "a reducing state requires a tuple, not None; to remove the value, use clear()"
            )
        before = self._value.get()
        self._value.update(value if before is None else self._reduce(before, value))

    def get(self) -> tuple[Any, ...] | None:
        """Return the reduced value, or None if no value has been added."""
        return self._value.get()

    def exists(self) -> bool:
        """Return whether any value has been added."""
        return self._value.exists()

    def clear(self) -> None:
        """Remove the stored value."""
        self._value.clear()


class AggregatingState:
    """State with one accumulator per key, stored in a `ValueState`, and a computed result."""

    def __init__(self, value: ValueState, function: AggregateFunction) -> None:
        self._value = value
        self._function = function

    def add(self, value: object) -> None:
        """Add *value*; raises `UsageError` if the new accumulator does not fit the schema."""
        before = self._value.get()
        if before is None:
            before = self._function.create_accumulator()
        self._value.update(self._function.add(value, before))

    def merge(self, accumulator: Values) -> None:
        """Merge *accumulator* into the stored accumulator."""
        before = self._value.get()
        merged = accumulator if before is None else self._function.merge(before, accumulator)
        self._value.update(merged)

    def get(self) -> Any:
        """Return the result, or None if no value has been added."""
        accumulator = self._value.get()
        return None if accumulator is None else self._function.get_result(accumulator)

    def accumulator(self) -> Values | None:
        """Return the accumulator, or None if no value has been added."""
        return self._value.get()

    def exists(self) -> bool:
        """Return whether any value has been added."""
        return self._value.exists()

    def clear(self) -> None:
        """Remove the stored accumulator."""
        self._value.clear()
