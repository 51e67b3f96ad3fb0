"""The coordinator on real stores: the commit, its failures, restoring, fencing."""

import pytest
from tests.unit.checkpoint.helpers import (
    coordinator,
    log_in_file,
    log_inline,
    read_log,
    run_checkpoint,
    small_checkpoint,
    started,
)

from statelog.errors import CheckpointError, FencedError, UsageError
from statelog.model import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    StateChange,
    TaskStateSnapshot,
)

LEFT, RIGHT, ALL = KeyGroupRange(0, 3), KeyGroupRange(4, 7), KeyGroupRange(0, 7)


def test_a_location_without_past_restores_to_nothing(store):
    one = coordinator(store)
    assert one.claim() == 1
    assert one.restore() is None
    assert one.latest is None
    assert one.checkpoints() == []


def test_claim_and_restore_come_first(store):
    one = coordinator(store)
    with pytest.raises(UsageError, match=r"claim\(\) and then restore\(\)"):
        one.trigger(0, [ALL])


def test_inline_changes_are_committed_with_the_checkpoint_and_read_back(store):
    one = started(store)
    done = run_checkpoint(
        one,
        0,
        [
            TaskStateSnapshot(LEFT, log_inline(LEFT, [[(1, b"a"), (-1, b"m")], [(2, b"b")]])),
            TaskStateSnapshot(RIGHT, log_in_file(store, RIGHT, [[(5, b"c")]])),
        ],
        properties={"batch": 7},
        sections={b"OUTP": b"rows"},
    )
    assert one.latest == done
    assert {entry.handle.path for entry in done.log[0].handles_and_offsets} == {"chk-0/_metadata"}
    other = started(store, "b")
    assert other.latest == done
    assert other.latest.properties == {"batch": 7}
    assert other.section(0, b"OUTP") == b"rows"
    assert other.section(0, b"NONE") is None
    expected = [StateChange(1, b"a"), StateChange(2, b"b"), StateChange(5, b"c")]
    assert read_log(store, other.latest.for_range(ALL).log) == expected


def test_later_checkpoints_refer_to_the_changes_of_earlier_ones(store):
    one = started(store, retained=1)
    for checkpoint_id in range(5):
        small_checkpoint(one, checkpoint_id)
        one.clean_up()
    other = started(store, "b")
    assert [handle.checkpoint_id for handle in other.latest.log] == [0, 1, 2, 3, 4]
    assert other.checkpoints() == [4]
    values = [change.value.decode() for change in read_log(store, other.latest.for_range(ALL).log)]
    assert values == [f"{c}/{k}" for c in range(5) for k in (0, 3, 7)]


def test_a_snapshot_ends_the_log_and_frees_its_objects(store):
    one = started(store, retained=1)
    for checkpoint_id in range(3):
        small_checkpoint(one, checkpoint_id)
    store.put("taskowned/s", b"state")
    snapshot = MaterializedHandle(ALL, 2, FileStateHandle("taskowned/s", 5))
    done = run_checkpoint(
        one, 3, [TaskStateSnapshot(ALL, log_inline(ALL, [[(1, b"new")]]), snapshot)]
    )
    assert [handle.checkpoint_id for handle in done.log] == [3]
    assert done.materialized == (snapshot,)
    report = one.clean_up()
    assert sorted(report.deleted) == [f"chk-{i}/_metadata" for i in range(3)]
    assert sorted(info.path for info in store.list() if not info.path.startswith("owner")) == [
        "chk-3/_metadata",
        "taskowned/s",
    ]


def test_an_inline_snapshot_travels_in_the_record(store):
    one = started(store)
    snapshot = MaterializedHandle(ALL, 0, ByteStreamStateHandle("n", bytes(range(256))))
    run_checkpoint(one, 0, [TaskStateSnapshot(ALL, None, snapshot)])
    small_checkpoint(one, 1)
    restored = started(store, "b").latest
    assert restored.materialized[0].handle.data == bytes(range(256))


def test_a_missing_acknowledgement_is_named(store):
    one = started(store)
    one.trigger(0, [LEFT, RIGHT])
    one.acknowledge(0, TaskStateSnapshot(LEFT, None))
    with pytest.raises(CheckpointError, match=r"\[4, 7\]") as raised:
        one.complete(0, properties={})
    assert (raised.value.reason, raised.value.missing) == ("incomplete", (RIGHT,))
    one.acknowledge(0, TaskStateSnapshot(RIGHT, None))
    assert one.complete(0, properties={}).checkpoint_id == 0


def test_the_second_owner_fences_the_first(store):
    first = started(store, "a")
    small_checkpoint(first, 0)
    second = started(store, "b")
    with pytest.raises(FencedError, match="epoch 2"):
        small_checkpoint(first, 1)
    with pytest.raises(FencedError):
        first.trigger(2, [ALL])
    assert small_checkpoint(second, 1).parent_id == 0
    assert started(store, "c").latest.owner_id == "b"
