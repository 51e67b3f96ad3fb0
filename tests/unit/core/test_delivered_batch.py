"""A target tells the micro-batches of two histories apart, whatever their numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

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


def test_every_answer_about_two_micro_batches():
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


def test_a_target_without_a_record_has_nothing():
    assert {"write"} == {answer(batch, None) for batch in batches()}


def test_a_micro_batch_is_written_once_its_record_is_there():
    for batch in batches():
        assert ("written", True) == (
            answer(batch, batch.recorded),
            batch.is_recorded_as(batch.recorded),
        )


def test_a_record_comes_back():
    for batch in batches():
        assert batch.recorded == DeliveredBatch.from_text(batch.to_text(), where="the table")
        back = DeliveredBatch.from_number(batch.number, batch.location_id)
        assert batch.is_recorded_as(back)
        assert batch.is_recorded_as(DeliveredBatch.from_number(batch.number))
    assert 7 == DeliveredBatch("a", 0, 7).number
    late = DeliveredBatch("a", 2**30, 2**31)
    assert late == DeliveredBatch.from_number(late.number, "a")
    assert late.number < 2**63


def test_only_the_own_record_is_recognised():
    for batch, last in itertools.product(batches(), RECORDS):
        numbers = (last.timeline, last.batch_id) == (batch.run_timeline, batch.batch_id)
        names = last.location_id in ("", batch.location_id) and (
            "" in (last.plan, batch.plan) or last.plan == batch.plan
        )
        assert (numbers and names) == batch.is_recorded_as(last)
    assert not DeliveredBatch("a", 0, 0).is_recorded_as(None)


def test_versions_rise_with_batches_and_timelines():
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
def test_a_record_of_another_program_is_rejected(text):
    with pytest.raises(UsageError, match="in the table cannot be read"):
        DeliveredBatch.from_text(text, where="the table")


def test_names_with_a_separator_and_negative_numbers_are_rejected():
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
def test_a_gap_names_both_batches_and_the_record(last, text):
    with pytest.raises(CheckpointError, match=text):
        DeliveredBatch("a", 0, 1, "x").is_written(last, target="t")


def test_a_driver_of_an_earlier_timeline_is_fenced_by_the_rewind():
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

    def then(self, step: str, **changes: Any) -> Course:
        return replace(self, steps=(*self.steps, step), **changes)


def explored_courses() -> int:
    """
    Return the number of courses with three micro-batches, two rewinds and two sleeping drivers.

    A wrong course raises `AssertionError`.
    """
    seen = {Course()}
    new = [Course()]
    while new:
        new = [course for old in new for course in next_courses(old) if course not in seen]
        new = list(dict.fromkeys(new))
        seen.update(new)
    return len(seen)


def next_courses(course: Course) -> Iterator[Course]:
    if course.is_delivered and len(course.history) < 3:
        history = (*course.history, course.timeline)
        committed = course.then("crash before the sink", history=history, is_delivered=False)
        yield committed
        yield delivered(committed).then("deliver")
        if len(course.sleepers) < 2:
            for has_looked in (False, True):
                sleeper = Sleeper(newest(committed), has_looked, course.record)
                yield committed.then("sleep", sleepers=(*course.sleepers, sleeper))
    if course.history:
        yield delivered(course).then("restart")
    if course.timeline < 2:
        for number in range(len(course.history)):
            rewound = course.then(
                f"rewind to {number}",
                history=course.history[: number + 1],
                timeline=course.timeline + 1,
                is_delivered=False,
            )
            yield delivered(rewound)
    for sleeper in course.sleepers:
        yield woken(course, sleeper).then("wake")


def newest(course: Course) -> DeliveredBatch:
    number = len(course.history) - 1
    return DeliveredBatch("a", course.history[number], number, "", course.timeline)


def delivered(course: Course) -> Course:
    """Let the driver that runs look at the target, and write."""
    batch = newest(course)
    if not batch.is_written(course.record, target="t"):
        course = written(course, batch)
    expected = {(timeline, number) for number, timeline in enumerate(course.history)}
    assert expected <= set(course.rows), course
    return replace(course, is_delivered=True)


def woken(course: Course, sleeper: Sleeper) -> Course:
    """Let a driver that slept write, unless the rule, or a newer record, stops it."""
    others = tuple(other for other in course.sleepers if other != sleeper)
    course = replace(course, sleepers=others)
    after = sleeper.after if sleeper.has_looked else course.record
    try:
        if sleeper.batch.is_written(after, target="t") or after != course.record:
            return course
    except (FencedError, CheckpointError):
        return course
    is_rewound = after is not None and after.timeline > sleeper.batch.recorded.timeline
    assert not is_rewound, ("a driver from before the rewind has written", course)
    return written(course, sleeper.batch)


def written(course: Course, batch: DeliveredBatch) -> Course:
    rows = (*course.rows, (batch.timeline, batch.batch_id))
    assert len(rows) == len(set(rows)), ("rows are written twice", course)
    return replace(course, rows=rows, record=batch.recorded)


def test_each_row_is_once_in_the_target_in_every_course():
    assert 1000 < explored_courses()
