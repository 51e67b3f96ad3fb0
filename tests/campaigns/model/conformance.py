"""
Replay a trace of the coordinator's requests against the model of the protocol that runs.

A trace has what happened to the store, in order, and which owner made the request.  For each owner the
checker keeps every state of a driver that explains the trace so far; an event that no transition
explains is an error.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from tests.campaigns.model.explorer import State
from tests.campaigns.model.history import CHECKPOINT, CLAIM, Content
from tests.campaigns.model.observers import initial
from tests.campaigns.model.sequence import (
    FREE,
    IDLE,
    LOOKING,
    NO_TAG,
    OWNER,
    Bounds,
    SequenceModel,
    is_garbage,
)

from statelog.errors import check
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import CompletedCheckpoint

_MANY = 10**9
_NO_ANSWER = ".*no answer, under way"
_SILENT = {
    "listed": re.compile(r"claim \d+: is (taken|this driver's)|crash"),
    "claim": re.compile(_NO_ANSWER),
    "put": re.compile(_NO_ANSWER),
    "reported": re.compile(r"commit \d+: read back, done"),
    "deleted": re.compile("list the tags.*"),
}
"""Steps before an event that change no object, and of which the trace has nothing; by its kind."""


@dataclass(frozen=True, slots=True)
class Event:
    """
    One event of a trace.

    Args:
        kind: "listed" (the entries), "asked" (whether an entry exists), "claim" (a claim is stored),
            "restored", "put" (a checkpoint is stored), "reported", "deleted".
        owner: Whose request it was.
        number: The entry; of "restored" the checkpoint that the owner continues, -1 for none.
        parent: Of "put": the checkpoint that it continues, -1 for none.
        attempt: Of "put": counts the attempts of the owner under this number.
        timeline: Of "claim" and "put": the timeline that the entry names; of "restored" that of the
            checkpoints that the owner will commit.
        ancestors: Of "put": the timelines before, each with its last checkpoint that this one continues.
    """

    kind: str
    owner: str
    number: int = -1
    parent: int = -1
    attempt: int = 0
    timeline: int = 0
    ancestors: tuple[tuple[int, int], ...] = ()


class Replay:
    """A trace as far as it is explained."""

    def __init__(self, numbers: int, stored: Mapping[int, Content] = MappingProxyType({})) -> None:
        entries = [FREE] * numbers
        for number, content in stored.items():
            entries[number] = (content, content, 0)
        self._entries: State = tuple(entries)
        bounds = Bounds(
            drivers=1,
            numbers=numbers,
            claims=_MANY,
            lost=_MANY,
            late=_MANY,
            tag=False,
            rewinds=_MANY,
        )
        self._model = SequenceModel(bounds)
        self._drivers: dict[str, frozenset[State]] = {}
        self._nonces: dict[str, int] = {}
        self._late: dict[str, frozenset[int]] = {}
        """Deletions that an owner had decided when it claimed again; they may come at any time."""

    @property
    def state(self) -> Hashable:
        """What decides which events may follow."""
        return self._entries, frozenset(self._drivers.items()), frozenset(self._late.items())

    def copy(self) -> Self:
        """Return a replay that goes on from here."""
        other = copy.copy(self)
        other._drivers, other._nonces = dict(self._drivers), dict(self._nonces)
        other._late = dict(self._late)
        return other

    def take(self, event: Event) -> bool:
        """Add an event; return False if the model has no transition for it."""
        after = frozenset(self._explained(event))
        self._drivers[event.owner] = after
        return bool(after)

    def _explained(self, event: Event) -> Iterator[State]:
        """Yield the drivers after an event; the store is brought to what the event says."""
        nonce = self._nonces.setdefault(event.owner, len(self._nonces))
        first, stored, reported = self._entries[event.number]
        may_be_late = event.number in self._late.get(event.owner, ())
        if event.kind == "deleted" and (may_be_late or is_garbage(first, stored)):
            self._replace(event.number, (first, (), reported))
            yield from self._drivers[event.owner]
            return
        pattern, stores = re.compile(_pattern(event)), set()
        for driver in self._closure(event, nonce):
            if event.kind == "asked" and driver[0] != LOOKING:
                yield driver  # for another purpose
                continue
            if event.kind == "listed":
                yield driver
            elif event.kind in ("restored", "reported"):
                if driver[0] == OWNER and driver[3] == event.number and _is_of(event, driver):
                    yield driver
                continue
            for label, state in self._model.transitions(self._state(driver, nonce)):
                if pattern.fullmatch(label) and self._fits(event, state, nonce):
                    stores.add(state[0])
                    yield state[2][0]
        for entries in stores:
            self._entries = entries

    def _replace(self, number: int, entry: State) -> None:
        self._entries = (*self._entries[:number], entry, *self._entries[number + 1 :])

    def _fits(self, event: Event, state: State, nonce: int) -> bool:
        content: tuple[object, ...] = (CLAIM, nonce, event.timeline)
        if event.kind == "put":
            history = (event.timeline, event.ancestors)
            content = (CHECKPOINT, nonce, event.attempt, event.parent, *history)
        elif event.kind != "claim":
            return True
        return bool(state[0][event.number][1] == content)

    def _closure(self, event: Event, nonce: int) -> set[State]:
        """Return what the driver may be after silent steps."""
        silent = _SILENT.get(event.kind)
        reached: set[State] = set()
        waiting = [*self._drivers.get(event.owner, frozenset({(IDLE,)}))]
        while waiting:
            driver = waiting.pop()
            if driver in reached:
                continue
            reached.add(driver)
            if silent is None:
                continue
            for label, state in self._model.transitions(self._state(driver, nonce)):
                if silent.fullmatch(label):
                    if label == "crash" and driver[0] == OWNER:
                        decided = self._late.get(event.owner, frozenset())
                        self._late[event.owner] = decided.union(driver[6], driver[7])
                    waiting.append(state[2][0])
        return reached

    def _state(self, driver: State, nonce: int) -> State:
        return (self._entries, (), (driver,), (NO_TAG, 0), (nonce, 0, 0, 0), "", initial())


def check_trace(
    events: Iterable[Event], stored: Mapping[int, Content] = MappingProxyType({})
) -> int:
    """Check a trace; return the number of its events."""
    trace = tuple(events)
    replay = Replay(max(numbers_of(trace), max(stored, default=0) + 3), stored)
    for at, event in enumerate(trace):
        check(replay.take(event), f"event {at} is no step of the model: {event}")
    return len(trace)


def _is_of(event: Event, driver: State) -> bool:
    """Return whether an owner commits on the timeline of an event; "reported" does not say it."""
    return event.kind == "reported" or bool(driver[9][0] == event.timeline)


def attempt_number(attempts: list[str], attempt: str) -> int:
    """Return which attempt of an owner under a number this one is; a new one joins *attempts*."""
    if attempt not in attempts:
        attempts.append(attempt)
    return attempts.index(attempt)


def event_of(entry: CompletedCheckpoint | ClaimRecord) -> dict[str, Any]:
    """Return the event in which an entry is stored, without its owner, number and attempt."""
    if isinstance(entry, ClaimRecord):
        return {"kind": "claim", "timeline": entry.timeline}
    return {
        "kind": "put",
        "parent": -1 if entry.parent_id is None else entry.parent_id,
        "timeline": entry.timeline.number,
        "ancestors": tuple((end.number, end.last_id) for end in entry.timeline.ancestors),
    }


def numbers_of(events: Iterable[Event]) -> int:
    """Return how many numbers a model of these events needs."""
    return max((event.number for event in events), default=0) + 3


def _pattern(event: Event) -> str:
    """Return an expression for the labels of the steps that an event may be."""
    match event.kind:
        case "listed":
            return r"list: .*|own from .*"
        case "asked":
            return f"ask for {event.number}: .*"
        case "claim":
            return f"claim {event.number}: done.*"
        case "put":
            return f"commit {event.number}: done.*"
        case "deleted":
            return f"delete {event.number}"
    return ""
