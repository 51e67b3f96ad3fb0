"""
What the entries of the model say of the history: timelines, and which checkpoint continues which.

`has` is what the code computes from one object.  `ancestors` is the truth, from all objects ever put.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tests.campaigns.model.explorer import State

Content: TypeAlias = tuple[Any, ...]
"""
A claim `(CLAIM, nonce, timeline)`, or a checkpoint `(CHECKPOINT, nonce of its owner, attempt, parent,
timeline, ancestors)`; each ancestor is a timeline and its last checkpoint that this one continues.
"""

CLAIM, CHECKPOINT = 1, 2
NOTHING: Content = ()
NO_PARENT = -1


def timeline_of(content: Content) -> int:
    """Return the timeline that a claim or a checkpoint names."""
    timeline: int = content[4] if content[0] == CHECKPOINT else content[2]
    return timeline


def has(newest: Content, newest_number: int, number: int, timeline: int) -> bool:
    """Return whether the history of a checkpoint has another one, as `Timeline.has` does."""
    if timeline == newest[4]:
        return number <= newest_number
    return any(timeline == end and number <= last for end, last in newest[5])


def checkpoints(state: State) -> list[int]:
    """Return the numbers under which a checkpoint is stored, ascending."""
    return [n for n, entry in enumerate(state[0]) if entry[1][:1] == (CHECKPOINT,)]


def newest_ever(state: State) -> int:
    """Return the highest number that was given to a checkpoint; -1 without one."""
    numbers = [n for n, entry in enumerate(state[0]) if entry[0][:1] == (CHECKPOINT,)]
    return max(numbers, default=NO_PARENT)


def ancestors(state: State, number: int) -> list[int]:
    """Return a checkpoint and those that it continues, newest first; its place is its micro-batch."""
    chain = []
    while number != NO_PARENT:
        chain.append(number)
        number = state[0][number][0][3]
    return chain


# --- invariants -------------------------------------------------------------------------------------


def one_history(state: State) -> bool:
    """Every reported commit is the newest checkpoint, or one that it continues, or was given up."""
    reported = {n for n, entry in enumerate(state[0]) if entry[2]}
    chain = ancestors(state, newest_ever(state))
    reported.difference_update(chain)
    for number in chain:
        if not reported:
            return True
        content = state[0][number][0]
        if number and content[3] != NO_PARENT and content[4] > state[0][content[3]][0][4]:
            # The owner with this claim went back to its parent, from what was committed before the claim.
            reported.difference_update(range(content[3] + 1, content[4]))
    return not reported


def newest_exists(state: State) -> bool:
    """The newest checkpoint is stored, as it was put."""
    number = newest_ever(state)
    return number == NO_PARENT or state[0][number][0] == state[0][number][1]


def tags_hold(state: State) -> bool:
    """A checkpoint whose tag (or fork) counts is stored, as it was put."""
    (phase, number), counts = state[3], 2
    return phase != counts or state[0][number][0] == state[0][number][1]


def never(fault: str, rule: str) -> Callable[[State], bool]:
    """Return the invariant that no step does what is called *fault*."""

    def holds(state: State) -> bool:
        return bool(state[5] != fault)

    holds.__doc__ = rule
    return holds


INVARIANTS: dict[str, Callable[[State], bool]] = {
    "one history": one_history,
    "the newest checkpoint exists": newest_exists,
    "no number twice": never(
        "twice", "No number is given to a checkpoint after it was given to something else."
    ),
    "reports are true": never(
        "reported", "A driver reports a commit only if its object was the first under the number."
    ),
    "tags hold": tags_hold,
    "readers go on in one history": never(
        "reader", "A reader goes on exactly if the newest checkpoint continues the remembered one."
    ),
    "a micro-batch is one of the history": never(
        "given up",
        "A rewind by the number of a micro-batch never takes a checkpoint that was given up.",
    ),
    "no rows are skipped": never(
        "skipped", "A sink never takes rows of another history for the rows of a micro-batch."
    ),
    "no rows twice": never("rows twice", "A sink never writes a micro-batch of a timeline twice."),
    "the newest owner goes on": never("refused", "A sink never refuses the newest owner."),
    "no rows of the past": never(
        "rows of the past", "A sink never writes rows of a timeline after rows of a later one."
    ),
}
