"""A target tells the micro-batches of two histories apart, whatever their numbers."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, FencedError, UsageError

LOCATIONS = ("", "a", "b")
NUMBERS = range(3)
PLANS = ("", "x", "y")


def answer(batch: DeliveredBatch, last: DeliveredBatch | None) -> str:
    try:
        return "written" if batch.is_written(last, target="the target") else "write"
    except FencedError:
        return "fenced"
    except CheckpointError as error:
        assert ("gap", batch.batch_id) == (error.reason, error.batch_id)
        return "gap"


def batches() -> Iterator[DeliveredBatch]:
    """Every micro-batch that a driver may have, with its timeline or a later one."""
    for location, timeline, number, plan in itertools.product(LOCATIONS, NUMBERS, NUMBERS, PLANS):
        for run_timeline in range(timeline, 3):
            yield DeliveredBatch(location, timeline, number, plan, run_timeline)


RECORDS = sorted({batch.recorded for batch in batches()}, key=DeliveredBatch.to_text)


def test_every_answer_about_two_micro_batches() -> None:
    """Each rule by its words: a table of all pairs, in another order than the code decides."""
    for batch, last in itertools.product(batches(), RECORDS):
        is_other_location = last.location_id not in ("", batch.location_id)
        is_ahead = last.batch_id > batch.batch_id
        is_other_plan = "" != last.plan != batch.plan != ""
        if is_other_location:
            expected = "gap" if is_ahead or last.batch_id == batch.batch_id else "write"
        elif last.timeline > batch.run_timeline:
            expected = "fenced"
        elif last.timeline < batch.timeline:
            expected = "write"
        elif last.batch_id == batch.batch_id:
            expected = "gap" if is_other_plan else "written"
        elif is_ahead:
            expected = "gap" if last.timeline == batch.run_timeline else "written"
        else:
            expected = "write" if last.timeline == batch.timeline else "gap"
        assert expected == answer(batch, last), (batch, last)


def test_a_target_without_a_record_has_nothing() -> None:
    assert {"write"} == {answer(batch, None) for batch in batches()}


def test_a_micro_batch_is_written_once_its_record_is_there() -> None:
    for batch in batches():
        assert ("written", True) == (
            answer(batch, batch.recorded),
            batch.is_recorded_as(batch.recorded),
        )


def test_a_record_comes_back() -> None:
    for batch in batches():
        assert batch.recorded == DeliveredBatch.from_text(batch.to_text(), where="the table")
        back = DeliveredBatch.from_number(batch.number, batch.location_id)
        assert batch.is_recorded_as(back)
        assert batch.is_recorded_as(DeliveredBatch.from_number(batch.number))
    assert 7 == DeliveredBatch("a", 0, 7).number
    late = DeliveredBatch("a", 2**30, 2**31)
    assert late == DeliveredBatch.from_number(late.number, "a")
    assert late.number < 2**63


def test_only_the_own_record_is_recognised() -> None:
    for batch, last in itertools.product(batches(), RECORDS):
        numbers = (last.timeline, last.batch_id) == (batch.run_timeline, batch.batch_id)
        names = last.location_id in ("", batch.location_id) and (
            "" in (last.plan, batch.plan) or last.plan == batch.plan
        )
        assert (numbers and names) == batch.is_recorded_as(last)
    assert not DeliveredBatch("a", 0, 0).is_recorded_as(None)


def test_versions_rise_with_batches_and_timelines() -> None:
    numbers = [(0, 0), (0, 1), (0, 2**32 - 1), (1, 0), (1, 5), (2**31 - 1, 2**32 - 1)]
    versions = [DeliveredBatch("a", *number).number for number in numbers]
    assert versions == sorted(set(versions))


@pytest.mark.parametrize(
    "text",
    (
        *("", "3", "a/0/3", "a/0/3/x/y", "a/-1/3/", "a/0/x/", "a/٣/3/", "a/0/3.0/", "a/1e3/1/"),
        *("a/0//x", f"a/{'9' * 5000}/0/"),
    ),
)
def test_a_record_of_another_program_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="in the table cannot be read"):
        DeliveredBatch.from_text(text, where="the table")


def test_names_with_a_separator_and_negative_numbers_are_rejected() -> None:
    for arguments in (("a/b", 0, 0, ""), ("a", 0, 0, "x/y"), ("a", -1, 0, ""), ("a", 0, -1, "")):
        with pytest.raises(UsageError, match="micro-batch"):
            DeliveredBatch(*arguments)


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (
            DeliveredBatch("b", 0, 1),
            "contains batch 1, of a different state location, but the query is at",
        ),
        (DeliveredBatch("a", 0, 1, "y"), "batch 1, with different input under the same number"),
        (DeliveredBatch("a", 0, 4), r"batch 4, which the query has not reached.*\(a/0/4/\)"),
    ],
)
def test_a_gap_names_both_batches_and_the_record(last: DeliveredBatch, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        DeliveredBatch("a", 0, 1, "x").is_written(last, target="t")


def test_a_driver_of_an_earlier_timeline_hears_of_the_rewind() -> None:
    with pytest.raises(
        FencedError, match=r"batch 1 of timeline 3, .* batch 5 of timeline 2: the query"
    ):
        DeliveredBatch("a", 0, 5, "", 2).is_written(DeliveredBatch("a", 3, 1), target="t")


@dataclass(frozen=True)
class Sleeper:
    """A driver that sleeps before its sink; *after* is None if it has not looked at the target yet."""

    batch: DeliveredBatch
    has_looked: bool
    after: DeliveredBatch | None


@dataclass(frozen=True)
class Course:
    """
    A query, its target, and drivers that sleep.

    Args:
        history: The timeline of each committed micro-batch, by number.
        timeline: The timeline of the driver that runs.
        rows: The micro-batches whose rows the target has, as (timeline, number).
        record: The target's record of the query.
        is_delivered: Whether the newest micro-batch was delivered without an error.
    """

    history: tuple[int, ...] = ()
    timeline: int = 0
    rows: tuple[tuple[int, int], ...] = ()
    record: DeliveredBatch | None = None
    is_delivered: bool = True
    sleepers: tuple[Sleeper, ...] = ()
    steps: tuple[str, ...] = field(default=(), compare=False)


IsWritten = Callable[[DeliveredBatch, DeliveredBatch | None], bool]


class Model:
    """All courses of a query with three micro-batches, two rewinds and two drivers that sleep."""

    def __init__(self, is_written: IsWritten, *, compares: bool = True) -> None:
        self._is_written = is_written
        self._compares = compares

    def explore(self) -> int:
        """Return the number of states; a wrong one raises `AssertionError`."""
        seen = {Course()}
        new = [Course()]
        while new:
            new = [course for old in new for course in self._next(old) if course not in seen]
            new = list(dict.fromkeys(new))
            seen.update(new)
        return len(seen)

    def _next(self, course: Course) -> Iterator[Course]:
        if course.is_delivered and len(course.history) < 3:
            history = (*course.history, course.timeline)
            committed = replace(course, history=history, is_delivered=False)
            yield self._noted(committed, "crash before the sink")
            yield self._noted(self._deliver(committed), "deliver")
            if len(course.sleepers) < 2:
                for has_looked in (False, True):
                    sleeper = Sleeper(self._newest(committed), has_looked, course.record)
                    sleepers = (*course.sleepers, sleeper)
                    yield self._noted(replace(committed, sleepers=sleepers), "sleep")
        if course.history:
            yield self._noted(self._deliver(course), "restart")
        if course.timeline < 2:
            for number in range(len(course.history)):
                history, timeline = course.history[: number + 1], course.timeline + 1
                rewound = replace(course, history=history, timeline=timeline, is_delivered=False)
                yield self._noted(self._deliver(rewound), f"rewind to {number}")
        for sleeper in course.sleepers:
            yield self._noted(self._wake(course, sleeper), "wake")

    def _newest(self, course: Course) -> DeliveredBatch:
        number = len(course.history) - 1
        return DeliveredBatch("a", course.history[number], number, "", course.timeline)

    def _deliver(self, course: Course) -> Course:
        """The driver that runs looks, and writes."""
        batch = self._newest(course)
        if not self._is_written(batch, course.record):
            course = self._written(course, batch)
        course = replace(course, is_delivered=True)
        assert set(self._expected(course)) <= set(course.rows), course
        return course

    def _wake(self, course: Course, sleeper: Sleeper) -> Course:
        """A driver that slept writes, unless the rule or the comparison stops it."""
        sleepers = tuple(other for other in course.sleepers if other != sleeper)
        course, batch = replace(course, sleepers=sleepers), sleeper.batch
        after = sleeper.after if sleeper.has_looked else course.record
        try:
            if self._is_written(batch, after) or (self._compares and after != course.record):
                return course
        except (FencedError, CheckpointError):
            return course
        last = course.record
        written = self._written(course, batch)
        is_replaced = last is not None and last.timeline > batch.recorded.timeline
        assert not is_replaced, ("a driver from before the rewind has written", written)
        return written

    def _written(self, course: Course, batch: DeliveredBatch) -> Course:
        rows = (*course.rows, (batch.timeline, batch.batch_id))
        assert len(rows) == len(set(rows)), ("rows are written twice", course)
        return replace(course, rows=rows, record=batch.recorded)

    def _expected(self, course: Course) -> Iterator[tuple[int, int]]:
        return ((timeline, number) for number, timeline in enumerate(course.history))

    def _noted(self, course: Course, step: str) -> Course:
        return replace(course, steps=(*course.steps, step))


def rule(batch: DeliveredBatch, last: DeliveredBatch | None) -> bool:
    return batch.is_written(last, target="t")


def test_each_row_is_once_in_the_target_in_every_course() -> None:
    assert 1000 < Model(rule).explore()


def by_number(batch: DeliveredBatch, last: DeliveredBatch | None) -> bool:
    return last is not None and last.batch_id >= batch.batch_id


def by_equal_number(batch: DeliveredBatch, last: DeliveredBatch | None) -> bool:
    return last is not None and last.batch_id == batch.batch_id


def without_the_fence(batch: DeliveredBatch, last: DeliveredBatch | None) -> bool:
    try:
        return rule(batch, last)
    except FencedError:
        return False


def by_equal_timeline(batch: DeliveredBatch, last: DeliveredBatch | None) -> bool:
    return last is not None and batch.timeline == last.timeline and rule(batch, last)


def without_the_drivers_timeline(batch: DeliveredBatch, last: DeliveredBatch | None) -> bool:
    return rule(replace(batch, run_timeline=0), last)


@pytest.mark.parametrize(
    "wrong",
    [
        by_number,
        by_equal_number,
        without_the_fence,
        by_equal_timeline,
        without_the_drivers_timeline,
    ],
)
def test_a_wrong_rule_is_noticed(wrong: IsWritten) -> None:
    with pytest.raises((AssertionError, CheckpointError, FencedError)):
        Model(wrong).explore()


def test_a_write_that_does_not_compare_is_noticed() -> None:
    with pytest.raises((AssertionError, CheckpointError, FencedError)):
        Model(rule, compares=False).explore()
