"""Names of checkpoints outside of their location, and which history has them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.errors import CorruptionError, UsageError
from statelog.format.checkpoint_record import decode_record, encode_record
from statelog.model import CheckpointPosition, CompletedCheckpoint, Timeline
from statelog.model.checkpoint import ANCESTORS_MAX, TimelineEnd, is_history_name

names = st.text("0123456789abcdef", max_size=32)
numbers = st.integers(0, 1 << 40)


def checkpoint(number: int, timeline: Timeline, attempt: str = "a0") -> CompletedCheckpoint:
    return CompletedCheckpoint(
        checkpoint_id=number,
        parent_id=None,
        created_at_ms=0,
        epoch=0,
        owner_id="o",
        max_parallelism=8,
        attempt=attempt,
        timeline=timeline,
    )


@given(st.builds(CheckpointPosition, names, numbers, numbers, names))
def test_a_position_is_read_back_from_its_text(position: CheckpointPosition) -> None:
    assert position == CheckpointPosition.from_text(position.to_text())


@pytest.mark.parametrize(
    "text", ["", "7", "a/0/7", "a/0/7/b/c", "x/0/7/b", "a/-1/7/b", "a/0/7.5/b", "a/0//b", "a/0/7/B"]
)
def test_another_text_is_no_position(text: str) -> None:
    with pytest.raises(
        UsageError, match="does not identify a checkpoint: expected location/timeline/number"
    ):
        CheckpointPosition.from_text(text)


@pytest.mark.parametrize(
    ("text", "is_name"), [("", True), ("0a", True), ("A", False), ("0" * 33, False)]
)
def test_names_of_histories_are_hexadecimal(text: str, is_name: bool) -> None:
    assert is_name is is_history_name(text)


def test_a_history_has_its_timeline_and_the_beginning_of_earlier_ones() -> None:
    first = Timeline("a", 0)
    second = first.continued("a", 5, 3)
    newest = checkpoint(9, second.continued("b", 8, 6))
    for location, timeline, number, is_part in (
        ("a", 0, 3, True),
        ("a", 0, 4, False),
        ("a", 5, 6, True),
        ("a", 5, 7, False),
        ("b", 8, 8, True),
        ("b", 8, 10, False),
        ("b", 5, 6, False),
        ("b", 0, 1, False),
        ("a", 8, 6, False),
    ):
        assert is_part is newest.continues(CheckpointPosition(location, timeline, number, "a1"))


def test_two_checkpoints_of_one_number_are_told_apart_by_one_object() -> None:
    first = Timeline("a", 0)
    wrong, right = checkpoint(9, first), checkpoint(9, first.continued("a", 8, 6))
    assert wrong.continues(wrong.position)
    assert right.continues(right.position)
    assert not wrong.continues(right.position)
    assert not right.continues(wrong.position)
    # A folder that was restored by other means uses the number again in the same timeline.
    again = replace(wrong, attempt="a2")
    assert not again.continues(wrong.position)
    assert not wrong.continues(again.position)


def test_the_oldest_timelines_are_forgotten() -> None:
    timeline = Timeline("a", 0)
    for number in range(1, ANCESTORS_MAX + 10):
        timeline = timeline.continued("a", number, number)
    assert ANCESTORS_MAX == len(timeline.ancestors)
    assert TimelineEnd("a", ANCESTORS_MAX + 8, ANCESTORS_MAX + 9) == timeline.ancestors[-1]
    newest = checkpoint(1000, timeline)
    assert newest == decode_record(encode_record(newest))
    assert not newest.continues(CheckpointPosition("a", 0, 1, "a1"))


@pytest.mark.parametrize(
    "timeline",
    [
        Timeline("x", 0),
        Timeline("a", -1),
        Timeline("a", 2**63),
        Timeline("a", 3, (TimelineEnd("../", 0, 1),)),
        Timeline("a", 3, (TimelineEnd("a", 0, -1),)),
        Timeline("a", 3, (TimelineEnd("a", 0, 1),) * (ANCESTORS_MAX + 1)),
    ],
)
def test_a_record_with_a_timeline_that_no_checkpoint_has_is_damaged(timeline: Timeline) -> None:
    with pytest.raises(CorruptionError, match=r"hexadecimal|timeline|above"):
        decode_record(encode_record(checkpoint(4, timeline)))


def test_a_record_with_a_forged_attempt_is_damaged() -> None:
    with pytest.raises(CorruptionError, match="hexadecimal"):
        decode_record(encode_record(checkpoint(4, Timeline("a", 0), attempt="\x1b[2J")))
