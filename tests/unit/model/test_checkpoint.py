"""Key groups are covered by snapshots and log and shared among tasks; which history has a checkpoint."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.locations.checkpoints import record_of
from tests.support.strategies import KEY_GROUPS, checkpoints, log_handle

from statelog.errors import CorruptionError, UsageError
from statelog.format.checkpoint_record import decode_record, encode_record
from statelog.model import (
    OBJECTS_PROPERTY,
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    CheckpointPosition,
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    Timeline,
    live_log,
    live_snapshots,
    split_key_groups,
)
from statelog.model.checkpoint import ANCESTORS_MAX, TimelineEnd, is_history_name


def of_group(handles, key_group):
    return [handle for handle in handles if key_group in handle.key_group_range]


def expected(checkpoint, key_group):
    """The rule itself: the newest snapshot (the later of equals), then the younger log."""
    snapshots = of_group(checkpoint.materialized, key_group)
    best = max(reversed(snapshots), key=lambda snapshot: snapshot.checkpoint_id, default=None)
    since = -1 if best is None else best.checkpoint_id
    log = [handle for handle in of_group(checkpoint.log, key_group) if handle.checkpoint_id > since]
    return None if best is None else best.handle.path, [handle.state_handle_id for handle in log]


def as_restored(handle: ChangelogStateBackendHandle, key_group):
    snapshots = of_group(handle.materialized, key_group)
    assert len(snapshots) <= 1, "two snapshots for a key group"
    log = [entry.state_handle_id for entry in of_group(handle.log, key_group)]
    return (snapshots[0].handle.path if snapshots else None), log


@settings(max_examples=300, deadline=None)
@given(checkpoints(), st.integers(1, KEY_GROUPS))
def test_any_split_reads_every_change_once_and_nothing_twice(checkpoint, parallelism):
    for key_groups in split_key_groups(KEY_GROUPS, parallelism):
        handle = checkpoint.for_range(key_groups)
        assert handle.key_group_range == key_groups
        for part in (*handle.materialized, *handle.log):
            assert len(part.key_group_range) > 0
            assert part.key_group_range.intersection(key_groups) == part.key_group_range
        for key_group in key_groups:
            assert as_restored(handle, key_group) == expected(checkpoint, key_group)


@settings(max_examples=200, deadline=None)
@given(checkpoints())
def test_pruning_changes_nothing_that_is_restored(checkpoint):
    snapshots = live_snapshots(checkpoint.materialized, KEY_GROUPS)
    log = live_log(checkpoint.log, snapshots, KEY_GROUPS)
    needed_paths, needed_ids = set(), set()
    for key_group in range(KEY_GROUPS):
        path, ids = expected(checkpoint, key_group)
        assert path is None or of_group(snapshots, key_group)[-1].handle.path == path
        log_ids = [handle.state_handle_id for handle in of_group(log, key_group)]
        assert [log_id for log_id in log_ids if log_id in ids] == ids
        needed_paths.add(path)
        needed_ids.update(ids)
    assert {snapshot.handle.path for snapshot in snapshots} == needed_paths - {None}
    assert {handle.state_handle_id for handle in log} == needed_ids


def test_a_range_beyond_the_job_is_refused():
    with pytest.raises(UsageError, match="exceed the 4 key groups"):
        record_of(max_parallelism=4).for_range(KeyGroupRange(0, 4))


def test_referenced_paths_name_each_object_once():
    key_groups = KeyGroupRange(0, 3)
    checkpoint = record_of(
        log=[log_handle(*numbers, key_groups) for numbers in ((0, 1), (1, 1), (1, 0))],
        materialized=[
            MaterializedHandle(key_groups, 0, FileStateHandle("s", 1)),
            MaterializedHandle(key_groups, 0, ByteStreamStateHandle("inline", b"")),
        ],
        max_parallelism=4,
        properties={OBJECTS_PROPERTY: ["output/x"]},
    )
    assert checkpoint.referenced_paths() == ("f0", "f1", "output/x", "s")


def test_a_snapshot_of_nothing_is_refused():
    with pytest.raises(UsageError):
        MaterializedHandle(KeyGroupRange.empty(), 0, FileStateHandle("s", 1))


names = st.text("0123456789abcdef", max_size=32)
numbers = st.integers(0, 1 << 40)


def checkpoint(number: int, timeline: Timeline, attempt: str = "a0") -> CompletedCheckpoint:
    return record_of(checkpoint_id=number, attempt=attempt, timeline=timeline)


@given(st.builds(CheckpointPosition, names, numbers, numbers, names))
def test_a_position_is_read_back_from_its_text(position):
    assert position == CheckpointPosition.from_text(position.to_text())


@pytest.mark.parametrize(
    "text", ["", "7", "a/0/7", "a/0/7/b/c", "x/0/7/b", "a/-1/7/b", "a/0/7.5/b", "a/0//b", "a/0/7/B"]
)
def test_another_text_is_no_position(text):
    with pytest.raises(UsageError, match="does not identify a checkpoint: expected location"):
        CheckpointPosition.from_text(text)


@pytest.mark.parametrize(
    ("text", "is_name"), [("", True), ("0a", True), ("A", False), ("0" * 33, False)]
)
def test_names_of_histories_are_hexadecimal(text, is_name):
    assert is_name is is_history_name(text)


def test_a_history_has_its_timeline_and_the_beginning_of_earlier_ones():
    first = Timeline("a", 0)
    second = first.continued("a", 5, 3)
    newest = checkpoint(9, second.continued("b", 8, 6))
    part = [("a", 0, 3), ("a", 5, 6), ("b", 8, 8)]
    others = [("a", 0, 4), ("a", 5, 7), ("b", 8, 10), ("b", 5, 6), ("b", 0, 1), ("a", 8, 6)]
    for position in part + others:
        is_part = newest.continues(CheckpointPosition(*position, "a1"))
        assert is_part is (position in part), position


def test_two_checkpoints_of_one_number_are_told_apart_by_one_object():
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


def test_the_oldest_timelines_are_forgotten():
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
def test_a_record_with_a_timeline_that_no_checkpoint_has_is_damaged(timeline):
    with pytest.raises(CorruptionError, match=r"hexadecimal|timeline|above"):
        decode_record(encode_record(checkpoint(4, timeline)))


def test_a_record_with_a_forged_attempt_is_damaged():
    with pytest.raises(CorruptionError, match="hexadecimal"):
        decode_record(encode_record(checkpoint(4, Timeline("a", 0), attempt="\x1b[2J")))


@given(start=st.integers(0, 50), count=st.integers(1, 300), parts=st.integers(1, 400))
def test_parts_share_all_key_groups(start: int, count: int, parts: int) -> None:
    whole = KeyGroupRange(start, start + count - 1)
    ranges = whole.split(parts)
    assert [group for part in ranges for group in part] == list(whole)
    assert len(ranges) == min(parts, count)
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
