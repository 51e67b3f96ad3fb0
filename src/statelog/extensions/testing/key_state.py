"""
The state of one key as a test writes and reads it: tuples, lists of tuples, dicts of tuples.

It is converted to the cells of the tables, and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

import pyarrow as pa

from statelog.errors import UsageError
from statelog.extensions.recordings.format import Cells
from statelog.spark.rows.spark_versions import WrongArgumentError
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.kinds import Entry, FromPython, Values
from statelog.state.schema import TIMERS_NAME


def type_of_key(key: object) -> pa.DataType:
    """
    Return the type of a key.

    For None that of text, though any type would do.
    """
    if key is None:
        return pa.string()
    if type(key) is tuple:
        return pa.struct([(f"_{place}", type_of_key(part)) for place, part in enumerate(key, 1)])
    kind = pa.infer_type([key])
    # As in a query, a point in time is kept in UTC, whatever the zone of the first key.
    return pa.timestamp("us", "UTC") if getattr(kind, "tz", None) else kind


def cells_given(
    codec: OperatorCodec, state: Mapping[str, object], expires: Mapping[str, object], now_ms: int
) -> Cells:
    """Return the cells of a key whose state is given."""
    cells: Cells = {}
    for name, value in state.items():
        state_id = state_id_of(codec, name)
        cell = _cell(codec.states[state_id], value, expires.get(name), now_ms)
        if cell:
            cells[state_id] = cell
    return cells


def timers_given(codec: OperatorCodec, timers: Sequence[int]) -> Cells:
    """Return the cell of timers; raises `UsageError` where the time mode has none."""
    try:
        state_id = codec.schema.state_id(TIMERS_NAME)
    except KeyError:
        raise UsageError(
            "timers need the time mode ProcessingTime or EventTime; this tester has None"
        ) from None
    return {state_id: tuple(sorted(set(timers)))}


def state_id_of(codec: OperatorCodec, name: str) -> int:
    """Return the id of a variable; raises `WrongArgumentError` if `init` does not create it."""
    declared = [codec.schema.states[at].name for at in codec.live]
    names = [each for each in declared if each != TIMERS_NAME]
    if name not in names:
        created = ", ".join(names) or "none"
        raise WrongArgumentError(f"init creates no state {name!r}; it creates {created}")
    return codec.schema.state_id(name)


def _cell(state: StateCodec, value: object, expires: object, now_ms: int) -> object:
    ttl_ms = state.descriptor.ttl_ms

    def entry(given: Iterable[object], at: object) -> tuple[object, ...]:
        stored: tuple[object, ...] = state.value.normalize(given)
        return stored if ttl_ms is None else (now_ms + ttl_ms if at is None else at, stored)

    if value is None:
        return None

    def user_key(given: Iterable[object]) -> Values:
        if state.user_key is None:
            raise UsageError(f"state {state.descriptor.name!r} has no map keys")
        normalized: Values = state.user_key.normalize(given)
        return normalized

    return state.kind.from_python(
        value, FromPython(state.descriptor.name, entry, user_key), expires
    )


def state_shown(codec: OperatorCodec, cells: Cells, now_ms: int) -> dict[str, object]:
    """Return the state in *cells* that has not expired by *now_ms*; timers are left out."""
    return _shown(codec, cells, now_ms, at=1)


def expiry_shown(codec: OperatorCodec, cells: Cells, now_ms: int) -> dict[str, object]:
    """Return when the state in *cells* expires, of variables with a time to live."""
    expiring = {
        state_id: cell for state_id, cell in cells.items() if codec.states[state_id].expires
    }
    return _shown(codec, expiring, now_ms, at=0)


def _shown(codec: OperatorCodec, cells: Cells, now_ms: int, *, at: int) -> dict[str, object]:
    """Return variables with their entries; of an expiring entry the part *at*."""
    texts: dict[str, object] = {}
    for state_id in codec.live:
        state = codec.states[state_id]
        cell = cells.get(state_id)
        if cell and state.expires:
            cell = state.kind.live_cell(cell, now_ms)
        if not cell or state.descriptor.name == TIMERS_NAME:
            continue
        entry = itemgetter(at) if state.expires else _whole
        texts[state.descriptor.name] = state.kind.to_python(cell, entry)
    return texts


def _whole(entry: Entry) -> Entry:
    return entry


def timers_shown(codec: OperatorCodec, cells: Cells) -> list[int]:
    """Return the timers in *cells*, ascending."""
    for state_id in codec.live:
        if codec.schema.states[state_id].name == TIMERS_NAME:
            return list(cells.get(state_id, ()))
    return []
