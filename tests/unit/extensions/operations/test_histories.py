"""Identity and timelines of locations: what begins them, and which history has which checkpoint."""

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import (
    coordinator,
    log_inline,
    put_named_tag,
    run_checkpoint,
    started,
)
from tests.support.locations.sequence_entries import entries

import statelog
from statelog.checkpoint import CheckpointCoordinator, list_checkpoints
from statelog.checkpoint.history import Entries
from statelog.checkpoint.listing import CheckpointSummary
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import (
    CheckpointPosition,
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


# --- random courses -------------------------------------------------------------------------------


@dataclass
class Course:
    """
    Locations that commit, go back, are tagged, forked, copied and made again, and a model of what happened.

    The model has for each attempt the attempt that it continues.
    """

    root: Path
    rng: random.Random
    parents: dict[str, str | None] = field(default_factory=dict)
    positions: set[CheckpointPosition] = field(default_factory=set)
    places: list[Path] = field(default_factory=list)
    drivers: dict[Path, CheckpointCoordinator] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def run(self, steps: int) -> None:
        self.make()
        for _ in range(steps):
            name = self.rng.choice(
                ["commit"] * 4 + ["restart", "rewind", "rewind", "tag"] + self.rare
            )
            getattr(self, name)(self.rng.choice(self.places))
            self.seen[name] += 1
        self.check()

    @property
    def rare(self) -> list[str]:
        return ["fork", "copy", "make_again"] if len(self.places) < 5 else ["make_again"]

    def new_place(self) -> Path:
        self.places.append(self.root / f"location-{len(self.places)}")
        return self.places[-1]

    def make(self) -> None:
        self.make_again(self.new_place())

    def make_again(self, place: Path) -> None:
        if any((other / "parents").is_dir() for other in self.places):
            return  # a fork needs it
        shutil.rmtree(place, ignore_errors=True)
        self.restart(place)

    def note(self, checkpoint: CompletedCheckpoint, parent: str | None) -> None:
        assert checkpoint.attempt not in self.parents
        self.parents[checkpoint.attempt] = parent
        self.positions.add(checkpoint.position)

    def commit(self, place: Path) -> None:
        driver = self.drivers.get(place)
        if driver is None:
            self.restart(place)
            return
        base = driver.latest
        self.note(commit(driver), None if base is None else base.attempt)
        if self.rng.random() < 0.5:
            driver.clean_up()

    def restart(self, place: Path) -> None:
        self.drivers[place] = started(open_location(str(place)), retained=3)
        self.commit(place)

    def rewind(self, place: Path) -> None:
        begins = self.rng.random() < 0.3
        older = self.retained(place).checkpoint_id
        driver = rewound(open_location(str(place)), older, retained=3, begins_timeline=begins)
        self.drivers[place] = driver
        self.commit(place)

    def retained(self, place: Path) -> CheckpointSummary:
        """Return one of the retained checkpoints."""
        checkpoints = list_checkpoints(open_location(str(place)))
        return self.rng.choice([checkpoint for checkpoint in checkpoints if checkpoint.is_retained])

    def tag(self, place: Path) -> None:
        newest_id = newest_of(place).checkpoint_id
        put_named_tag(open_location(str(place)), f"tag-{self.seen['tag']}", newest_id)

    def fork(self, place: Path) -> None:
        base = self.retained(place)
        new = self.new_place()
        statelog.fork(place, new, checkpoint=base.checkpoint_id, state_only=True)
        assert base.position is not None
        self.note(newest_of(new), base.position.attempt)

    def copy(self, place: Path) -> None:
        statelog.copy(place, self.new_place())

    def line(self, attempt: str | None) -> set[str]:
        line = set()
        while attempt is not None:
            line.add(attempt)
            attempt = self.parents[attempt]
        return line

    def check(self) -> None:
        """What the newest checkpoint of each location says of any other one is what happened."""
        for place in self.places:
            newest = newest_of(place)
            line = self.line(newest.attempt)
            for position in self.positions:
                is_part = position.attempt in line
                assert is_part is newest.continues(position), f"{place.name}: {position}"
                self.seen[f"continues: {is_part}"] += 1
            for summary in list_checkpoints(open_location(str(place))):
                assert summary.position is not None
                assert summary.is_given_up is (summary.position.attempt not in line)
                self.seen[f"given up: {summary.is_given_up}"] += 1


@pytest.mark.parametrize("block", range(5))
def test_the_newest_checkpoint_knows_its_history(block: int, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * 6, block * 6 + 6):
        course = Course(tmp_path / str(seed), random.Random(seed))
        course.run(25)
        seen += course.seen
    steps = {"fork", "copy", "make_again", "rewind", "tag"}
    assert {*steps, "given up: True", "continues: True", "continues: False"} <= seen.keys()
