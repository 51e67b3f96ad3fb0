"""State objects of any kind, bound to their variables as the handle of a processor binds them."""

from typing import Any

from statelog.state import objects
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.kinds import StateKind


def bind(codec: OperatorCodec, cursor: objects.Cursor, state_id: int) -> Any:
    """Return the state object of a variable."""
    state = codec.states[state_id]
    kind, ttl_ms = state.descriptor.kind, state.descriptor.ttl_ms
    if kind is StateKind.TIMER:
        return objects.Timers(cursor, state_id, state.value)
    prefix = "" if ttl_ms is None else "Expiring"
    maker = getattr(objects, f"{prefix}{kind.value.capitalize()}State")
    codecs = [state.value] if state.user_key is None else [state.value, state.user_key]
    return maker(cursor, state_id, *codecs, ttl_ms)


def bind_all(codec: OperatorCodec, cursor: objects.Cursor) -> dict[str, Any]:
    """Return the state objects of an operator by the names of their variables."""
    names = [state.descriptor.name for state in codec.states]
    return {name: bind(codec, cursor, state_id) for state_id, name in enumerate(names)}


def content(state: Any) -> Any:
    """Return what a state object has for the key of its cursor."""
    match state:
        case objects.Timers():
            return state.times()
        case objects.MapState():
            return list(state.iterator())
        case objects.ListState():
            return list(state.get())
        case _:
            return state.get()
