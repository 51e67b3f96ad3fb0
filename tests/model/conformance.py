"""
Replay a trace of the coordinator's requests against the model of the protocol that runs.

A trace has what happened to the store, in order, and which owner made the request.  For each owner the
checker keeps every state of a driver that explains the trace so far; an event that no transition
explains is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.model.explorer import State
from tests.model.sequence import Bounds
from tests.model.two_numberings import (
    FREE,
    IDLE,
    NO_CLAIM,
    NO_TAG,
    OWNER,
    READY,
    TwoNumberingsModel,
)

from statelog.errors import check

_MANY = 10**9
_NO_ANSWER = ".*no answer, under way"
_SILENT = {
    "claim": re.compile(f"list claims.*|{_NO_ANSWER}"),
    "look": re.compile(f"skip id.*|decline.*|{_NO_ANSWER}"),
    "deleted": re.compile("list the tags.*"),
}
"""Steps before an event that change no object, and of which the trace has nothing; by its kind."""


@dataclass(frozen=True, slots=True)
class Event:
    """
    One event of a trace.

    Args:
        kind: "claim" (a claim is stored), "restored", "look" (for the claim after the owner's), "put" (a
            checkpoint is stored), "reported", "deleted".
        owner: Whose request it was.
        number: Epoch or checkpoint; of "restored" the checkpoint that the owner continues, -1 for none.
        epoch: Of "restored" and "put": the epoch of the owner, counted from 0.
        parent: Of "put": the checkpoint that it continues, -1 for none.
        attempt: Of "put": counts the attempts of the owner under this id.
        exists: Of "look" and "restored": whether the claim after the owner's exists.
    """

    kind: str
    owner: str
    number: int
    epoch: int = 0
    parent: int = -1
    attempt: int = 0
    exists: bool = False


class Conformance:
    """
    Checks a trace, event by event.

    Args:
        events: The trace; its highest numbers bound the model.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = tuple(events)
        highest = max((event.number for event in self._events), default=0)
        size = highest + 3
        self._claims = (NO_CLAIM,) * (size + 1)
        self._entries = (FREE,) * size
        bounds = Bounds(drivers=1, numbers=size, claims=_MANY, lost=_MANY, late=_MANY, tag=False)
        self._model = TwoNumberingsModel(bounds)
        self._drivers: dict[str, frozenset[State]] = {}
        self._nonces: dict[str, int] = {}

    def run(self) -> int:
        """
        Check the trace; return the number of its events.

        Raises:
            InvariantError: The model has no transition for an event.
        """
        for at, event in enumerate(self._events):
            after = frozenset(self._explained(event))
            check(bool(after), f"event {at} is no step of the model: {event}")
            self._drivers[event.owner] = after
        return len(self._events)

    def _explained(self, event: Event) -> Iterator[State]:
        """Yield the drivers after an event; the store is brought to what the event says."""
        if event.kind == "look":
            is_claimed = self._claims[event.number] != NO_CLAIM
            check(is_claimed == event.exists, f"{event} contradicts the claims of the trace")
        nonce = self._nonces.setdefault(event.owner, len(self._nonces))
        pattern, stores = re.compile(_pattern(event)), set()
        for driver in self._closure(event, nonce):
            if event.kind == "look":
                yield driver  # a look of the clean-up, after which the driver goes on as before
            if event.kind == "restored" and event.exists:
                yield (IDLE,)  # overtaken while it read: it can look, and must not put anything
                continue
            if event.kind == "reported":
                if driver[0] == OWNER and (driver[2], driver[4]) == (READY, event.number):
                    yield driver
                continue
            for label, state in self._model.transitions(
                self._state(_idle_for(event, driver), nonce)
            ):
                if pattern.fullmatch(label) and self._fits(event, state):
                    stores.add(state[:2])
                    yield _stage_of(driver, state[3][0]) if event.kind == "deleted" else state[3][0]
        for claims, entries in stores:
            self._claims, self._entries = claims, entries

    def _fits(self, event: Event, state: State) -> bool:
        if event.kind != "put":
            return True
        content = (event.epoch, event.attempt, event.parent)
        return bool(state[1][event.number][1] == content)

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
            for label, state in self._model.transitions(
                self._state(_idle_for(event, driver), nonce)
            ):
                if silent.fullmatch(label):
                    after = state[3][0]
                    waiting.append(_stage_of(driver, after) if event.kind == "deleted" else after)
        return reached

    def _state(self, driver: State, nonce: int) -> State:
        return (self._claims, self._entries, (), (driver,), (NO_TAG, 0), (nonce, 0, 0))


def _idle_for(event: Event, driver: State) -> State:
    """Return the driver as its clean-up sees it, whose requests do not wait for a commit."""
    if event.kind != "deleted" or driver[0] != OWNER:
        return driver
    return (*driver[:2], READY, *driver[3:])


def _stage_of(driver: State, after: State) -> State:
    """Return *after* in the stage in which *driver* was."""
    return (*after[:2], *driver[2:3], *after[3:]) if driver[0] == after[0] == OWNER else after


def _pattern(event: Event) -> str:
    """Return an expression for the labels of the steps that an event may be."""
    match event.kind:
        case "claim":
            return f"claim {event.number}: done.*"
        case "restored":
            return f"own epoch {event.epoch}, restore {event.number}"
        case "look":
            outcome = "fenced" if event.exists else "(not fenced|committed)"
            return rf"look (before|after) \d+: {outcome}"
        case "put":
            return f"put {event.number}: done.*"
        case "deleted":
            return f"delete {event.number}"
    return ""
