"""
The model of the dense sequence: claims and checkpoints are entries of one numbering.

Every request to the store is one step.  Between two steps of a driver any other driver may take any
number of steps, which is a pause; a driver may crash before each step.  A conditional put may lose its
answer, or arrive later than its driver goes on, or never.  A driver may go back to an older checkpoint:
it begins a timeline.  `tests.campaigns.model.observers` has what remembers checkpoints outside of the location.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.campaigns.model import observers
from tests.campaigns.model.explorer import State
from tests.campaigns.model.history import (
    CHECKPOINT,
    CLAIM,
    NO_PARENT,
    NOTHING,
    Content,
    checkpoints,
    has,
    newest_ever,
    timeline_of,
)

Entry: TypeAlias = tuple[Content, Content, int]
"""What the number got first, what is stored under it now, and whether its commit was reported."""

FREE: Entry = (NOTHING, NOTHING, 0)

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
        rewinds: How often an owner goes back to an older checkpoint, or begins a timeline.
        watched_by: What remembers checkpoints: "", "reader" or "sink".
    """

    drivers: int
    numbers: int
    claims: int
    lost: int
    late: int
    tag: bool
    rewinds: int = 0
    watched_by: str = ""


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
    keeps_given_up: bool = True
    """A checkpoint that an owner gives up is deleted only after the commit that gives it up."""
    begins_timeline: bool = True
    """An owner that goes back to an older checkpoint begins a timeline."""
    readers_compare_timelines: bool = True
    """A reader asks whether the newest checkpoint continues the one that it remembers."""
    rewinds_in_history: bool = True
    """The number of a micro-batch names an ancestor of the newest checkpoint."""
    sinks_compare_timelines: bool = True
    """A sink takes the same micro-batch of the same timeline for written, and nothing else."""
    sinks_fence: bool = True
    """A sink refuses a driver of an earlier timeline than that of its newest rows."""


# A state is (entries, flights, drivers, tag, budgets, fault, observers).
# A driver is (IDLE,), (LISTED, number, timeline), (SETTLING, number, nonce, timeline),
# (CLAIMED, number, nonce, timeline), (LOOKING, number, nonce, timeline, to ask, asked) or
# (OWNER, nonce, next, base, attempt, in doubt, subsumed, to delete, listed pins, history, given up, owed).
# history is (timeline, ancestors); owed says whether the base is still to be delivered to the sink.
# budgets is (claims put, answers lost, late requests, rewinds); fault names what a step did wrong.


def initial(bounds: Bounds) -> State:
    """Return the state of an empty location."""
    drivers = tuple((IDLE,) for _ in range(bounds.drivers))
    entries = (FREE,) * bounds.numbers
    return (entries, (), drivers, (NO_TAG, 0), (0, 0, 0, 0), "", observers.initial())


@dataclass(frozen=True, slots=True)
class Put:
    """An answer to a conditional put: what the driver knows, and the state of the store."""

    name: str
    state: State
    is_certain: bool


class SequenceModel:
    """The steps of drivers, a person who tags, and a store that delays."""

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
        if self._bounds.watched_by == "reader":
            yield from observers.reads(state, self._rules.readers_compare_timelines)

    # --- a new owner ----------------------------------------------------------------------------

    def _idle(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        if state[4][0] >= self._bounds.claims:
            return
        taken = [number for number, entry in enumerate(state[0]) if entry[1]]
        number = max(taken, default=-1) + 1
        if number < self._bounds.numbers:
            timeline = timeline_of(state[0][taken[-1]][1]) if taken else number
            yield f"list: {number} is free", _driver(state, at, (LISTED, number, timeline))

    def _listed(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        _, number, timeline = driver
        claims, *rest = state[4]
        if claims >= self._bounds.claims:
            return
        state = (*state[:4], (claims + 1, *rest), *state[5:])
        if not self._rules.claims:
            claimed = (CLAIMED, number - 1, claims, timeline)
            yield f"take over at {number} without a claim", _driver(state, at, claimed)
            return
        yield from self._claim(state, at, (number, claims, timeline))

    def _settling(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        yield from self._claim(state, at, driver[1:])

    def _claim(
        self, state: State, at: int, claim: tuple[int, int, int]
    ) -> Iterator[tuple[str, State]]:
        number, nonce, timeline = claim
        content = (CLAIM, nonce, timeline)
        stored = state[0][number][1]
        if stored:
            is_own = stored == content or not self._rules.reads_back
            after = (CLAIMED, *claim) if is_own else (IDLE,)
            text = "is this driver's" if is_own else "is taken"
            yield f"claim {number}: {text}", _driver(state, at, after)
            return
        for put in self._puts(state, number, content):
            phase = CLAIMED if put.is_certain else SETTLING
            label = f"claim {number}: {put.name}"
            yield label, _driver(put.state, at, (phase, *claim))

    def _claimed(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        claim = driver[1:]
        if self._rules.looks_after_claim:
            yield from self._look(state, at, claim, ())
        else:
            yield from self._own(state, at, claim)

    def _looking(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        *claim, waiting, asked = driver[1:]
        if not waiting:
            yield from self._look(state, at, tuple(claim), asked)
            return
        first, *rest = waiting
        if state[0][first][1]:
            yield f"ask for {first}: it exists", _driver(state, at, (IDLE,))
        elif rest or self._rules.lists_until_settled:
            after = (LOOKING, *claim, tuple(rest), (*asked, first))
            yield f"ask for {first}: it is deleted", _driver(state, at, after)
        else:
            yield from self._own(state, at, tuple(claim))

    def _look(
        self, state: State, at: int, claim: tuple[int, ...], asked: tuple[int, ...]
    ) -> Iterator[tuple[str, State]]:
        """List the entries above a claim; own the location if there is none that was not asked for."""
        number = claim[0]
        above = tuple(n for n, entry in enumerate(state[0]) if entry[1] and n > number)
        if set(above) <= set(asked):
            yield from self._own(state, at, claim)
            return
        looking = (LOOKING, *claim, above, ())
        yield f"list: {list(above)} above claim {number}", _driver(state, at, looking)

    def _own(self, state: State, at: int, claim: tuple[int, ...]) -> Iterator[tuple[str, State]]:
        number, nonce, timeline = claim
        present = [n for n in checkpoints(state) if n <= number]
        base = max(present, default=NO_PARENT)
        older = tuple(n for n in present if n != base)
        history = (timeline, ()) if base == NO_PARENT else state[0][base][1][4:]
        owed = int(base != NO_PARENT and self._has_sink)
        owner = (OWNER, nonce, number + 1, base, 0, 0, older, (), (), history, (), owed)
        yield f"own from {number}, restore {base}", _driver(state, at, owner)
        if base != NO_PARENT and state[4][3] < self._bounds.rewinds:
            yield from self._go_back(state, at, claim, present)

    def _go_back(
        self, state: State, at: int, claim: tuple[int, ...], present: list[int]
    ) -> Iterator[tuple[str, State]]:
        """Yield the ways to continue a stored checkpoint on a new timeline, by its id or its micro-batch."""
        number, nonce, _ = claim
        newest = state[0][max(present)][1]
        state = (*state[:4], (*state[4][:3], state[4][3] + 1), *state[5:])
        for base in present:
            in_history = has(newest, max(present), base, timeline_of(state[0][base][1]))
            if self._has_sink and not in_history and self._rules.rewinds_in_history:
                continue  # by the number of its micro-batch
            after = state
            if self._has_sink and not observers.is_ancestor(state, base):
                after = (*state[:5], state[5] or "given up", state[6])
            timeline, ancestors = state[0][base][1][4:]
            history = (number, (*ancestors, (timeline, base)))
            if not self._rules.begins_timeline:
                history = (timeline, ancestors)
            older = tuple(n for n in present if n < base)
            given_up = tuple(n for n in present if n > base)
            if not self._rules.keeps_given_up:
                older, given_up = (*older, *given_up), ()
            owed = int(self._has_sink and base == max(present))
            owner = (OWNER, nonce, number + 1, base, 0, 0, older, (), (), history, given_up, owed)
            yield f"own from {number}, go back to {base}", _driver(after, at, owner)

    @property
    def _has_sink(self) -> bool:
        return self._bounds.watched_by == "sink"

    # --- an owner -------------------------------------------------------------------------------

    def _owner(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        if driver[11]:
            yield from self._deliver(state, at, driver)
        else:
            yield from self._commit(state, at, driver)
        if not self._has_sink:
            yield from self._clean_up(state, at, driver)

    def _deliver(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        """Give the rows of the base to the sink, which says whether it has them."""
        label, goes_on, delivered = observers.delivered(
            state,
            driver[3],
            driver[9][0],
            is_newest=not any(entry[1][:1] == (CLAIM,) for entry in state[0][driver[2] :]),
            compares_timelines=self._rules.sinks_compare_timelines,
            fences=self._rules.sinks_fence,
        )
        after = (*driver[:11], 0) if goes_on else (IDLE,)
        yield label, _driver(delivered, at, after)

    def _commit(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        _, nonce, number, base, attempt, doubt, *rest = driver
        if number >= self._bounds.numbers:
            return
        content = (CHECKPOINT, nonce, attempt, base, *driver[9])
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
            again = (OWNER, nonce, number, base, 1, 0, *rest)
            yield f"commit {number}: declined, another attempt", _driver(state, at, again)

    def _committed(self, state: State, at: int, driver: Any, content: Content) -> State:
        _, nonce, number, base, _, _, subsumed, deletions, pins, history, given_up, _ = driver
        if not self._rules.deletes_after_commit:
            base = NO_PARENT if base in deletions else base
        older = (*subsumed, base) if base != NO_PARENT else subsumed
        older = tuple(sorted((*older, *given_up)))
        owed = int(self._has_sink)
        owner = (OWNER, nonce, number + 1, number, 0, 0, older, deletions, pins, history, (), owed)
        entries = list(state[0])
        first, stored, _ = entries[number]
        entries[number] = (first, stored, 1)
        fault = state[5] or ("" if first == content else "reported")
        return _driver((tuple(entries), *state[1:5], fault, state[6]), at, owner)

    def _clean_up(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        head, (subsumed, deletions, pins), tail = driver[:6], driver[6:9], driver[9:]
        tag, tagged = state[3]
        pinned = (tagged,) if tag in (TAG_PUT, TAG_COUNTS) else ()
        if not self._rules.lists_tags_after_commit:
            if pins != pinned:
                yield "list the tags, for later", _driver(state, at, (*driver[:8], pinned, *tail))
            pinned = pins
        candidates = subsumed
        if not self._rules.keeps_claims:
            claims = {
                n for n, entry in enumerate(state[0][: driver[2]]) if entry[1][:1] == (CLAIM,)
            }
            candidates = (*subsumed, *sorted(claims - set(deletions)))
        if not self._rules.deletes_after_commit and driver[3] not in (NO_PARENT, *deletions):
            candidates = (*subsumed, driver[3])
        decided = tuple(sorted({*deletions, *(n for n in candidates if n not in pinned)}))
        if decided != deletions:
            rest = tuple(n for n in subsumed if n in pinned)
            after = (*head, rest, decided, pins, *tail)
            yield f"list the tags, will delete {list(decided)}", _driver(state, at, after)
        for number in deletions:
            rest = tuple(n for n in deletions if n != number)
            after = (*head, subsumed, rest, pins, *tail)
            yield f"delete {number}", _driver(_delete(state, number), at, after)

    def _crash(self, state: State, at: int, driver: Any) -> Iterator[tuple[str, State]]:
        crashed = _driver(state, at, (IDLE,))
        yield "crash", crashed
        if driver[0] != OWNER or state[4][2] >= self._bounds.late:
            return
        for number in driver[7]:
            entries, flights, drivers, tag, (claims, lost, late, rewinds), *rest = crashed
            under_way = tuple(sorted((*flights, (number, NOTHING))))
            budgets = claims, lost, late + 1, rewinds
            sent = (entries, under_way, drivers, tag, budgets, *rest)
            yield f"crash, a deletion of {number} under way", sent

    # --- the store ------------------------------------------------------------------------------

    def _puts(self, state: State, number: int, content: Content) -> Iterator[Put]:
        """Yield the answers to a put of a free name."""
        landed = _land(state, number, content)
        yield Put("done", landed, is_certain=True)
        claims, lost, late, rewinds = landed[4]
        if lost < self._bounds.lost:
            counted = (claims, lost + 1, late, rewinds)
            answer = (*landed[:4], counted, *landed[5:])
            yield Put("done, the answer is lost", answer, is_certain=False)
        if late < self._bounds.late:
            under_way = tuple(sorted((*state[1], (number, content))))
            counted = (claims, lost, late + 1, rewinds)
            sent = (state[0], under_way, *state[2:4], counted, *state[5:])
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
        newest = newest_ever(state)
        for number, (first, stored, _) in enumerate(state[0]):
            if is_garbage(first, stored) and stored and number < newest:
                yield f"{number} is deleted once more", _delete(state, number)

    # --- a person who tags, or forks ------------------------------------------------------------

    def _tag(self, state: State) -> Iterator[tuple[str, State]]:
        phase, number = state[3]
        present = checkpoints(state)
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
    return (tuple(entries), *state[1:5], fault, state[6])


def _delete(state: State, number: int) -> State:
    entries = list(state[0])
    first, _, reported = entries[number]
    entries[number] = (first, NOTHING, reported)
    return (tuple(entries), *state[1:])


def is_garbage(first: Content, stored: Content) -> bool:
    """Return whether a number had a checkpoint that was deleted; nothing there counts any more."""
    return first[:1] == (CHECKPOINT,) and stored != first
