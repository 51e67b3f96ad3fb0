"""`statelog repair`: what it removes, what it keeps, and what it gives up only by name."""

import datetime as dt
import json
import os
from pathlib import Path

import pytest
from tests.unit.checkpoint.helpers import log_in_file, run_checkpoint, small_checkpoint, started

from statelog.checkpoint import coordinator as coordinator_module
from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.history import find_newest
from statelog.checkpoint.repair import plan_repair
from statelog.checkpoint.verify import verify_location
from statelog.errors import FencedError
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.store import LocationPaths, open_store

PATHS = LocationPaths()
ALL = KeyGroupRange(0, 7)


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def place(tmp_path) -> Path:
    """Return a location with three checkpoints, two of them retained."""
    one = started(open_store(str(tmp_path / "job")), retained=2)
    for checkpoint_id in range(3):
        log = log_in_file(one._store, ALL, [[(1, b"a")]], checkpoint_id)
        run_checkpoint(one, checkpoint_id, [TaskStateSnapshot(ALL, log)])
    one.clean_up()
    return tmp_path / "job"


def put(place: Path, name: str, content: bytes = b"12345") -> str:
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return name


def tree(place: Path) -> set[str]:
    """Return the files of a location but its audit lines."""
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    return {name for name in files if not name.startswith("audit/")}


def test_what_is_provably_not_needed_is_removed(call, place):
    before = tree(place)
    planted = {
        put(place, "tmp/chk-3-_metadata-0011"): "temporary",
        put(place, "dstl/half#1"): "staged",
        put(place, "dstl/orphan"): "orphan",
        put(place, "taskowned/orphan"): "orphan",
        put(place, "output/orphan"): "orphan",
        put(place, "chk-9/exclusive"): "orphan",
    }
    kept = {put(place, "notes.txt"), put(place, "owner/77x"), put(place, "notes#1")}
    found = lines(call("repair", str(place), "--min-age", "0s", "--json"))
    assert planted == {one["path"]: one["kind"] for one in found[:-1]}
    assert {"would-remove"} == {one["action"] for one in found[:-1]}
    assert tree(place) == before | kept | planted.keys(), "a dry run changes nothing"
    text = call("repair", str(place), "--min-age", "0s", "--apply")
    assert "removed staged dstl/half#1: a write that was killed left it" in text
    assert tree(place) == before | kept
    assert "0 objects" in call("repair", str(place), "--min-age", "0s")
    assert "all intact" in call("verify", str(place))


def test_young_objects_are_kept(call, place):
    put(place, "dstl/orphan")
    put(place, "dstl/half#1")
    (last,) = lines(call("repair", str(place), "--apply", "--json"))
    assert (0, 2) == (last["summary"]["repairs"], last["summary"]["too_young"])
    old = dt.datetime.now().timestamp() - 7200
    os.utime(place / "dstl" / "orphan", (old, old))
    found = lines(call("repair", str(place), "--apply", "--json"))
    assert [("dstl/orphan", "removed")] == [(one["path"], one["action"]) for one in found[:-1]]


def test_an_unfinished_clean_up_is_finished(call, place, tmp_path):
    """The owner died after a commit, before it deleted what the commit made unnecessary."""
    store = open_store(str(place))
    one = started(store, "b", retained=1)
    small_checkpoint(one, 3)
    small_checkpoint(one, 4)
    assert (place / "chk-1" / "_metadata").exists()
    found = lines(call("repair", str(place), "--min-age", "0s", "--json"))
    assert {"chk-1/_metadata", "chk-2/_metadata"} == {
        one["path"] for one in found[:-1] if one["kind"] == "clean-up"
    }
    call("repair", str(place), "--min-age", "0s", "--apply")
    assert find_newest(store, PATHS).newest.checkpoint_id == 4
    assert "all intact" in call("verify", str(place))


def zombie(place: Path) -> None:
    """Let a fenced owner commit checkpoint 5 late, beside checkpoint 3 of the new owner."""
    store = open_store(str(place))
    old = started(store, "old", retained=2)
    new = started(store, "new", retained=2)
    small_checkpoint(new, 3)
    # The old owner checked its claim before it lost it; the commit comes through now.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator_module, "is_taken_over", lambda *_: False)
        small_checkpoint(old, 5)


def test_a_zombie_above_the_newest_checkpoint_is_kept(call, place):
    """Its number must not be used again; also the garbage collection keeps it."""
    zombie(place)
    store = open_store(str(place))
    history = find_newest(store, PATHS)
    assert (3, (5,)) == (history.newest.checkpoint_id, history.zombies)
    text = call("repair", str(place), "--min-age", "0s", "--apply", status=1)
    assert "checkpoint 5 was committed by a run that had lost the location" in text
    assert (place / "chk-5" / "_metadata").exists()
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    collect_garbage(store, PATHS, min_age=dt.timedelta(), dry_run=False, now=now)
    assert (place / "chk-5" / "_metadata").exists()
    third = started(store, "third", retained=2)
    assert third.next_checkpoint_id == 6, "the number of the zombie is not used again"
    small_checkpoint(third, 6)
    third.clean_up()
    assert not (place / "chk-5" / "_metadata").exists(), "the history has passed it"


def damage(place: Path, name: str) -> None:
    content = bytearray((place / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (place / name).write_bytes(content)


def test_a_damaged_newest_checkpoint_is_never_dropped(call, place):
    put(place, "tmp/left-over")
    put(place, "dstl/orphan")
    damage(place, "chk-2/_metadata")
    before = tree(place)
    text = call("repair", str(place), "--min-age", "0s", "--apply", status=1)
    assert "checkpoint 2 is damaged" in text
    assert "--give-up-after 1" in text
    assert tree(place) == before - {"tmp/left-over"}, "what the log needs is unknown"
    found = lines(call("repair", str(place), "--min-age", "0s", "--json", status=1))
    assert found[-1]["summary"]["usable_id"] == 1
    plan = plan_repair(
        open_store(str(place)),
        PATHS,
        min_age=dt.timedelta(),
        now=dt.datetime.now(dt.UTC),
    )
    assert plan.repairs == ()


def test_giving_up_names_what_is_lost(call, place):
    damage(place, "chk-2/_metadata")
    store = open_store(str(place))
    before = tree(place)
    text = call("repair", str(place), "--give-up-after", "1")
    assert "would give up checkpoint 2 (damaged" in text
    assert "All changes after checkpoint 1 would be lost" in text
    assert tree(place) == before
    found = lines(call("repair", str(place), "--give-up-after", "1", "--apply", "--json"))
    assert [(2, "damaged", "gave-up")] == [
        (one["checkpoint_id"], one["state"], one["action"]) for one in found[:-1]
    ]
    assert found[-1]["summary"] == {"dry_run": False, "kept": 1, "lost": 1, "committed_id": 3}
    newest = find_newest(store, PATHS).newest
    assert (3, 1) == (newest.checkpoint_id, newest.parent_id)
    assert [] == [one for one in verify_location(store, PATHS) if one.problem]
    assert not (place / "chk-2" / "_metadata").exists()
    after = started(store, "after")
    small_checkpoint(after, 4)
    assert [0, 1, 4] == sorted(one.checkpoint_id for one in after.latest.log)


def test_giving_up_fences_a_run_that_is_active(call, place):
    store = open_store(str(place))
    running = started(store, "running", retained=2)
    small_checkpoint(running, 3)
    call("repair", str(place), "--give-up-after", "2", "--apply")
    with pytest.raises(FencedError):
        small_checkpoint(running, 4)


def test_giving_up_needs_a_sound_checkpoint(call, place):
    assert "nothing is to be given up" in call(
        "repair", str(place), "--give-up-after", "2", status=2
    )
    assert "does not exist" in call("repair", str(place), "--give-up-after", "7", status=1)
    log = next(
        one.handles_and_offsets[0].handle.path
        for one in find_newest(open_store(str(place)), PATHS).newest.log
        if one.checkpoint_id == 1
    )
    damage(place, log)
    before = tree(place)
    text = call("repair", str(place), "--give-up-after", "1", "--apply", status=1)
    assert "checkpoint 1 is damaged too" in text
    assert log in text
    assert tree(place) == before


def test_a_wrong_location_is_a_wrong_call(call, place, tmp_path):
    assert "no such directory" in call("repair", str(tmp_path / "nope"), status=2)
    assert "is not a state location" in call("repair", str(tmp_path), status=2)
    assert "is not a duration" in call("repair", str(place), "--min-age", "x", status=2)
