"""Identity and timelines of locations: what begins them, and which history has which checkpoint."""

import shutil
from pathlib import Path

import pytest
from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import (
    coordinator,
    log_inline,
    run_checkpoint,
    started,
)
from tests.support.locations.sequence_entries import entries

import statelog
from statelog.checkpoint import CheckpointCoordinator
from statelog.checkpoint.history import Entries
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import (
    CompletedCheckpoint,
    KeyGroupRange,
    TaskStateSnapshot,
    Timeline,
)
from statelog.model.checkpoint import TimelineEnd
from statelog.store import ObjectStore, open_location

ALL = KeyGroupRange(0, 7)


def commit(driver: CheckpointCoordinator, batch_id: int = 0) -> CompletedCheckpoint:
    number = driver.next_checkpoint_id
    snapshot = TaskStateSnapshot(ALL, log_inline(ALL, [[(1, str(number).encode())]], number))
    properties = one_operator(batch_id=batch_id).to_properties()
    return run_checkpoint(driver, number, [snapshot], properties=properties)


def rewound(
    store: ObjectStore, number: int, *, retained: int = 2, begins_timeline: bool = False
) -> CheckpointCoordinator:
    """Return a new owner that goes back to a checkpoint."""
    driver = coordinator(store, "rewind", retained=retained)
    driver.claim()
    driver.restore(number, begins_timeline=begins_timeline)
    return driver


def claims_of(folder: Path) -> list[tuple[str, int]]:
    """Return identity and timeline of each claim."""
    return [
        (entry.location_id, entry.timeline)
        for entry in entries(folder).values()
        if isinstance(entry, ClaimRecord)
    ]


def newest_of(folder: Path) -> CompletedCheckpoint:
    newest = Entries(open_location(str(folder))).newest()
    assert newest is not None
    return newest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A location with checkpoints 1 to 3, of which 2 and 3 are retained."""
    driver = started(open_location(str(tmp_path / "state")), retained=2)
    for batch_id in range(3):
        commit(driver, batch_id)
    return tmp_path / "state"


def test_the_first_claim_makes_the_identity_and_later_entries_repeat_it(folder: Path) -> None:
    store = open_location(str(folder))
    first = entries(folder)[0]
    assert isinstance(first, ClaimRecord)
    assert first.attempt == first.location_id
    assert Timeline(first.location_id, 0) == newest_of(folder).timeline
    started(store, "died")
    later = commit(started(store, retained=2))
    assert Timeline(first.location_id, 0) == later.timeline
    assert [(first.location_id, 0)] * 3 == claims_of(folder)


def test_only_going_back_begins_a_timeline_unasked(folder: Path) -> None:
    store = open_location(str(folder))
    name = newest_of(folder).timeline.location_id
    assert Timeline(name, 0) == rewound(store, 3).timeline
    ended_before_its_commit = rewound(store, 2)
    assert 5 == ended_before_its_commit.timeline.number
    right = commit(rewound(store, 2))
    assert Timeline(name, 6, (TimelineEnd(name, 0, 2),)) == right.timeline
    newest = commit(started(store, retained=2))
    assert right.timeline == newest.timeline
    assert [(name, 0)] * 4 + [(name, 6)] == claims_of(folder)
    # A caller may also ask for one at the newest checkpoint.
    asked = commit(rewound(store, 9, begins_timeline=True))
    ends = (TimelineEnd(name, 0, 2), TimelineEnd(name, 6, 9))
    assert Timeline(name, 10, ends) == asked.timeline


def test_a_fork_begins_a_timeline_of_its_own_location(folder: Path) -> None:
    fork = statelog.fork(folder, folder.parent / "fork", checkpoint=2, state_only=True)
    name = newest_of(folder).timeline.location_id
    first = newest_of(folder.parent / "fork")
    assert Timeline(fork.fork_id, 0, (TimelineEnd(name, 0, 2),)) == first.timeline
    later = commit(started(open_location(str(folder.parent / "fork"))))
    assert first.timeline == later.timeline
    assert later.continues(first.position)
    assert not later.continues(newest_of(folder).position)


def test_the_first_owner_of_each_copy_of_a_copy_begins_a_timeline(folder: Path) -> None:
    base, place = newest_of(folder), folder
    expected = base.timeline
    for step in range(3):
        copy = folder.parent / f"copy-{step}"
        statelog.copy(place, copy)
        assert newest_of(place).position == newest_of(copy).position
        (mark,) = copy.glob("copied-*/from")
        copy_id = mark.parent.name.removeprefix("copied-")
        if step != 1:  # the second copy is copied before a query owns it
            driver = started(open_location(str(copy)), retained=2)
            number = driver.epoch or 0
            expected = expected.continued(copy_id, number, newest_of(copy).checkpoint_id)
            assert expected == commit(driver).timeline
            assert expected == commit(started(open_location(str(copy)), retained=2)).timeline
        place = copy
    assert newest_of(place).continues(base.position)
    assert not commit(started(open_location(str(folder)))).continues(newest_of(place).position)


def test_a_restored_folder_is_recognized_by_the_attempt(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "backup")
    lost = commit(started(open_location(str(folder)), retained=2))
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "backup", folder)
    again = commit(started(open_location(str(folder)), retained=2))
    assert lost.checkpoint_id == again.checkpoint_id
    assert lost.timeline == again.timeline
    assert not again.continues(lost.position)
