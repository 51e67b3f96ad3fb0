"""Tags: what is pinned stays whole, in any order of commits, clean-ups, restarts and sweeps."""

import datetime as dt
import random

import pytest
from tests.support.locations.checkpoints import (
    ManualClock,
    log_in_file,
    read_log,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.locations.histories import History
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint import collect_garbage
from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.listing import find_checkpoint_at, parse_time
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import Tag, TagKind, delete_tag, list_tags, retained_checkpoints
from statelog.checkpoint.tags import ReaderPosition, find_tag, put_tag, read_tag
from statelog.errors import CheckpointError, CorruptionError, IncompatibleFormatError, UsageError
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot
from statelog.model.checkpoint import Pin
from statelog.testing.faulty_store import FaultyStore

ALL = KeyGroupRange(0, 7)
NAMED = {"facts": {"comment": "before the release"}, "files": {"offsets/7": b"v1\n{}\n3\n"}}


@pytest.fixture
def store() -> DictStore:
    return DictStore()


def tag(store, checkpoint_id, name="t", kind=TagKind.TAG, newest=0, **more):
    new = Tag(kind=kind, name=name, checkpoint_id=checkpoint_id, newest=newest)
    return put_tag(store, new, clock_ms=ManualClock(), **more)


def sweep(store):
    later = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    return collect_garbage(store, min_age=dt.timedelta(0), apply=True, now=later)


def snapshot_of(store, name, checkpoint_id):
    store.put(f"taskowned/{name}", b"state")
    return MaterializedHandle(ALL, checkpoint_id, FileStateHandle(f"taskowned/{name}", 5))


def values_of(store, checkpoint_id):
    """Return the values in the log of a checkpoint, read as a restoring task would."""
    log = find_checkpoint(store, checkpoint_id).log
    return [bytes(change.value) for change in read_log(store, log)]


def test_the_content_of_a_tag_is_read_back_and_verified(store):
    small_checkpoint(started(store), 1)
    release = tag(store, 1, "v1.2", **NAMED)
    assert list_tags(store) == [release]
    content = read_tag(store, release)
    assert (content.facts, content.files) == (NAMED["facts"], NAMED["files"])
    data, when = store.objects[release.path]
    for position in range(1, len(data)):
        flipped = (*data[:position], data[position] ^ 1, *data[position + 1 :])
        store.objects[release.path] = bytes(flipped), when
        with pytest.raises((CorruptionError, IncompatibleFormatError)):
            read_tag(store, release)


def test_a_tag_after_the_commit_that_subsumed_it_is_refused(store):
    owner = started(store, retained=1)
    small_checkpoint(owner, 1)
    small_checkpoint(owner, 2)  # checkpoint 1 is subsumed, and not yet deleted
    with pytest.raises(CheckpointError, match="no longer retained") as raised:
        tag(store, 1)
    assert raised.value.reason == "subsumed"
    assert list_tags(store) == []
    with pytest.raises(CheckpointError, match="does not exist"):
        tag(store, 9)


def test_names_are_unique_and_plain(store):
    small_checkpoint(started(store), 1)
    assert tag(store, 1) == find_tag(store, "t", TagKind.TAG)
    with pytest.raises(UsageError, match="already"):
        tag(store, 1)
    tag(store, 1, kind=TagKind.FORK)
    for name in ("", "a/b", "../x", "ä", "a b", ".x", "x" * 101):
        with pytest.raises(UsageError):
            tag(store, 1, name)
    with pytest.raises(CheckpointError, match="existing: t"):
        find_tag(store, "other", TagKind.TAG)


def test_a_reader_pins_later_checkpoints_up_to_its_bound(store):
    assert [i for i in range(10) if Pin(3, 4).holds(i, 9)] == [6, 7, 8, 9]
    assert [i for i in range(10) if Pin(3, 9).holds(i, 9)] == [3, 4, 5, 6, 7, 8, 9]
    owner = started(store, retained=1)
    for checkpoint_id in range(1, 10):
        small_checkpoint(owner, checkpoint_id)
        owner.clean_up()
        if checkpoint_id == 2:
            tag(store, 2, "feed", TagKind.READER, newest=5)
        if checkpoint_id == 6:
            assert owner.checkpoints() == [2, 3, 4, 5, 6]
    assert owner.checkpoints() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("seed", range(40))
def test_tagged_checkpoints_stay_whole_in_any_order(store, seed):
    dice = random.Random(seed)
    written: dict[int, list[bytes]] = {}
    tags: dict[str, Tag] = {}
    owner = started(store, "0", retained=dice.randint(1, 3))
    base, restarts = -1, 0
    for step in range(120):
        match dice.choice(["commit"] * 6 + ["clean", "tag", "tag", "untag", "restart", "sweep"]):
            case "commit":
                checkpoint_id = owner.next_checkpoint_id
                value = f"v{checkpoint_id}".encode()
                snapshot = None
                if base >= 0 and dice.random() < 0.3:  # the log up to the last checkpoint ends
                    snapshot = snapshot_of(store, f"s{step}", base)
                log = log_in_file(store, ALL, [[(1, value)]])
                of_task = TaskStateSnapshot(ALL, log, snapshot)
                newest = run_checkpoint(owner, checkpoint_id, [of_task])
                written[checkpoint_id] = ([] if snapshot else written.get(base, [])) + [value]
                base = checkpoint_id
                if dice.random() < 0.8:
                    owner.clean_up()
            case "clean":
                owner.clean_up()
            case "tag" if written:
                tagged_id = dice.choice(sorted(written)[-5:])
                try:
                    tags[f"t{step}"] = tag(store, tagged_id, f"t{step}")
                except CheckpointError as error:
                    assert error.reason in ("subsumed", "not_found")
                    assert tagged_id not in newest.retained
            case "untag" if tags:
                delete_tag(store, tags.pop(dice.choice(sorted(tags))))
            case "restart":
                restarts += 1
                owner = started(store, str(restarts), retained=dice.randint(1, 3))
                retained = owner.checkpoints()
                if retained and dice.random() < 0.4:
                    base = dice.choice(retained)
                    owner.restore(base)
            case "sweep" if written:
                sweep(store)
        owner._ledger.check_invariants()
        for mark in tags.values():
            assert values_of(store, mark.checkpoint_id) == written[mark.checkpoint_id], mark
    assert written


def position(history: History, name: str = "copy", newest: int = 4) -> ReaderPosition:
    return ReaderPosition(store=history.store, name=name, newest=newest, clock_ms=lambda: 7)


def retained(history: History) -> tuple[int, ...]:
    return retained_checkpoints(history.store)


def test_a_position_keeps_what_was_not_read_within_its_bound():
    history = History("position", FaultyStore(), retained=1)
    history.run(2)
    reader = position(history)
    assert reader.current() is None
    reader.move(2)
    other = Tag(kind=TagKind.TAG, name="copy", checkpoint_id=2)
    put_tag(history.store, other, clock_ms=lambda: 7)
    history.run(2)
    assert (retained(history), reader.current()) == ((2, 3, 4), 2)
    reader.move(4)
    reader.move(4)
    history.run(3)  # a clean-up that has something to delete learns of the new position
    assert (retained(history), reader.current()) == ((2, 4, 5, 6, 7), 4), "2 has a tag of its own"
    history.run(3)
    assert retained(history)[0] == 2
    assert set(range(7, 11)) <= {*retained(history)} <= {2, *range(6, 11)}
    with pytest.raises(CheckpointError, match=r"4 .*(no longer|not exist).* cannot be pinned"):
        position(history, "late").move(4)
    reader.move(10)
    position(history, "second").move(9)
    reader.remove()
    history.run(2)
    assert {2, 9, 10, 11, 12} <= {*retained(history)}
    assert reader.current() is None
    with pytest.raises(UsageError, match="is not a valid tag name"):
        position(history, "a/b")


def test_a_time_means_the_newest_checkpoint_before_it():
    history = History("times", FaultyStore(), retained=3)
    history.run(5)
    entries = [read_checkpoint(history.store, number).checkpoint for number in (3, 4, 5)]
    created_ms = {entry.checkpoint_id: entry.created_at_ms for entry in entries}
    assert len(set(created_ms.values())) == 3
    for number, milliseconds in created_ms.items():
        time = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=milliseconds)
        assert find_checkpoint_at(history.store, time) == number
        bare = parse_time(time.replace(tzinfo=None).isoformat())
        assert find_checkpoint_at(history.store, bare) == number
        before = time - dt.timedelta(milliseconds=1)
        if number > 3:
            assert find_checkpoint_at(history.store, before) == number - 1
            continue
        with pytest.raises(CheckpointError, match="the oldest, checkpoint 3, was created at"):
            find_checkpoint_at(history.store, before)
    with pytest.raises(UsageError, match="'yesterday' is not an ISO 8601 time"):
        parse_time("yesterday")
    with pytest.raises(CheckpointError, match="retains no checkpoint"):
        find_checkpoint_at(FaultyStore(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
