"""The coordinator on real stores: the commit, its failures, restoring, fencing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import (
    ManualClock,
    coordinator,
    log_in_file,
    log_inline,
    read_log,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.stores.dict_store import DictStore

import statelog as sl
from statelog.checkpoint.coordinator import CheckpointCoordinator, CheckpointRecorder
from statelog.checkpoint.verify import verify_location
from statelog.errors import (
    CheckpointError,
    FencedError,
    StoreError,
    UsageError,
)
from statelog.model import (
    OBJECTS_PROPERTY,
    ByteStreamStateHandle,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    StateChange,
    TaskStateSnapshot,
)
from statelog.options import CheckpointOptions
from statelog.store import open_store

LEFT, RIGHT, ALL = KeyGroupRange(0, 3), KeyGroupRange(4, 7), KeyGroupRange(0, 7)


def owner_with(store, checkpoints: int, **options):
    """Return the owner of a location with this number of small checkpoints."""
    owner = started(store, **options)
    for checkpoint_id in range(1, checkpoints + 1):
        small_checkpoint(owner, checkpoint_id)
    return owner


def test_a_location_without_checkpoints_restores_to_nothing(store):
    owner = coordinator(store)
    with pytest.raises(UsageError, match=r"claim\(\) and then restore\(\)"):
        owner.trigger(1, [ALL])
    assert owner.claim() == 0
    assert owner.restore() is None
    assert owner.latest is None
    assert owner.checkpoints() == []


def test_inline_changes_are_committed_with_the_checkpoint_and_read_back(store):
    owner = started(store)
    left = log_inline(LEFT, [[(1, b"a"), (-1, b"m")], [(2, b"b")]])
    right = log_in_file(store, RIGHT, [[(5, b"c")]])
    committed = run_checkpoint(
        owner,
        1,
        [TaskStateSnapshot(LEFT, left), TaskStateSnapshot(RIGHT, right)],
        properties={"batch": 7},
        sections={b"OUTP": b"rows"},
    )
    assert owner.latest == committed
    entries = committed.log[0].handles_and_offsets
    assert {"chk-1/_metadata"} == {entry.handle.path for entry in entries}
    other = started(store, "b")
    assert other.latest == committed
    assert other.latest.properties == {"batch": 7}
    assert other.section(1, b"OUTP") == b"rows"
    assert other.section(1, b"NONE") is None
    expected = [StateChange(1, b"a"), StateChange(2, b"b"), StateChange(5, b"c")]
    assert read_log(store, other.latest.for_range(ALL).log) == expected


def test_a_snapshot_ends_the_log_and_frees_its_objects(store):
    owner = owner_with(store, 3, retained=1)
    store.put("taskowned/s", b"state")
    snapshot = MaterializedHandle(ALL, 3, FileStateHandle("taskowned/s", 5))
    log = log_inline(ALL, [[(1, b"new")]])
    done = run_checkpoint(owner, 4, [TaskStateSnapshot(ALL, log, snapshot)])
    assert ids_in(done.log) == [4]
    assert done.materialized == (snapshot,)
    assert not [item for item in verify_location(store) if item.problem], "of another program"
    report = owner.clean_up()
    assert sorted(report.deleted) == [f"chk-{i}/_metadata" for i in range(1, 4)]
    assert sorted(info.path for info in store.list() if info.path != "chk-0/_metadata") == [
        "chk-4/_metadata",
        "taskowned/s",
    ]


def test_a_snapshot_does_not_hide_the_changes_of_its_own_checkpoint():
    store = DictStore()
    owner = started(store, retained=2)
    logs = []
    for number in range(1, 5):
        log = log_in_file(store, ALL, [[(1, b"change")]], number)
        snapshot = None
        if number == 2:
            store.put("taskowned/s", b"snapshot")
            snapshot = MaterializedHandle(ALL, number, FileStateHandle("taskowned/s", 8))
        run_checkpoint(owner, number, [TaskStateSnapshot(ALL, log, snapshot)])
        logs.append(ids_in(owner.latest.log))
    assert logs == [[1], [2], [3], [3, 4]]
    assert ids_in(owner.latest.for_range(ALL).log) == [3, 4]
    assert ids_in(owner.load(3).for_range(ALL).log) == [3]


def ids_in(log):
    return [handle.checkpoint_id for handle in log]


def test_a_missing_acknowledgement_is_named(store):
    owner = started(store)
    owner.trigger(1, [LEFT, RIGHT])
    owner.acknowledge(1, TaskStateSnapshot(LEFT, None))
    with pytest.raises(CheckpointError, match=r"\[4, 7\]") as raised:
        owner.complete(1, properties={})
    assert (raised.value.reason, raised.value.missing) == ("incomplete", (RIGHT,))
    owner.acknowledge(1, TaskStateSnapshot(RIGHT, None))
    assert owner.complete(1, properties={}).checkpoint_id == 1


def test_the_second_owner_fences_the_first(store):
    first = started(store, "a")
    small_checkpoint(first, 1)
    second = started(store, "b")
    with pytest.raises(FencedError, match="chk-2/_metadata, claimed by 'b'"):
        small_checkpoint(first, 2)
    with pytest.raises(FencedError):
        first.trigger(3, [ALL])
    assert small_checkpoint(second, 3).parent_id == 1
    assert started(store, "c").latest.owner_id == "b"


def refusing(refused_operation: str):
    def refuse(operation, path):
        if operation == refused_operation:
            raise StoreError(f"{operation} {path}: no route to host", path=path)

    return refuse


def test_a_refused_commit_can_be_repeated_with_the_same_bytes():
    store = DictStore()
    owner = started(store)
    store.on_request = refusing("put_if_absent")
    with pytest.raises(StoreError, match="no route to host"):
        small_checkpoint(owner, 1, properties={"n": 1})
    store.on_request = lambda operation, path: None
    with pytest.raises(CheckpointError) as raised:
        owner.acknowledge(1, TaskStateSnapshot(ALL, None))
    assert raised.value.reason == "committing"
    assert owner.complete(1, properties={"n": 2}).properties == {"n": 1}


def test_an_outcome_that_cannot_be_asked_for_is_an_error_and_the_repetition_finds_out():
    store = DictStore()
    owner = started(store)
    calls = iter(["lose", "refuse"])

    def verdict(operation, path):
        if operation in ("put_if_absent", "get", "get_range") or (
            operation == "head" and path.endswith("_metadata")
        ):
            answer = next(calls, None)
            if answer == "refuse":
                raise StoreError("no route to host")
            return answer
        return None

    store.on_request = verdict
    with pytest.raises(StoreError, match="no route"):
        small_checkpoint(owner, 1)
    assert "chk-1/_metadata" in store.objects
    assert owner.complete(1, properties={}).checkpoint_id == 1
    assert owner.latest.checkpoint_id == 1


def test_a_checkpoint_with_an_unknown_outcome_cannot_be_replaced_by_another():
    store = DictStore()
    owner = started(store)
    owner.trigger(1, [ALL])
    owner.acknowledge(1, TaskStateSnapshot(ALL, log_inline(ALL, [[(1, b"first")]])))

    def verdict(operation, path):
        if operation == "put_if_absent":
            return "lose"
        raise StoreError("no route to host")

    store.on_request = verdict
    with pytest.raises(StoreError):
        owner.complete(1, properties={})
    store.on_request = lambda operation, path: None
    owner.decline(1, "gave up")
    with pytest.raises(CheckpointError, match="gave up"):
        owner.complete(1, properties={})
    with pytest.raises(UsageError, match="when the outcome of a checkpoint is unknown"):
        owner.trigger(1, [ALL])
    assert owner.claim() == 2
    assert owner.restore().checkpoint_id == 1
    assert read_log(store, owner.latest.log) == [StateChange(1, b"first")]
    assert small_checkpoint(owner, 3).parent_id == 1


def test_a_checkpoint_that_was_not_put_can_be_declined_and_begun_again():
    owner = started(DictStore())
    owner.trigger(1, [ALL])
    owner.decline(1, "no task answered")
    assert owner.next_checkpoint_id == 1
    assert small_checkpoint(owner, 1).checkpoint_id == 1


@pytest.mark.parametrize("checkpoint_id", [0, 1, 3])
def test_only_the_next_number_can_begin(checkpoint_id):
    store = DictStore()
    owner = started(store)
    small_checkpoint(owner, 1)
    with pytest.raises(CheckpointError, match=r"the next id in dict:// is 2\.") as raised:
        owner.trigger(checkpoint_id, [ALL])
    assert raised.value.reason == "not_next"


def test_an_owner_that_is_overtaken_before_it_restores_is_fenced():
    store = DictStore()
    owner = coordinator(store, "a")
    owner.claim()
    other = started(store, "b", retained=1)
    for number in range(2, 5):
        small_checkpoint(other, number)
    assert owner.restore() is None, "as the location was at the claim"
    with pytest.raises(FencedError, match="claimed by 'b'"):
        small_checkpoint(owner, 1)


def damage(store, path, change):
    data = bytearray(store.get(path))
    store.delete([path])
    store.put(path, bytes(change(data)))


def flip(data):
    data[20] ^= 0xFF
    return data


@pytest.mark.parametrize(
    "change", [flip, lambda data: data[:-30], lambda data: b"", lambda d: d[:9]]
)
def test_a_damaged_newest_checkpoint_is_reported_with_the_way_out(store, change):
    owner_with(store, 4)
    damage(store, "chk-4/_metadata", change)
    successor = coordinator(store, "b")
    successor.claim()
    with pytest.raises(CheckpointError, match=r"checkpoint=3") as raised:
        successor.restore()
    facts = raised.value
    assert (facts.reason, facts.usable_id, facts.path) == ("damaged", 3, "chk-4/_metadata")
    with pytest.raises(CheckpointError) as again:
        successor.restore(4)
    assert again.value.reason == "damaged"
    assert successor.restore(3).checkpoint_id == 3
    assert small_checkpoint(successor, 6).parent_id == 3
    last = started(store, "c")
    assert (last.latest.checkpoint_id, last.latest.owner_id) == (6, "b")
    assert len(read_log(store, last.latest.log)) == 12


def test_the_only_checkpoint_is_damaged(store):
    small_checkpoint(started(store), 1)
    damage(store, "chk-1/_metadata", flip)
    with pytest.raises(CheckpointError, match="no older checkpoint") as raised:
        started(store, "b")
    assert raised.value.usable_id is None


@pytest.mark.parametrize(
    ("asked", "reason"), [(1, "subsumed"), (0, "not_found"), (17, "not_found")]
)
def test_a_restore_that_is_impossible_is_reported(store, asked, reason):
    owner_with(store, 5, retained=2)
    with pytest.raises(CheckpointError) as raised:
        coordinator(store, "b").restore(asked)
    assert raised.value.reason == reason


def test_a_checkpoint_without_its_objects_cannot_be_asked_for(store):
    owner = started(store)
    log = log_in_file(store, ALL, [[(1, b"a")]])
    run_checkpoint(owner, 1, [TaskStateSnapshot(ALL, log)])
    small_checkpoint(owner, 2)
    store.delete(owner.load(1).referenced_paths())
    with pytest.raises(CheckpointError) as raised:
        coordinator(store, "b").restore(1)
    assert raised.value.reason == "objects_missing"


def test_the_number_of_key_groups_never_changes(store):
    small_checkpoint(started(store), 1)
    with pytest.raises(CheckpointError, match="8 key groups") as raised:
        coordinator(store, "b", max_parallelism=16).restore()
    assert raised.value.reason == "max_parallelism"


def test_a_crash_before_the_clean_up_leaves_no_garbage(store):
    owner = started(store, retained=1)
    log = log_in_file(store, ALL, [[(1, b"a")]])
    run_checkpoint(owner, 1, [TaskStateSnapshot(ALL, log)])
    snapshot = MaterializedHandle(ALL, 2, ByteStreamStateHandle("n", b"s"))
    run_checkpoint(owner, 2, [TaskStateSnapshot(ALL, None, snapshot)])
    successor = started(store, "b", retained=1)
    report = successor.clean_up()
    (entry,) = log.handles_and_offsets
    assert {entry.handle.path, "chk-1/_metadata"} == set(report.deleted)
    assert successor.clean_up().deleted == ()


def test_staged_output_objects_live_as_long_as_their_checkpoint(store):
    owner = started(store, retained=2)
    for checkpoint_id in range(1, 4):
        store.put(f"output/{checkpoint_id}", b"rows")
        objects = {OBJECTS_PROPERTY: [f"output/{checkpoint_id}"]}
        small_checkpoint(owner, checkpoint_id, properties=objects)
    assert owner.clean_up().deleted == ("output/1",), "the metadata is needed for its changes"


def test_load_and_section_explain_what_is_missing(store):
    owner = started(store)
    small_checkpoint(owner, 1)
    with pytest.raises(CheckpointError) as raised:
        owner.load(6)
    assert raised.value.reason == "not_found"
    damage(store, "chk-1/_metadata", lambda data: data[:-1])
    with pytest.raises(CheckpointError) as raised:
        owner.section(1, b"OUTP")
    assert raised.value.reason == "damaged"


def test_a_long_record_is_read_in_two_pieces(store):
    owner = started(store)
    rows = bytes(range(256)) * 1000
    small_checkpoint(owner, 1, sections={b"OUTP": rows})
    assert owner.section(1, b"OUTP") == rows


def test_an_unknown_object_under_the_name_fences():
    store = DictStore()
    owner = started(store)
    store.put("chk-1/_metadata", b"something else")
    with pytest.raises(FencedError, match=r"chk-1/_metadata exists, but this owner did not write"):
        small_checkpoint(owner, 1)


def test_the_latest_checkpoint_is_not_read_again():
    store = DictStore()
    owner = started(store)
    done = small_checkpoint(owner, 1)
    small = small_checkpoint(owner, 2)
    store.requests.clear()
    assert owner.load(2) is small
    assert not store.requests
    assert owner.load(1) == done
    assert store.requests


def test_a_failed_deletion_is_tried_again():
    store = DictStore()
    owner_with(store, 4)
    successor = coordinator(store, "b")
    successor.claim()
    successor.restore(2)
    small_checkpoint(successor, 6)

    def refuse(operation, path):
        if (operation, path) == ("delete", "chk-3/_metadata"):
            raise StoreError(f"delete {path}: no route to host", path=path)

    store.on_request = refuse
    successor.clean_up()
    assert {"chk-3/_metadata", "chk-4/_metadata"} & set(store.objects) == {"chk-3/_metadata"}
    store.on_request = lambda operation, path: None
    assert "chk-3/_metadata" in successor.clean_up().deleted
    assert not {"chk-3/_metadata", "chk-4/_metadata"} & set(successor.clean_up().deleted)


ROOT = Path(__file__).resolve().parents[3]
JOB = """
import sys
from tests.support.locations.checkpoints import small_checkpoint, started
from statelog.store import open_store
job = started(open_store(sys.argv[1]), "killed")
for checkpoint_id in range(1, 11):
    small_checkpoint(job, checkpoint_id)
    job.clean_up()
"""


@pytest.mark.parametrize(
    ("fail_point", "survives"),
    [("before-commit:4", 3), ("after-commit:4", 4), ("after-commit:1", 1)],
)
def test_a_killed_owner_leaves_whole_checkpoints(tmp_path, fail_point, survives):
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    killed = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "STATELOG_FAIL_POINTS": fail_point},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    store = open_store(str(tmp_path))
    successor = started(store, "successor")
    assert successor.latest is not None
    assert successor.latest.checkpoint_id == survives
    assert len(read_log(store, successor.latest.log)) == 3 * survives
    small_checkpoint(successor, survives + 2)
    assert successor.clean_up().failed == ()


def sizes(metrics: sl.Metrics) -> tuple[object, ...]:
    values = metrics.snapshot()
    return tuple(
        values[f"last_{kind}_size_of_{part}"]
        for part in ("materialization", "non_materialization")
        for kind in ("full", "inc")
    )


def test_the_sizes_of_the_last_checkpoint_are_recorded(store):
    metrics = sl.Metrics()
    owner = CheckpointCoordinator(
        store,
        owner_id="a",
        max_parallelism=8,
        options=CheckpointOptions(),
        clock_ms=ManualClock(),
        recorder=CheckpointRecorder(metrics),
    )
    owner.claim()
    owner.restore()
    assert (0, 0, 0, 0) == sizes(metrics)
    store.put("taskowned/s", b"state")
    snapshot = MaterializedHandle(ALL, 0, FileStateHandle("taskowned/s", 5))
    log = log_inline(ALL, [[(1, b"abc")]], 1)
    run_checkpoint(owner, 1, [TaskStateSnapshot(ALL, log, snapshot)])
    assert (5, 5, 3, 3) == sizes(metrics)
    run_checkpoint(owner, 2, [TaskStateSnapshot(ALL, log_inline(ALL, [[(1, b"de")]], 2))])
    assert (5, 0, 5, 2) == sizes(metrics)
    behind = [metrics.value(f"log_{what}_behind_snapshots") for what in ("bytes", "handles")]
    assert [5, 2] == behind


def test_snapshots_are_counted():
    metrics = sl.Metrics()
    recorder = CheckpointRecorder(metrics)
    assert -1 == metrics.snapshot()["last_duration_of_materialization"]
    recorder.snapshots_started(2)
    recorder.snapshots_completed(1, 12.5)
    recorder.snapshots_failed(1)
    recorder.snapshots_completed(0, 99.0)
    values = metrics.snapshot()
    assert (2, 1, 1, 12.5) == (
        values["started_materialization"],
        values["completed_materialization"],
        values["failed_materialization"],
        values["last_duration_of_materialization"],
    )
