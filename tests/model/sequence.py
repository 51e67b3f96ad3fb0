"""
The model of the dense sequence: claims and checkpoints are entries of one numbering.

Every request to the store is one step.  Between two steps of a driver any other driver may take any
number of steps, which is a pause; a driver may crash before each step.  A conditional put may lose its
answer, or arrive later than its driver goes on, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.model.explorer import State

Content: TypeAlias = tuple[int, ...]
"""A claim `(CLAIM, nonce)`, or a checkpoint `(CHECKPOINT, nonce of its owner, attempt, parent)`."""
Entry: TypeAlias = tuple[Content, Content, int]
"""What the number got first, what is stored under it now, and whether its commit was reported."""

CLAIM, CHECKPOINT = 1, 2
NOTHING: Content = ()
FREE: Entry = (NOTHING, NOTHING, 0)
NO_PARENT = -1

IDLE, LISTED, SETTLING, CLAIMED, OWNER, LOOKING = range(6)
NO_TAG, TAG_PUT, TAG_COUNTS, TAG_GONE = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """
    How much may happen.

    Args:
        drivers: Processes at one time.
        numbers: Numbers of the sequence.
        claims: Claims that are put, of all drivers and their restarts.
        lost: Answers of puts that are lost.
        late: Puts and deletions that may arrive late, or never.
        tag: Whether a checkpoint is tagged (or forked), and released.
    """

    drivers: int
    numbers: int
    claims: int
    lost: int
    late: int
    tag: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The protocol; each field that is changed is a mutant of it."""

    claims: bool = True
    """A new owner puts a claim under the first free number."""
    looks_after_claim: bool = True
    """A new owner lists after its claim, and claims again if a higher entry exists."""
    lists_until_settled: bool = True
    """It lists again if the entries of the listing were deleted before it asked for them."""
    keeps_claims: bool = True
    """Claims are never deleted."""
    repeats_same_attempt: bool = True
    """After a lost answer, only the same bytes are put again under the number."""
    reads_back: bool = True
    """An entry that exists is read and compared before a put counts as done."""
    deletes_after_commit: bool = True
    """A checkpoint is deleted only after the commit that subsumes it was answered."""
    lists_tags_after_commit: bool = True
    """The tags are listed after the commit that subsumes the checkpoint."""
    checks_after_tag: bool = True
    """A tag counts only if the newest checkpoint, read after the put, is the tagged one."""


# A state is (entries, flights, drivers, tag, budgets, fault).
# A driver is (IDLE,), (LISTED, number), (SETTLING, number, nonce), (CLAIMED, number, nonce),
# (LOOKING, number, nonce, to ask, asked) or
# (OWNER, nonce, next, base, attempt, in doubt, subsumed, to delete, listed pins).
# budgets is (claims put, answers lost, late requests); fault names what a step did wrong.


def initial(bounds: Bounds) -> State:
    """Return the state of an empty location."""
    drivers = tuple((IDLE,) for _ in range(bounds.drivers))
    return ((FREE,) * bounds.numbers, (), drivers, (NO_TAG, 0), (0, 0, 0), "")


@dataclass(frozen=True, slots=True)
class Put:
    """An answer to a conditional put: what the driver knows, and the state of the store."""

    name: str
    state: State
    is_certain: bool


class SequenceModel:
    """
    The steps of drivers, a person who tags, and a store that delays.

    Args:
        bounds: How much may happen.
        rules: The protocol.
    """

    def __init__(self, bounds: Bounds, rules: Rules = Rules()) -> None:
        self._bounds, self._rules = bounds, rules
        self._steps = {
            IDLE: self._idle,
            LISTED: self._listed,
            SETTLING: self._settling,
            CLAIMED: self._claimed,
            LOOKING: self._looking,
            OWNER: self._owner,
        }

    def initial(self) -> State:
        """Return the state of an empty location."""
        return initial(self._bounds)

    def transitions(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield each step that may follow."""
        drivers = state[2]
        for at, driver in enumerate(drivers):
            if at and driver == drivers[at - 1]:
                continue  # symmetric
            yield from self._steps[driver[0]](state, at, driver)
            if driver[0] != IDLE:
                yield from self._crash(state, at, driver)
        yield from self._flights(state)
        if self._bounds.tag:
            yield from self._tag(state)

    # --- a new owner ----------------------------------------------------------------------------

    def _idle(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        if state[4][0] >= self._bounds.claims:
            return
        taken = [number for number, entry in enumerate(state[0]) if entry[1]]
        number = max(taken, default=-1) + 1
        if number < self._bounds.numbers:
            yield f"list: {number} is free", _driver(state, at, (LISTED, number))

    def _listed(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        number, (claims, *rest) = driver[1], state[4]
        if claims >= self._bounds.claims:
            return
        state = (*state[:4], (claims + 1, *rest), state[5])
        if not self._rules.claims:
            claimed = (CLAIMED, number - 1, claims)
            yield f"take over at {number} without a claim", _driver(state, at, claimed)
            return
        yield from self._claim(state, at, number, claims)

    def _settling(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        yield from self._claim(state, at, driver[1], driver[2])

    def _claim(self, state: State, at: int, number: int, nonce: int) -> Iterator[tuple[str, State]]:
        content = (CLAIM, nonce)
        stored = state[0][number][1]
        if stored:
            own = stored == content or not self._rules.reads_back
            after = (CLAIMED, number, nonce) if own else (IDLE,)
            text = "is this driver's" if own else "is taken"
            yield f"claim {number}: {text}", _driver(state, at, after)
            return
        for put in self._puts(state, number, content):
            phase = CLAIMED if put.is_certain else SETTLING
            label = f"claim {number}: {put.name}"
            yield label, _driver(put.state, at, (phase, number, nonce))

    def _claimed(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        _, number, nonce = driver
        if self._rules.looks_after_claim:
            yield self._look(state, at, number, nonce, ())
        else:
            yield self._own(state, at, number, nonce)

    def _looking(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        _, number, nonce, waiting, asked = driver
        if not waiting:
            yield self._look(state, at, number, nonce, asked)
            return
        first, *rest = waiting
        if state[0][first][1]:
            yield f"ask for {first}: it exists", _driver(state, at, (IDLE,))
        elif rest or self._rules.lists_until_settled:
            after = (LOOKING, number, nonce, tuple(rest), (*asked, first))
            yield f"ask for {first}: it is deleted", _driver(state, at, after)
        else:
            yield self._own(state, at, number, nonce)

    def _look(
        self, state: State, at: int, number: int, nonce: int, asked: tuple[int, ...]
    ) -> tuple[str, State]:
        """List the entries above a claim; own the location if there is none that was not asked for."""
        above = tuple(n for n, entry in enumerate(state[0]) if entry[1] and n > number)
        if set(above) <= set(asked):
            return self._own(state, at, number, nonce)
        looking = (LOOKING, number, nonce, above, ())
        return f"list: {list(above)} above claim {number}", _driver(state, at, looking)

    def _own(self, state: State, at: int, number: int, nonce: int) -> tuple[str, State]:
        present = [n for n in _checkpoints(state) if n <= number]
        base = max(present, default=NO_PARENT)
        older = tuple(n for n in present if n != base)
        owner = (OWNER, nonce, number + 1, base, 0, 0, older, (), ())
        return f"own from {number}, restore {base}", _driver(state, at, owner)

    # --- an owner -------------------------------------------------------------------------------

    def _owner(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        yield from self._commit(state, at, driver)
        yield from self._clean_up(state, at, driver)

    def _commit(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        _, nonce, number, base, attempt, doubt, subsumed, deletions, pins = driver
        if number >= self._bounds.numbers:
            return
        content = (CHECKPOINT, nonce, attempt, base)
        stored = state[0][number][1]
        if stored and self._rules.reads_back and stored != content:
            yield f"commit {number}: fenced", _driver(state, at, (IDLE,))
        elif stored:
            yield f"commit {number}: read back, done", self._committed(state, at, driver, content)
        else:
            for put in self._puts(state, number, content):
                label = f"commit {number}: {put.name}"
                if put.is_certain:
                    yield label, self._committed(put.state, at, driver, content)
                else:
                    waiting = (*driver[:5], 1, *driver[6:])
                    yield label, _driver(put.state, at, waiting)
        if doubt and not attempt and not self._rules.repeats_same_attempt:
            again = (OWNER, nonce, number, base, 1, 0, subsumed, deletions, pins)
            yield f"commit {number}: declined, another attempt", _driver(state, at, again)

    def _committed(self, state: State, at: int, driver: Any, content: Content) -> State:
        _, nonce, number, base, _, _, subsumed, deletions, pins = driver
        if not self._rules.deletes_after_commit:
            base = NO_PARENT if base in deletions else base
        older = (*subsumed, base) if base != NO_PARENT else subsumed
        owner = (OWNER, nonce, number + 1, number, 0, 0, older, deletions, pins)
        entries = list(state[0])
        first, stored, _ = entries[number]
        entries[number] = (first, stored, 1)
        fault = state[5] or ("" if first == content else "reported")
        return _driver((tuple(entries), *state[1:5], fault), at, owner)

    def _clean_up(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        *head, subsumed, deletions, pins = driver
        tag, tagged = state[3]
        held = (tagged,) if tag in (TAG_PUT, TAG_COUNTS) else ()
        if not self._rules.lists_tags_after_commit:
            if pins != held:
                yield "list the tags, for later", _driver(state, at, (*driver[:8], held))
            held = pins
        candidates = subsumed
        if not self._rules.keeps_claims:
            claims = {
                n for n, entry in enumerate(state[0][: driver[2]]) if entry[1][:1] == (CLAIM,)
            }
            candidates = (*subsumed, *sorted(claims - set(deletions)))
        if not self._rules.deletes_after_commit and driver[3] not in (NO_PARENT, *deletions):
            candidates = (*subsumed, driver[3])
        decided = tuple(sorted({*deletions, *(n for n in candidates if n not in held)}))
        if decided != deletions:
            rest = tuple(n for n in subsumed if n in held)
            after = (*head, rest, decided, pins)
            yield f"list the tags, will delete {list(decided)}", _driver(state, at, after)
        for number in deletions:
            rest = tuple(n for n in deletions if n != number)
            after = (*head, subsumed, rest, pins)
            yield f"delete {number}", _driver(_delete(state, number), at, after)

    def _crash(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        crashed = _driver(state, at, (IDLE,))
        yield "crash", crashed
        if driver[0] != OWNER or state[4][2] >= self._bounds.late:
            return
        for number in driver[7]:
            entries, flights, drivers, tag, (claims, lost, late), fault = crashed
            under_way = tuple(sorted((*flights, (number, NOTHING))))
            budgets = claims, lost, late + 1
            sent = (entries, under_way, drivers, tag, budgets, fault)
            yield f"crash, a deletion of {number} under way", sent

    # --- the store ------------------------------------------------------------------------------

    def _puts(self, state: State, number: int, content: Content) -> Iterator[Put]:
        """Yield the answers to a put of a free name."""
        landed = _land(state, number, content)
        yield Put("done", landed, is_certain=True)
        entries, flights, drivers, tag, (claims, lost, late), fault = landed
        if lost < self._bounds.lost:
            counted = (claims, lost + 1, late)
            answer = (entries, flights, drivers, tag, counted, fault)
            yield Put("done, the answer is lost", answer, is_certain=False)
        if late < self._bounds.late:
            under_way = tuple(sorted((*state[1], (number, content))))
            counted = (claims, lost, late + 1)
            sent = (state[0], under_way, drivers, tag, counted, state[5])
            yield Put("no answer, under way", sent, is_certain=False)

    def _flights(self, state: State) -> Iterator[tuple[str, State]]:
        flights = state[1]
        for at, (number, content) in enumerate(flights):
            rest = (state[0], (*flights[:at], *flights[at + 1 :]), *state[2:])
            if not content:
                yield f"a late deletion of {number} arrives", _delete(rest, number)
            elif state[0][number][1]:
                yield f"a late put of {number} finds it taken", rest
            else:
                yield f"a late put of {number} arrives", _land(rest, number, content)
        yield from self._repeated_deletions(state)

    def _repeated_deletions(self, state: State) -> Iterator[tuple[str, State]]:
        """
        Yield deletions of a checkpoint that is deleted already, which meet a claim in its place.

        A checkpoint that an owner left names the metadata of older ones, where its changes are.  Who
        deletes it deletes them too, at any time later.
        """
        newest = _newest_ever(state)
        for number, (first, stored, _) in enumerate(state[0]):
            if is_garbage(first, stored) and stored and number < newest:
                yield f"{number} is deleted once more", _delete(state, number)

    # --- a person who tags, or forks ------------------------------------------------------------

    def _tag(self, state: State) -> Iterator[tuple[str, State]]:
        phase, number = state[3]
        present = _checkpoints(state)
        if phase == NO_TAG:
            for tagged in present:
                yield f"tag {tagged}: put", _tagged(state, TAG_PUT, tagged)
        elif phase == TAG_PUT:
            counts = max(present, default=NO_PARENT) == number or not self._rules.checks_after_tag
            after = TAG_COUNTS if counts else TAG_GONE
            text = "counts" if counts else "rejected, and deleted"
            yield f"tag {number}: {text}", _tagged(state, after, number)
        elif phase == TAG_COUNTS:
            yield f"tag {number}: released", _tagged(state, TAG_GONE, number)


def _driver(state: State, at: int, driver: tuple[Any, ...]) -> State:
    drivers = list(state[2])
    drivers[at] = driver
    return (*state[:2], tuple(sorted(drivers)), *state[3:])


def _tagged(state: State, phase: int, number: int) -> State:
    tag = (phase, number if phase in (TAG_PUT, TAG_COUNTS) else 0)
    return (*state[:3], tag, *state[4:])


def _land(state: State, number: int, content: Content) -> State:
    entries = list(state[0])
    first, _, reported = entries[number]
    # A claim may take the number of a deleted checkpoint: its driver lists afterwards, and claims again.
    twice = first and first != content and content[0] == CHECKPOINT
    entries[number] = (first or content, content, reported)
    fault = state[5] or ("twice" if twice else "")
    return (tuple(entries), *state[1:5], fault)


def _delete(state: State, number: int) -> State:
    entries = list(state[0])
    first, _, reported = entries[number]
    entries[number] = (first, NOTHING, reported)
    return (tuple(entries), *state[1:])


def is_garbage(first: Content, stored: Content) -> bool:
    """Return whether a number had a checkpoint that was deleted; nothing there counts any more."""
    return first[:1] == (CHECKPOINT,) and stored != first


def _checkpoints(state: State) -> list[int]:
    """Return the numbers under which a checkpoint is stored, ascending."""
    return [n for n, entry in enumerate(state[0]) if entry[1][:1] == (CHECKPOINT,)]


# --- invariants -------------------------------------------------------------------------------------


def _newest_ever(state: State) -> int:
    numbers = [n for n, entry in enumerate(state[0]) if entry[0][:1] == (CHECKPOINT,)]
    return max(numbers, default=NO_PARENT)


def one_history(state: State) -> bool:
    """Every reported commit is the newest checkpoint, or one that it continues."""
    reported = {n for n, entry in enumerate(state[0]) if entry[2]}
    number = _newest_ever(state)
    while number != NO_PARENT:
        reported.discard(number)
        number = state[0][number][0][3]
    return not reported


def newest_exists(state: State) -> bool:
    """The newest checkpoint is stored, as it was put."""
    number = _newest_ever(state)
    return number == NO_PARENT or state[0][number][0] == state[0][number][1]


def no_number_twice(state: State) -> bool:
    """No number is given to a checkpoint after it was given to something else."""
    return bool(state[5] != "twice")


def reports_are_true(state: State) -> bool:
    """A driver reports a commit only if its object was the first under the number."""
    return bool(state[5] != "reported")


def tags_hold(state: State) -> bool:
    """A checkpoint whose tag (or fork) counts is stored, as it was put."""
    phase, number = state[3]
    return phase != TAG_COUNTS or state[0][number][0] == state[0][number][1]


INVARIANTS: dict[str, Callable[[State], bool]] = {
    "one history": one_history,
    "the newest checkpoint exists": newest_exists,
    "no number twice": no_number_twice,
    "reports are true": reports_are_true,
    "tags hold": tags_hold,
}
