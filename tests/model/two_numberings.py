"""
The model of the protocol of 0.2: claims are numbered by epoch, checkpoints by id.

An owner looks for a newer claim before and after the put of a checkpoint.  Steps, pauses, crashes, lost
answers and late requests are those of `tests.model.sequence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.model.explorer import State
from tests.model.sequence import (
    CLAIMED,
    FREE,
    IDLE,
    LISTED,
    NO_PARENT,
    NO_TAG,
    NOTHING,
    OWNER,
    SETTLING,
    TAG_COUNTS,
    TAG_GONE,
    TAG_PUT,
    Bounds,
    Put,
)

Content: TypeAlias = tuple[int, ...]
"""A checkpoint: `(epoch, attempt, parent)`."""

NO_CLAIM = -1

READY, CHECKED, LANDED = range(3)
_PUT_CLAIM, _PUT_CHECKPOINT, _DELETE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The protocol; each field that is changed is a mutant of it."""

    looks_before: bool = True
    """An owner looks for a newer claim before the put."""
    looks_after: bool = True
    """An owner looks for a newer claim after the put."""
    skips_no_epoch: bool = True
    """A new owner claims the epoch after the newest one."""
    knows_zombies: bool = True
    """A restart does not continue a checkpoint that a later claim did not continue."""
    reuses_no_id: bool = True
    """A new owner commits above every id there is, that of zombies included."""
    keeps_claims: bool = True
    """Claims are never deleted."""
    compares_attempts: bool = True
    """A checkpoint that exists is read and its attempt compared."""
    lists_tags_after_commit: bool = True
    """The tags are listed after the commit that subsumes the checkpoint."""


# A state is (claims, entries, flights, drivers, tag, budgets).
# claims has the nonce of each epoch, NO_CLAIM if it is not claimed.
# A driver is (IDLE,), (LISTED, epoch), (SETTLING, epoch, nonce), (CLAIMED, epoch) or
# (OWNER, epoch, stage, number, base, attempt, in doubt, given up, subsumed, to delete, listed pins).


class TwoNumberingsModel:
    """
    The steps of drivers, a person who tags, and a store that delays.

    Args:
        bounds: How much may happen.
        rules: The protocol.
    """

    def __init__(self, bounds: Bounds, rules: Rules = Rules()) -> None:
        self._bounds, self._rules = bounds, rules

    def initial(self) -> State:
        """Return the state of an empty location."""
        claims = (NO_CLAIM,) * (self._bounds.claims * (1 if self._rules.skips_no_epoch else 2) + 1)
        drivers = tuple((IDLE,) for _ in range(self._bounds.drivers))
        return (claims, (FREE,) * self._bounds.numbers, (), drivers, (NO_TAG, 0), (0, 0, 0))

    def transitions(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield each step that may follow."""
        drivers = state[3]
        for at, driver in enumerate(drivers):
            if at and driver == drivers[at - 1]:
                continue  # symmetric
            step = (self._idle, self._listed, self._settling, self._claimed, self._owner)[driver[0]]
            yield from step(state, at, driver)
            if driver[0] != IDLE:
                yield "crash", _driver(state, at, (IDLE,))
        yield from self._flights(state)
        if self._bounds.tag:
            yield from self._tag(state)

    # --- a new owner ----------------------------------------------------------------------------

    def _idle(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        if state[5][0] >= self._bounds.claims:
            return
        newest = max((e for e, nonce in enumerate(state[0]) if nonce != NO_CLAIM), default=-1)
        epoch = newest + (1 if self._rules.skips_no_epoch or newest < 0 else 2)
        yield f"list claims: {epoch} is free", _driver(state, at, (LISTED, epoch))

    def _listed(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        nonce, *rest = state[5]
        if nonce >= self._bounds.claims:
            return
        counted = (*state[:5], (nonce + 1, *rest))
        yield from self._claim(counted, at, driver[1], nonce)

    def _settling(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        yield from self._claim(state, at, driver[1], driver[2])

    def _claim(self, state: State, at: int, epoch: int, nonce: int) -> Iterator[tuple[str, State]]:
        stored = state[0][epoch]
        if stored == nonce:
            yield f"claim {epoch}: is this driver's", _driver(state, at, (CLAIMED, epoch))
        elif stored != NO_CLAIM:
            yield f"claim {epoch}: is taken", _driver(state, at, (IDLE,))
        else:
            for put in self._puts(state, (_PUT_CLAIM, epoch, nonce)):
                after = (CLAIMED, epoch) if put.is_certain else (SETTLING, epoch, nonce)
                yield f"claim {epoch}: {put.name}", _driver(put.state, at, after)

    def _claimed(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        present = _present(state)
        base = _newest(state, knows_zombies=self._rules.knows_zombies)
        older = tuple(n for n in present if n < base)
        zombies = tuple(n for n in present if n > base)
        number = (max(present, default=-1) if self._rules.reuses_no_id else base) + 1
        owner = (OWNER, driver[1], READY, number, base, 0, 0, zombies, older, (), ())
        yield f"own epoch {driver[1]}, restore {base}", _driver(state, at, owner)

    # --- an owner -------------------------------------------------------------------------------

    def _owner(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        stage = driver[2]
        if stage == READY:
            yield from self._begin(state, at, driver)
            yield from self._clean_up(state, at, driver)
        elif stage == CHECKED:
            yield from self._put(state, at, driver)
        else:
            yield from self._end(state, at, driver)

    def _begin(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        number, doubt = driver[3], driver[6]
        if number >= self._bounds.numbers:
            return
        checked = (*driver[:2], CHECKED, *driver[3:])
        if not self._rules.looks_before:
            yield f"begin {number}", _driver(state, at, checked)
        elif _is_fenced(state, driver):
            yield f"look before {number}: fenced", _driver(state, at, (IDLE,))
        else:
            yield f"look before {number}: not fenced", _driver(state, at, checked)
        if not doubt and number + 1 < self._bounds.numbers and not driver[5]:
            skipped = (*driver[:3], number + 1, *driver[4:])
            yield f"skip id {number}", _driver(state, at, skipped)
        if doubt and not driver[5]:
            again = (*driver[:5], 1, 0, *driver[7:])
            yield f"decline {number}, another attempt", _driver(state, at, again)

    def _put(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        _, epoch, _, number, base, attempt, *_ = driver
        content = (epoch, attempt, base)
        landed = (*driver[:2], LANDED, *driver[3:])
        stored = state[1][number][1]
        is_own = stored == content or (stored[:1] == (epoch,) and not self._rules.compares_attempts)
        if is_own:
            yield f"put {number}: is this driver's", _driver(state, at, landed)
        elif stored:
            yield f"put {number}: is another's, fenced", _driver(state, at, (IDLE,))
        else:
            waiting = (*driver[:2], READY, *driver[3:6], 1, *driver[7:])
            for put in self._puts(state, (_PUT_CHECKPOINT, number, content)):
                after = landed if put.is_certain else waiting
                yield f"put {number}: {put.name}", _driver(put.state, at, after)

    def _end(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        _, epoch, _, number, base, attempt, _, given_up, subsumed, deletions, pins = driver
        if self._rules.looks_after and _is_fenced(state, driver):
            yield f"look after {number}: fenced", _driver(state, at, (IDLE,))
            return
        own = () if base == NO_PARENT else (base,)
        older = tuple(sorted({*subsumed, *own, *given_up}))
        owner = (OWNER, epoch, READY, number + 1, number, 0, 0, (), older, deletions, pins)
        entries = list(state[1])
        # The content that is reported counts, also where the id had another object before.
        entries[number] = ((epoch, attempt, base), entries[number][1], 1)
        after = (state[0], tuple(entries), *state[2:])
        yield f"look after {number}: committed", _driver(after, at, owner)

    def _clean_up(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        *head, subsumed, deletions, pins = driver
        tag, tagged = state[4]
        held = (tagged,) if tag in (TAG_PUT, TAG_COUNTS) else ()
        if not self._rules.lists_tags_after_commit:
            if pins != held:
                yield "list the tags, for later", _driver(state, at, (*driver[:10], held))
            held = pins
        decided = tuple(sorted({*deletions, *(n for n in subsumed if n not in held)}))
        if decided != deletions:
            rest = tuple(n for n in subsumed if n in held)
            after = (*head, rest, decided, pins)
            yield f"list the tags, will delete {list(decided)}", _driver(state, at, after)
        for number in deletions:
            rest = tuple(n for n in deletions if n != number)
            after = (*head, subsumed, rest, pins)
            yield f"delete {number}", _driver(_delete(state, number), at, after)
        if not self._rules.keeps_claims:
            for epoch in range(driver[1]):
                if state[0][epoch] != NO_CLAIM:
                    claims = (*state[0][:epoch], NO_CLAIM, *state[0][epoch + 1 :])
                    yield f"delete claim {epoch}", (claims, *state[1:])

    # --- the store ------------------------------------------------------------------------------

    def _puts(self, state: State, request: tuple[Any, ...]) -> Iterator[Put]:
        landed = _land(state, request)
        yield Put("done", landed, is_certain=True)
        claims, lost, late = state[5]
        if lost < self._bounds.lost:
            counted = (*landed[:5], (claims, lost + 1, late))
            yield Put("done, the answer is lost", counted, is_certain=False)
        if late < self._bounds.late:
            under_way = tuple(sorted((*state[2], request)))
            sent = (*state[:2], under_way, *state[3:5], (claims, lost, late + 1))
            yield Put("no answer, under way", sent, is_certain=False)

    def _flights(self, state: State) -> Iterator[tuple[str, State]]:
        flights = state[2]
        for at, (kind, number, content) in enumerate(flights):
            rest = (*state[:2], (*flights[:at], *flights[at + 1 :]), *state[3:])
            taken = state[0][number] != NO_CLAIM if kind == _PUT_CLAIM else state[1][number][1]
            what = "claim" if kind == _PUT_CLAIM else "put"
            if taken:
                yield f"a late {what} {number} finds it taken", rest
            else:
                yield f"a late {what} {number} arrives", _land(rest, (kind, number, content))

    # --- a person who tags, or forks ------------------------------------------------------------

    def _tag(self, state: State) -> Iterator[tuple[str, State]]:
        phase, number = state[4]
        newest = _newest(state, knows_zombies=self._rules.knows_zombies)
        if phase == NO_TAG and newest != NO_PARENT:
            yield f"tag {newest}: put", _tagged(state, TAG_PUT, newest)
        elif phase == TAG_PUT and newest == number:
            yield f"tag {number}: counts", _tagged(state, TAG_COUNTS, number)
        elif phase == TAG_PUT:
            yield f"tag {number}: rejected, and deleted", _tagged(state, TAG_GONE, number)
        elif phase == TAG_COUNTS:
            yield f"tag {number}: released", _tagged(state, TAG_GONE, number)


def _driver(state: State, at: int, driver: tuple[Any, ...]) -> State:
    drivers = list(state[3])
    drivers[at] = driver
    return (*state[:3], tuple(sorted(drivers)), *state[4:])


def _tagged(state: State, phase: int, number: int) -> State:
    tag = (phase, number if phase in (TAG_PUT, TAG_COUNTS) else 0)
    return (*state[:4], tag, state[5])


def _land(state: State, request: tuple[Any, ...]) -> State:
    kind, number, content = request
    if kind == _PUT_CLAIM:
        claims = (*state[0][:number], content, *state[0][number + 1 :])
        return (claims, *state[1:])
    entries = list(state[1])
    first, _, reported = entries[number]
    entries[number] = (first or content, content, reported)
    return (state[0], tuple(entries), *state[2:])


def _delete(state: State, number: int) -> State:
    entries = list(state[1])
    first, _, reported = entries[number]
    entries[number] = (first, NOTHING, reported)
    return (state[0], tuple(entries), *state[2:])


def _is_fenced(state: State, driver: tuple[Any, ...]) -> bool:
    return bool(state[0][driver[1] + 1] != NO_CLAIM)


def _present(state: State) -> list[int]:
    return [n for n, entry in enumerate(state[1]) if entry[1]]


def _newest(state: State, *, knows_zombies: bool = True) -> int:
    """Return the checkpoint that a restart continues."""
    present = _present(state)
    for number in reversed(present):
        epoch, _, parent = state[1][number][1]
        between = (n for n in present if parent < n < number)
        if not knows_zombies or not any(state[1][n][1][0] > epoch for n in between):
            return number
    return NO_PARENT


# --- invariants -------------------------------------------------------------------------------------


def one_history(state: State) -> bool:
    """Every reported commit is the one that a restart continues, or an ancestor of it."""
    reported = {n for n, entry in enumerate(state[1]) if entry[2]}
    number = _newest(state)
    if number == NO_PARENT:
        return not reported
    first = state[1][number][1]
    while True:
        reported.discard(number)
        number = first[2]
        if number == NO_PARENT:
            return not reported
        first = state[1][number][0]


def newest_is_reported_whole(state: State) -> bool:
    """The newest reported commit is stored, as it was put."""
    number = max((n for n, entry in enumerate(state[1]) if entry[2]), default=NO_PARENT)
    if number == NO_PARENT or _newest(state) != number:
        return True  # a later object continues it
    return bool(state[1][number][0] == state[1][number][1])


def tags_hold(state: State) -> bool:
    """A checkpoint whose tag (or fork) counts is stored."""
    phase, number = state[4]
    return phase != TAG_COUNTS or bool(state[1][number][1])


INVARIANTS: dict[str, Callable[[State], bool]] = {
    "one history": one_history,
    "the newest checkpoint exists": newest_is_reported_whole,
    "tags hold": tags_hold,
}
