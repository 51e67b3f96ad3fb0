"""The coordinator on real stores: the commit, its failures, restoring, fencing."""

import pytest
from tests.support.locations.checkpoints import (
    coordinator,
    log_in_file,
    log_inline,
    read_log,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.stores.dict_store import DictStore

from statelog.errors import (
    CheckpointError,
    FencedError,
    IncompatibleFormatError,
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

LEFT, RIGHT, ALL = KeyGroupRange(0, 3), KeyGroupRange(4, 7), KeyGroupRange(0, 7)


def test_a_location_without_past_restores_to_nothing(store):
    one = coordinator(store)
    assert one.claim() == 0
    assert one.restore() is None
    assert one.latest is None
    assert one.checkpoints() == []


def test_claim_and_restore_come_first(store):
    one = coordinator(store)
    with pytest.raises(UsageError, match=r"claim\(\) and then restore\(\)"):
        one.trigger(1, [ALL])


def test_inline_changes_are_committed_with_the_checkpoint_and_read_back(store):
    one = started(store)
    done = run_checkpoint(
        one,
        1,
        [
            TaskStateSnapshot(LEFT, log_inline(LEFT, [[(1, b"a"), (-1, b"m")], [(2, b"b")]])),
            TaskStateSnapshot(RIGHT, log_in_file(store, RIGHT, [[(5, b"c")]])),
        ],
        properties={"batch": 7},
        sections={b"OUTP": b"rows"},
    )
    assert one.latest == done
    assert {entry.handle.path for entry in done.log[0].handles_and_offsets} == {"chk-1/_metadata"}
    other = started(store, "b")
    assert other.latest == done
    assert other.latest.properties == {"batch": 7}
    assert other.section(1, b"OUTP") == b"rows"
    assert other.section(1, b"NONE") is None
    expected = [StateChange(1, b"a"), StateChange(2, b"b"), StateChange(5, b"c")]
    assert read_log(store, other.latest.for_range(ALL).log) == expected


def test_later_checkpoints_refer_to_the_changes_of_earlier_ones(store):
    one = started(store, retained=1)
    for checkpoint_id in range(1, 6):
        small_checkpoint(one, checkpoint_id)
        one.clean_up()
    other = started(store, "b")
    assert [handle.checkpoint_id for handle in other.latest.log] == [1, 2, 3, 4, 5]
    assert other.checkpoints() == [5]
    values = [change.value.decode() for change in read_log(store, other.latest.for_range(ALL).log)]
    assert values == [f"{c}/{k}" for c in range(1, 6) for k in (0, 3, 7)]


def test_a_snapshot_ends_the_log_and_frees_its_objects(store):
    one = started(store, retained=1)
    for checkpoint_id in range(1, 4):
        small_checkpoint(one, checkpoint_id)
    store.put("taskowned/s", b"state")
    snapshot = MaterializedHandle(ALL, 3, FileStateHandle("taskowned/s", 5))
    done = run_checkpoint(
        one, 4, [TaskStateSnapshot(ALL, log_inline(ALL, [[(1, b"new")]]), snapshot)]
    )
    assert [handle.checkpoint_id for handle in done.log] == [4]
    assert done.materialized == (snapshot,)
    report = one.clean_up()
    assert sorted(report.deleted) == [f"chk-{i}/_metadata" for i in range(1, 4)]
    assert sorted(info.path for info in store.list() if info.path != "chk-0/_metadata") == [
        "chk-4/_metadata",
        "taskowned/s",
    ]


def test_an_inline_snapshot_travels_in_the_record(store):
    one = started(store)
    snapshot = MaterializedHandle(ALL, 1, ByteStreamStateHandle("n", bytes(range(256))))
    run_checkpoint(one, 1, [TaskStateSnapshot(ALL, None, snapshot)])
    small_checkpoint(one, 2)
    restored = started(store, "b").latest
    assert restored.materialized[0].handle.data == bytes(range(256))


def test_a_missing_acknowledgement_is_named(store):
    one = started(store)
    one.trigger(1, [LEFT, RIGHT])
    one.acknowledge(1, TaskStateSnapshot(LEFT, None))
    with pytest.raises(CheckpointError, match=r"\[4, 7\]") as raised:
        one.complete(1, properties={})
    assert (raised.value.reason, raised.value.missing) == ("incomplete", (RIGHT,))
    one.acknowledge(1, TaskStateSnapshot(RIGHT, None))
    assert one.complete(1, properties={}).checkpoint_id == 1


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


# ------------------------------------------------------------------------- lost answers and races


class Broken:
    """Fails requests of one kind, before or after they are done."""

    def __init__(self, store: DictStore, operation: str, verdict: str, times: int = 1) -> None:
        self.left = times
        self.operation, self.verdict = operation, verdict
        store.on_request = self

    def __call__(self, operation: str, path: str) -> str | None:
        if operation != self.operation or not self.left:
            return None
        self.left -= 1
        if self.verdict == "refuse":
            raise StoreError(f"{operation} {path}: no route to host", path=path)
        return self.verdict


def test_a_lost_answer_to_the_commit_is_a_success():
    store = DictStore()
    one = started(store)
    Broken(store, "put_if_absent", "lose")
    assert small_checkpoint(one, 1).checkpoint_id == 1
    assert started(store, "b").latest.checkpoint_id == 1


def test_a_lost_answer_to_the_claim_is_a_success():
    store = DictStore()
    Broken(store, "put_if_absent", "lose")
    assert coordinator(store).claim() == 0
    assert coordinator(store, "b").claim() == 1


def test_a_refused_commit_can_be_repeated_with_the_same_bytes():
    store = DictStore()
    one = started(store)
    Broken(store, "put_if_absent", "refuse")
    with pytest.raises(StoreError, match="no route to host"):
        small_checkpoint(one, 1, properties={"n": 1})
    with pytest.raises(CheckpointError) as raised:
        one.acknowledge(1, TaskStateSnapshot(ALL, None))
    assert raised.value.reason == "committing"
    assert one.complete(1, properties={"n": 2}).properties == {"n": 1}


def test_an_outcome_that_cannot_be_asked_for_is_an_error_and_the_repetition_finds_out():
    store = DictStore()
    one = started(store)
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
        small_checkpoint(one, 1)
    assert "chk-1/_metadata" in store.objects
    assert one.complete(1, properties={}).checkpoint_id == 1
    assert one.latest.checkpoint_id == 1


def test_a_checkpoint_with_an_unknown_outcome_cannot_be_replaced_by_another():
    store = DictStore()
    one = started(store)
    one.trigger(1, [ALL])
    one.acknowledge(1, TaskStateSnapshot(ALL, log_inline(ALL, [[(1, b"first")]])))

    def verdict(operation, path):
        if operation == "put_if_absent":
            return "lose"
        raise StoreError("no route to host")

    store.on_request = verdict
    with pytest.raises(StoreError):
        one.complete(1, properties={})
    store.on_request = lambda operation, path: None
    one.decline(1, "gave up")
    with pytest.raises(CheckpointError, match="gave up"):
        one.complete(1, properties={})
    with pytest.raises(UsageError, match="declined with an unknown outcome"):
        one.trigger(1, [ALL])
    assert one.claim() == 2
    assert one.restore().checkpoint_id == 1
    assert read_log(store, one.latest.log) == [StateChange(1, b"first")]
    assert small_checkpoint(one, 3).parent_id == 1


def test_a_checkpoint_that_was_not_put_can_be_declined_and_begun_again():
    one = started(DictStore())
    one.trigger(1, [ALL])
    one.decline(1, "no task answered")
    assert one.next_checkpoint_id == 1
    assert small_checkpoint(one, 1).checkpoint_id == 1


@pytest.mark.parametrize("checkpoint_id", [0, 1, 3])
def test_only_the_next_number_can_begin(checkpoint_id):
    store = DictStore()
    one = started(store)
    small_checkpoint(one, 1)
    with pytest.raises(CheckpointError, match=r"the next number of dict:// is 2\.") as raised:
        one.trigger(checkpoint_id, [ALL])
    assert raised.value.reason == "not_next"


def test_an_owner_that_commits_first_is_continued_by_the_next_one():
    """The put of the first owner comes between the listing of the second one and its claim."""
    store = DictStore()
    first = started(store, "a")

    def commit_before_claim(operation, path):
        if operation == "put_if_absent":
            store.on_request = lambda operation, path: None
            small_checkpoint(first, 1)
        return None

    store.on_request = commit_before_claim
    second = started(store, "b")
    assert (second.epoch, second.latest.checkpoint_id) == (2, 1)
    with pytest.raises(FencedError, match="chk-2/_metadata, claimed by 'b'"):
        small_checkpoint(first, 2)


def test_a_claim_before_the_put_rejects_it():
    store = DictStore()
    one = started(store)

    def claim_before_put(operation, path):
        if path == "chk-1/_metadata":
            store.on_request = lambda operation, path: None
            started(store, "b")
        return None

    store.on_request = claim_before_put
    with pytest.raises(FencedError, match="chk-1/_metadata, claimed by 'b'"):
        small_checkpoint(one, 1)
    assert started(store, "c").latest is None


def test_an_owner_that_is_overtaken_before_it_restores_is_fenced():
    store = DictStore()
    one = coordinator(store, "a")
    one.claim()
    other = started(store, "b", retained=1)
    for number in range(2, 5):
        small_checkpoint(other, number)
    assert one.restore() is None, "as the location was at the claim"
    with pytest.raises(FencedError, match="claimed by 'b'"):
        small_checkpoint(one, 1)


# ------------------------------------------------------------------------------------- restoring


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
def test_a_damaged_newest_checkpoint_is_told_with_the_way_out(store, change):
    one = started(store)
    for checkpoint_id in range(1, 5):
        small_checkpoint(one, checkpoint_id)
    damage(store, "chk-4/_metadata", change)
    heir = coordinator(store, "b")
    heir.claim()
    with pytest.raises(CheckpointError, match=r"checkpoint=3") as raised:
        heir.restore()
    facts = raised.value
    assert (facts.reason, facts.usable_id, facts.path) == ("damaged", 3, "chk-4/_metadata")
    with pytest.raises(CheckpointError) as again:
        heir.restore(4)
    assert again.value.reason == "damaged"
    assert heir.restore(3).checkpoint_id == 3
    assert small_checkpoint(heir, 6).parent_id == 3
    last = started(store, "c")
    assert (last.latest.checkpoint_id, last.latest.owner_id) == (6, "b")
    assert len(read_log(store, last.latest.log)) == 12


def test_the_only_checkpoint_is_damaged(store):
    small_checkpoint(started(store), 1)
    damage(store, "chk-1/_metadata", flip)
    with pytest.raises(CheckpointError, match="no older checkpoint") as raised:
        started(store, "b")
    assert raised.value.usable_id is None


def test_a_newer_version_is_not_called_damaged(store):
    one = started(store)
    small_checkpoint(one, 1)
    small_checkpoint(one, 2)
    data = bytearray(store.get("chk-2/_metadata"))
    data[-12:-10] = b"\x00\x09"
    damage(store, "chk-2/_metadata", lambda _: data)
    with pytest.raises(IncompatibleFormatError, match="upgrade"):
        started(store, "b")


def test_an_older_retained_checkpoint_can_be_asked_for(store):
    one = started(store)
    for checkpoint_id in range(1, 6):
        small_checkpoint(one, checkpoint_id)
        one.clean_up()
    heir = coordinator(store, "b")
    heir.claim()
    assert heir.restore(4).checkpoint_id == 4
    assert heir.checkpoints() == [3, 4]
    assert started(store, "looker").latest.checkpoint_id == 5, "nothing is given up before a commit"
    heir = coordinator(store, "c")
    heir.claim()
    heir.restore(4)
    assert heir.next_checkpoint_id == 9, "three owners have claimed since"
    small_checkpoint(heir, 9)
    assert "chk-5/_metadata" in heir.clean_up().deleted
    assert started(store, "d").latest.owner_id == "c"


@pytest.mark.parametrize(
    ("asked", "reason"), [(1, "subsumed"), (0, "not_found"), (17, "not_found")]
)
def test_what_cannot_be_restored_is_told(store, asked, reason):
    one = started(store, retained=2)
    for checkpoint_id in range(1, 6):
        small_checkpoint(one, checkpoint_id)
    with pytest.raises(CheckpointError) as raised:
        coordinator(store, "b").restore(asked)
    assert raised.value.reason == reason


def test_a_checkpoint_without_its_objects_cannot_be_asked_for(store):
    one = started(store)
    log = log_in_file(store, ALL, [[(1, b"a")]])
    run_checkpoint(one, 1, [TaskStateSnapshot(ALL, log)])
    small_checkpoint(one, 2)
    store.delete(one.load(1).referenced_paths())
    with pytest.raises(CheckpointError) as raised:
        coordinator(store, "b").restore(1)
    assert raised.value.reason == "objects_missing"


def test_the_number_of_key_groups_is_fixed_for_life(store):
    small_checkpoint(started(store), 1)
    with pytest.raises(CheckpointError, match="8 key groups") as raised:
        coordinator(store, "b", max_parallelism=16).restore()
    assert raised.value.reason == "max_parallelism"


def test_a_folder_without_metadata_is_no_checkpoint(store):
    small_checkpoint(started(store), 1)
    store.put("chk-8/exclusive", b"x")
    assert started(store, "b").latest.checkpoint_id == 1


def test_a_crash_before_the_clean_up_leaves_nothing_for_ever(store):
    one = started(store, retained=1)
    log = log_in_file(store, ALL, [[(1, b"a")]])
    run_checkpoint(one, 1, [TaskStateSnapshot(ALL, log)])
    snapshot = MaterializedHandle(ALL, 2, ByteStreamStateHandle("n", b"s"))
    run_checkpoint(one, 2, [TaskStateSnapshot(ALL, None, snapshot)])
    heir = started(store, "b", retained=1)
    report = heir.clean_up()
    assert set(report.deleted) == {
        *(e.handle.path for e in log.handles_and_offsets),
        "chk-1/_metadata",
    }
    assert heir.clean_up().deleted == ()


def test_a_clean_up_that_fails_is_tried_again():
    store = DictStore()
    one = started(store, retained=1)
    snapshot = MaterializedHandle(ALL, 1, ByteStreamStateHandle("n", b"s"))
    run_checkpoint(one, 1, [TaskStateSnapshot(ALL, None, snapshot)])
    run_checkpoint(one, 2, [TaskStateSnapshot(ALL, None)])
    Broken(store, "delete", "refuse")
    report = one.clean_up()
    assert (report.deleted, report.failed) == ((), ("chk-1/_metadata",))
    assert "no route to host" in report.reason
    assert one.clean_up().deleted == ("chk-1/_metadata",)


def test_staged_output_objects_live_as_long_as_their_checkpoint(store):
    one = started(store, retained=2)
    for checkpoint_id in range(1, 4):
        store.put(f"output/{checkpoint_id}", b"rows")
        small_checkpoint(
            one, checkpoint_id, properties={OBJECTS_PROPERTY: [f"output/{checkpoint_id}"]}
        )
    assert one.clean_up().deleted == ("output/1",), "the metadata is needed for its changes"


def test_a_checkpoint_costs_one_put():
    store = DictStore()
    one = started(store)
    small_checkpoint(one, 1)
    store.requests.clear()
    small_checkpoint(one, 2)
    one.clean_up()
    assert store.requests == {"put_if_absent": 1}


def test_load_and_section_explain_what_is_missing(store):
    one = started(store)
    small_checkpoint(one, 1)
    with pytest.raises(CheckpointError) as raised:
        one.load(6)
    assert raised.value.reason == "not_found"
    damage(store, "chk-1/_metadata", lambda data: data[:-1])
    with pytest.raises(CheckpointError) as raised:
        one.section(1, b"OUTP")
    assert raised.value.reason == "damaged"


def test_a_long_record_is_read_in_two_pieces(store):
    one = started(store)
    rows = bytes(range(256)) * 1000
    small_checkpoint(one, 1, sections={b"OUTP": rows})
    assert one.section(1, b"OUTP") == rows


def test_a_fenced_owner_deletes_only_what_its_own_commits_subsumed():
    """No later owner needs that, so the deletion needs no look at the claims."""
    store = DictStore()
    one = started(store, retained=1)
    for number in (1, 2):
        snapshot = MaterializedHandle(ALL, number, ByteStreamStateHandle(f"n{number}", b"s"))
        run_checkpoint(one, number, [TaskStateSnapshot(ALL, None, snapshot)])
    heir = started(store, "b")
    assert one.clean_up().deleted == ("chk-1/_metadata",)
    small_checkpoint(heir, 4)
    assert started(store, "c").latest.parent_id == 2


# ------------------------------------------------------------------------ found by mutants


def test_what_is_no_checkpoint_under_the_name_fences():
    store = DictStore()
    one = started(store)
    store.put("chk-1/_metadata", b"something else")
    with pytest.raises(
        FencedError, match=r"chk-1/_metadata exists and this owner did not write it"
    ):
        small_checkpoint(one, 1)


def test_the_latest_checkpoint_is_not_read_again():
    store = DictStore()
    one = started(store)
    done = small_checkpoint(one, 1)
    small = small_checkpoint(one, 2)
    store.requests.clear()
    assert one.load(2) is small
    assert not store.requests
    assert one.load(1) == done
    assert store.requests


def test_what_was_given_up_and_could_not_be_deleted_is_tried_again():
    store = DictStore()
    one = started(store)
    for checkpoint_id in range(1, 5):
        small_checkpoint(one, checkpoint_id)
    heir = coordinator(store, "b")
    heir.claim()
    heir.restore(2)
    small_checkpoint(heir, 6)

    def refuse(operation, path):
        if (operation, path) == ("delete", "chk-3/_metadata"):
            raise StoreError(f"delete {path}: no route to host", path=path)

    store.on_request = refuse
    heir.clean_up()
    assert "chk-3/_metadata" in store.objects
    assert "chk-4/_metadata" not in store.objects
    store.on_request = lambda operation, path: None
    store.deleted.clear()
    assert "chk-3/_metadata" in heir.clean_up().deleted
    assert "chk-4/_metadata" not in heir.clean_up().deleted
    assert "chk-3/_metadata" not in heir.clean_up().deleted
