"""A target tells the micro-batches of two histories apart, whatever their numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

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
        (DeliveredBatch("b", 0, 1), "contains batch 1, of a different state location, but the"),
        (DeliveredBatch("a", 0, 1, "y"), "batch 1, with different input under the same number"),
        (DeliveredBatch("a", 0, 4), r"batch 4, which the query has not reached.*\(a/0/4/\)"),
    ],
)
def test_a_gap_names_both_batches_and_the_record(last, text):
    with pytest.raises(CheckpointError, match=text):
        DeliveredBatch("a", 0, 1, "x").is_written(last, target="t")


def test_a_driver_of_an_earlier_timeline_is_fenced_by_the_rewind():
    with pytest.raises(FencedError, match=r"batch 1 of timeline 3, .* batch 5 of timeline 2"):
        DeliveredBatch("a", 0, 5, "", 2).is_written(DeliveredBatch("a", 3, 1), target="t")
