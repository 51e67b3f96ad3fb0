"""Positions of readers, and the checkpoint that a time means."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.support.locations.histories import History

from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.listing import find_checkpoint_at, parse_time
from statelog.checkpoint.retained import Tag, TagKind, retained_checkpoints
from statelog.checkpoint.tags import ReaderPosition, put_tag
from statelog.errors import CheckpointError, UsageError
from statelog.testing.faulty_store import FaultyStore


def position(history: History, name: str = "copy", newest: int = 4) -> ReaderPosition:
    return ReaderPosition(store=history.store, name=name, newest=newest, clock_ms=lambda: 7)


def kept(history: History) -> tuple[int, ...]:
    return retained_checkpoints(history.store)


def test_a_position_keeps_what_was_not_read_within_its_bound() -> None:
    history = History("position", FaultyStore(), retained=1)
    history.run(2)
    reader = position(history)
    assert reader.current() is None
    reader.move(2)
    other = Tag(kind=TagKind.TAG, name="copy", checkpoint_id=2)
    put_tag(history.store, other, clock_ms=lambda: 7)
    history.run(2)
    assert (kept(history), reader.current()) == ((2, 3, 4), 2)
    reader.move(4)
    reader.move(4)
    history.run(3)  # a clean-up that has something to delete learns of the new position
    assert (kept(history), reader.current()) == ((2, 4, 5, 6, 7), 4), "2 has a tag of its own"
    history.run(3)
    assert kept(history)[0] == 2
    assert set(range(7, 11)) <= {*kept(history)} <= {2, *range(6, 11)}
    with pytest.raises(
        CheckpointError, match=r"checkpoint 4 .*(no longer|not exist).* cannot be pinned"
    ):
        position(history, "late").move(4)
    reader.move(10)
    position(history, "second").move(9)
    reader.remove()
    history.run(2)
    assert {2, 9, 10, 11, 12} <= {*kept(history)}
    assert reader.current() is None
    with pytest.raises(UsageError, match="is not a valid tag name"):
        position(history, "a/b")


def test_a_time_means_the_newest_checkpoint_before_it() -> None:
    history = History("times", FaultyStore(), retained=3)
    history.run(5)
    made = {one: read_checkpoint(history.store, one).checkpoint.created_at_ms for one in (3, 4, 5)}
    assert len(set(made.values())) == 3
    for one, milliseconds in made.items():
        time = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=milliseconds)
        assert find_checkpoint_at(history.store, time) == one
        bare = parse_time(time.replace(tzinfo=None).isoformat())
        assert find_checkpoint_at(history.store, bare) == one
        before = time - dt.timedelta(milliseconds=1)
        if one > 3:
            assert find_checkpoint_at(history.store, before) == one - 1
            continue
        with pytest.raises(CheckpointError, match="the oldest, checkpoint 3, was created at"):
            find_checkpoint_at(history.store, before)
    with pytest.raises(UsageError, match="'yesterday' is not an ISO 8601 time"):
        parse_time("yesterday")
    with pytest.raises(CheckpointError, match="retains no checkpoint"):
        find_checkpoint_at(FaultyStore(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
