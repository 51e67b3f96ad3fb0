"""`statelog verify --repair`: what it removes, what it keeps, and what it gives up only by name."""

import datetime as dt
import os
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import (
    log_in_file,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.locations.forked_query import sweep

from statelog.checkpoint.history import Entries
from statelog.checkpoint.verify import verify_location
from statelog.errors import FencedError
from statelog.extensions.operations.repair import plan_repair
from statelog.format.checkpoint_record import CLAIM_BYTES_MAX
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.store import open_store

ALL = KeyGroupRange(0, 7)


@pytest.fixture
def place(tmp_path) -> Path:
    """
    Return a location with the checkpoints 1, 2 and 3; the last two are retained.

    They are larger than a claim, for which a small damaged entry would be taken.
    """
    coordinator = started(open_store(str(tmp_path / "job")), retained=2)
    for checkpoint_id in (1, 2, 3):
        log = log_in_file(coordinator._store, ALL, [[(1, b"a")]], checkpoint_id)
        large = {"text": os.urandom(CLAIM_BYTES_MAX).hex()}
        run_checkpoint(coordinator, checkpoint_id, [TaskStateSnapshot(ALL, log)], properties=large)
    coordinator.clean_up()
    return tmp_path / "job"


def put(place: Path, name: str, content: bytes = b"12345") -> str:
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return name


def repair(place: Path) -> tuple[str, ...]:
    """Return the command that repairs a location, also what is young."""
    return ("verify", str(place), "--repair", "--min-age", "0s")


def tree(place: Path) -> set[str]:
    """Return the files of a location but its audit lines."""
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    return {name for name in files if not name.startswith("audit/")}


def test_objects_that_nothing_needs_are_removed(call, place):
    before = tree(place)
    garbage = {
        put(place, "tmp/chk-4-_metadata-0011"): "temporary",
        put(place, "dstl/half#1"): "staged",
        put(place, "dstl/orphan"): "orphan",
        put(place, "taskowned/orphan"): "orphan",
        put(place, "output/orphan"): "orphan",
        put(place, "chk-9/exclusive"): "orphan",
    }
    foreign = {put(place, "notes.txt"), put(place, "other/77x"), put(place, "notes#1")}
    *findings, _ = call.lines(*repair(place))
    assert garbage == {finding["path"]: finding["kind"] for finding in findings}
    assert {"would-delete"} == {finding["action"] for finding in findings}
    assert tree(place) == before | foreign | garbage.keys(), "a dry run changes nothing"
    text = call(*repair(place), "--apply")
    assert "deleted staged dstl/half#1: left by a killed write" in text
    assert tree(place) == before | foreign
    assert "0 objects" in call(*repair(place))
    assert "all intact" in call("verify", str(place))


def test_young_objects_are_kept(call, place):
    put(place, "dstl/orphan")
    put(place, "dstl/half#1")
    (last,) = call.lines("verify", str(place), "--repair", "--apply")
    assert (0, 2) == (last["summary"]["repairs"], last["summary"]["too_young"])
    old = dt.datetime.now().timestamp() - 7200
    os.utime(place / "dstl" / "orphan", (old, old))
    finding, _ = call.lines("verify", str(place), "--repair", "--apply")
    assert ("dstl/orphan", "deleted") == (finding["path"], finding["action"])


def test_an_unfinished_clean_up_is_finished(call, place):
    """The owner died after a commit, before it deleted what the commit made unnecessary."""
    store = open_store(str(place))
    next_run = started(store, "b", retained=1)
    small_checkpoint(next_run, 5)
    small_checkpoint(next_run, 6)
    assert (place / "chk-2" / "_metadata").exists()
    *findings, _ = call.lines(*repair(place))
    unfinished = [finding["path"] for finding in findings if finding["kind"] == "clean-up"]
    assert ["chk-2/_metadata", "chk-3/_metadata"] == sorted(unfinished)
    call(*repair(place), "--apply")
    assert Entries(store).newest().checkpoint_id == 6
    assert "all intact" in call("verify", str(place))


def test_claims_are_kept(call, place):
    """Their numbers must not be used again, also when a younger owner is far ahead."""
    store = open_store(str(place))
    for owner in ("b", "c"):
        small = started(store, owner, retained=1)
        small_checkpoint(small, small.next_checkpoint_id)
    claims = {"chk-0/_metadata", "chk-4/_metadata", "chk-6/_metadata"}
    needed = {"chk-5/_metadata", "chk-7/_metadata"}  # the log of 7 has changes inside of 5
    for clean_up in (lambda: call(*repair(place), "--apply"), lambda: sweep(store)):
        clean_up()
        assert claims | needed == {path for path in tree(place) if path.startswith("chk-")}


def damage(place: Path, name: str) -> None:
    content = bytearray((place / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (place / name).write_bytes(content)


def test_a_damaged_newest_checkpoint_is_never_dropped(call, place):
    put(place, "tmp/left-over")
    put(place, "dstl/orphan")
    damage(place, "chk-3/_metadata")
    before = tree(place)
    text = call(*repair(place), "--apply", status=1)
    assert "checkpoint 3 is damaged" in text
    assert "--give-up-after 2" in text
    assert tree(place) == before - {"tmp/left-over"}, "what the log needs is unknown"
    lines = call.lines(*repair(place), status=1)
    assert lines[-1]["summary"]["usable_id"] == 2
    plan = plan_repair(open_store(str(place)), min_age=dt.timedelta(), now=dt.datetime.now(dt.UTC))
    assert plan.repairs == ()


def test_giving_up_names_what_is_lost(call, place):
    damage(place, "chk-3/_metadata")
    store = open_store(str(place))
    before = tree(place)
    text = call("verify", str(place), "--give-up-after", "2")
    assert "would give up checkpoint 3 (damaged" in text
    assert "All changes after checkpoint 2 would be lost" in text
    assert tree(place) == before
    lost, last = call.lines("verify", str(place), "--give-up-after", "2", "--apply")
    assert (3, "damaged", "gave-up") == (lost["checkpoint_id"], lost["state"], lost["action"])
    assert last["summary"] == {"dry_run": False, "kept": 2, "lost": 1, "committed_id": 5}
    newest = Entries(store).newest()
    assert (5, 2) == (newest.checkpoint_id, newest.parent_id)
    assert [] == [finding for finding in verify_location(store) if finding.problem]
    assert not (place / "chk-3" / "_metadata").exists()
    after = started(store, "after")
    small_checkpoint(after, 7)
    assert [1, 2, 7] == sorted(handle.checkpoint_id for handle in after.latest.log)


def test_giving_up_fences_a_run_that_is_active(call, place):
    store = open_store(str(place))
    running = started(store, "running", retained=2)
    small_checkpoint(running, running.next_checkpoint_id)
    call("verify", str(place), "--give-up-after", "3", "--apply")
    with pytest.raises(FencedError):
        small_checkpoint(running, running.next_checkpoint_id)


def test_giving_up_keeps_what_may_be_a_claim(call, place):
    next_run = started(open_store(str(place)), "b", retained=2)
    small_checkpoint(next_run, 5)
    assert (place / "chk-5" / "_metadata").stat().st_size <= CLAIM_BYTES_MAX
    damage(place, "chk-5/_metadata")
    call("verify", str(place), "--give-up-after", "3", "--apply")
    assert (place / "chk-5" / "_metadata").exists(), "its number is not free"
    newest = Entries(open_store(str(place))).newest()
    assert (7, 3) == (newest.checkpoint_id, newest.parent_id)


def test_giving_up_needs_a_sound_checkpoint(call, place):
    assert "there is nothing to discard" in call(
        "verify", str(place), "--give-up-after", "3", status=2
    )
    assert "does not exist" in call("verify", str(place), "--give-up-after", "7", status=1)
    log = next(
        handle.handles_and_offsets[0].handle.path
        for handle in Entries(open_store(str(place))).newest().log
        if handle.checkpoint_id == 2
    )
    damage(place, log)
    before = tree(place)
    text = call("verify", str(place), "--give-up-after", "2", "--apply", status=1)
    assert "checkpoint 2 is also damaged" in text
    assert log in text
    assert tree(place) == before
