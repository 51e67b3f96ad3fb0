"""
Check a journal of requests of several processes against the model of the protocol.

The journal of `tests.campaigns.chaos.request_log` says when a request began and when it was answered.  Between the
two it took effect.  The checker looks for an order of these moments in which each event is a step of the model.
A request without an answer may take effect at any time after it began, or never.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, permutations
from pathlib import Path
from typing import Any

from tests.campaigns.model.conformance import Event, Replay, attempt_number, numbers_of

from statelog.errors import InvariantError

_TOGETHER_MAX = 3
"""How many requests without an answer yet may have taken effect between two lines of the journal."""
_CHANGES = ("claim", "put", "deleted")
"""Kinds of events that happen, or not, though nobody gets the answer."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An event of one request; two requests may have equal events."""

    number: int
    event: Event


@dataclass(frozen=True, slots=True)
class Line:
    """
    One line of the journal of a location.

    Args:
        began: The events that a request may cause from here on.
        ended: Those that had happened at the latest here, or must not happen after all.
        happened: Whether the events of `ended` did happen.
    """

    began: tuple[Effect, ...] = ()
    ended: tuple[Effect, ...] = ()
    happened: bool = True


def check_journal(journal: Path) -> int:
    """Check what processes noted of their requests; return the number of events."""
    entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return sum(map(check_location, locations_of(entries).values()))


def locations_of(entries: list[Mapping[str, Any]]) -> dict[str, list[Line]]:
    """Return the lines of a journal for each location."""
    answered = {entry["ended"] for entry in entries if entry.get("outcome", "unknown") != "unknown"}
    lines: dict[str, list[Line]] = defaultdict(list)
    requests: dict[str, tuple[str, tuple[Effect, ...]]] = {}
    attempts: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    numbers = count()
    for entry in entries:
        if "ended" in entry:
            location, effects = requests[entry["ended"]]
            if entry["ended"] in answered:
                lines[location].append(Line((), effects, entry["outcome"] == "done"))
            continue
        location, owner = entry["location"], entry["owner"]
        effects = ()
        for fields in map(dict, entry.get("events", (entry.get("event"),))):
            if "ancestors" in fields:
                fields["ancestors"] = tuple(map(tuple, fields["ancestors"]))
            if "attempt" in fields:
                known = attempts[location, owner, fields["number"]]
                fields["attempt"] = attempt_number(known, fields["attempt"])
            if "event" in entry or fields["kind"] in _CHANGES or entry["began"] in answered:
                effects = (*effects, Effect(next(numbers), Event(owner=owner, **fields)))
        if "began" in entry:
            requests[entry["began"]] = location, effects
            lines[location].append(Line(effects))
        else:
            lines[location].append(Line(effects, effects))
    return lines


@dataclass(frozen=True, slots=True)
class _Point:
    """A place in the journal, the events under way there, and the replay up to it."""

    at: int
    under_way: tuple[Effect, ...]
    replay: Replay

    @property
    def key(self) -> Hashable:
        return self.at, frozenset(self.under_way), self.replay.state


def check_location(lines: list[Line]) -> int:
    """Check the lines of one location, as `check_journal`."""
    events = [request.event for line in lines for request in line.began]
    stack = [iter([_Point(0, (), Replay(numbers_of(events)))])]
    tried: set[Hashable] = set()
    furthest = 0
    while stack:
        point = next(stack[-1], None)
        if point is None:
            stack.pop()
            continue
        if point.at == len(lines):
            return len(events)
        if point.key in tried:
            continue
        tried.add(point.key)
        furthest = max(furthest, point.at)
        stack.append(_after(point, lines[point.at]))
    raise InvariantError(
        f"no order of the requests up to line {furthest} is a way through the model: {lines[furthest]}"
    )


def _after(point: _Point, line: Line) -> Iterator[_Point]:
    """Yield each point after the next line, the most likely one first."""
    under_way = (*point.under_way, *line.began)
    owed = [request for request in line.ended if request in under_way]
    if not line.happened:
        if len(owed) == len(line.ended):  # else it was taken to have happened
            yield _Point(point.at + 1, _without(under_way, owed), point.replay)
        return
    others = _without(under_way, owed)
    for together in range(min(_TOGETHER_MAX, len(others)) + 1 if owed else 1):
        for chosen in permutations(others, together):
            for order in _orders(chosen, owed):
                replay = point.replay.copy()
                if all(replay.take(request.event) for request in order):
                    yield _Point(point.at + 1, _without(under_way, order), replay)


def _without(effects: tuple[Effect, ...], gone: Iterable[Effect]) -> tuple[Effect, ...]:
    taken = {*gone}
    return tuple(effect for effect in effects if effect not in taken)


def _orders(chosen: tuple[Effect, ...], owed: list[Effect]) -> Iterator[tuple[Effect, ...]]:
    """Yield orders of other effects and of those that must have happened, which keep their order."""
    if not chosen:
        yield tuple(owed)
        return
    for at in range(len(owed)):
        yield (*owed[:at], *chosen, *owed[at:])
