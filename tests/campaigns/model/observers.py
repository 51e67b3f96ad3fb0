"""
What remembers checkpoints outside of the location: a reader, and a sink with a query's rows.

A reader remembers timeline and number of the checkpoint that it read last.  A sink remembers timeline and
micro-batch of its newest rows; the model notes all rows too, to know the truth.  The number of a
micro-batch is that of the checkpoints before it, so after a rewind the same number has other rows.
An owner delivers its base when it starts, unless it went back to an older one: then Spark has noted that
delivery.  The log of Spark is not in the model otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.campaigns.model.explorer import State
from tests.campaigns.model.history import ancestors, checkpoints, has, newest_ever

_REFUSED = (-1, -1)


def initial() -> State:
    """Return observers that remember nothing: (reader, newest rows of the sink, all its rows)."""
    return ((), (), ())


def is_ancestor(state: State, number: int) -> bool:
    """Return whether a checkpoint is the newest one, or one that it continues."""
    return number in ancestors(state, newest_ever(state))


def reads(state: State, compares_timelines: bool) -> Iterator[tuple[str, State]]:
    """Yield the step of a reader: it reads the newest checkpoint, and goes on from there later."""
    present = checkpoints(state)
    remembered, *sink = state[6]
    if not present or remembered == _REFUSED:
        return
    number = present[-1]
    newest = state[0][number][1]
    position = (newest[4], number)
    if not remembered:
        yield f"the reader reads {number}", (*state[:6], (position, *sink))
        return
    if remembered == position:
        return
    timeline, before = remembered
    accepts = has(newest, number, before, timeline) if compares_timelines else before <= number
    is_right = accepts == is_ancestor(state, before)
    fault = state[5] or ("" if is_right else "reader")
    after, text = (position, "goes on to") if accepts else (_REFUSED, "refuses")
    yield f"the reader of {before} {text} {number}", (*state[:5], fault, (after, *sink))


def delivered(
    state: State,
    base: int,
    run_timeline: int,
    *,
    is_newest: bool,
    compares_timelines: bool,
    fences: bool,
) -> tuple[str, bool, State]:
    """Let an owner deliver the rows of its base, as `DeliveredBatch.is_written` decides."""
    reader, last, rows = state[6]
    batch, timeline = len(ancestors(state, base)), state[0][base][0][4]
    answer = _answer(last, (timeline, batch), run_timeline, compares_timelines, fences)
    label = f"deliver batch {batch} of timeline {timeline}: {answer}"
    batch_key = (timeline, batch)
    fault = state[5]
    if answer == "written before" and batch_key not in rows:
        fault = fault or "skipped"
    if answer == "done":
        if batch_key in rows:
            fault = fault or "rows twice"
        elif last and last[0] > run_timeline:
            fault = fault or "rows of the past"
        after = (reader, batch_key, tuple(sorted({*rows, batch_key})))
        return label, True, (*state[:5], fault, after)
    if is_newest and answer != "written before":
        fault = fault or "refused"
    return label, answer == "written before", (*state[:5], fault, state[6])


def _answer(
    last: State,
    batch_key: tuple[int, int],
    run_timeline: int,
    compares_timelines: bool,
    fences: bool,
) -> str:
    timeline, batch = batch_key
    if not last:
        return "done"
    last_timeline, last_batch = last
    if not compares_timelines:
        return "written before" if last_batch >= batch else "done"
    if fences and last_timeline > run_timeline:
        return "fenced"
    if last_timeline != timeline or last_batch < batch:
        return "done"
    if last_batch == batch or run_timeline > timeline:
        return "written before"
    return "gap"
