"""
Explore every state of a model, breadth first, and return the shortest way to a broken invariant.

A state is a tuple of numbers and tuples.  `transitions(state)` yields a label and a state for each
step that may follow; two states that differ in a symmetry only must be the same tuple.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

State: TypeAlias = tuple[Any, ...]
Transitions: TypeAlias = Callable[[State], Iterable[tuple[str, State]]]
Invariants: TypeAlias = Mapping[str, Callable[[State], bool]]

_MARSHAL_VERSION = 2
"""The last one without references, so that equal states have equal bytes."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """
    The result of an exploration.

    Args:
        states: Number of different states.
        transitions: Number of steps between them.
        depth: Steps of the longest shortest way to a state.
        broken: The invariant that does not hold, "" if all hold.
        trace: Labels of the shortest way to a state that breaks it.
        is_whole: Whether every state was visited.
    """

    states: int
    transitions: int
    depth: int
    broken: str = ""
    trace: tuple[str, ...] = ()
    is_whole: bool = True


def explore(
    initial: State, transitions: Transitions, invariants: Invariants, *, states_max: int
) -> Exploration:
    """Visit every state, up to the first that breaks an invariant."""
    first = _packed(initial)
    parents: dict[bytes, bytes | None] = {first: None}
    broken = _broken(initial, invariants)
    steps = depth = 0
    level = [first]
    while level and not broken:
        following: list[bytes] = []
        for packed in level:
            for _, state in transitions(marshal.loads(packed)):
                steps += 1
                key = _packed(state)
                if key in parents:
                    continue
                parents[key] = packed
                following.append(key)
                if broken := _broken(state, invariants):
                    trace = _trace(key, parents, transitions)
                    return Exploration(len(parents), steps, depth + 1, broken, trace)
            if len(parents) > states_max:
                return Exploration(len(parents), steps, depth, is_whole=False)
        level = following
        depth += bool(following)
    return Exploration(len(parents), steps, depth, broken)


def _packed(state: State) -> bytes:
    return marshal.dumps(state, _MARSHAL_VERSION)


def _broken(state: State, invariants: Invariants) -> str:
    return next((name for name, holds in invariants.items() if not holds(state)), "")


def _trace(
    last: bytes, parents: Mapping[bytes, bytes | None], transitions: Transitions
) -> tuple[str, ...]:
    """Return the labels on the way to a state; they are not stored, so the steps are made again."""
    labels = []
    while (parent := parents[last]) is not None:
        steps = transitions(marshal.loads(parent))
        labels.append(next(label for label, state in steps if _packed(state) == last))
        last = parent
    return tuple(reversed(labels))
