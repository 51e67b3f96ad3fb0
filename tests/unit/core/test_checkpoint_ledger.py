"""The ledger alone: what it refuses, and its invariants under any order of events."""

import random

import pytest
from tests.support.locations.checkpoints import record_of
from tests.support.strategies import log_handle

from statelog.core.checkpoint_ledger import (
    PHASES,
    Acknowledged,
    CheckpointLedger,
    CleanUpRequested,
    CommitRequested,
    Committed,
    Declined,
    Deleted,
    DeleteObjects,
    Fenced,
    Phase,
    Restored,
    RetainedCheckpoint,
    Triggered,
    WriteMetadata,
)
from statelog.errors import CheckpointError, FencedError, InvariantError, UsageError
from statelog.model import (
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
    split_key_groups,
)

LEFT, RIGHT, ALL = KeyGroupRange(0, 3), KeyGroupRange(4, 7), KeyGroupRange(0, 7)
MS = 1_000_000


def completed(plan: WriteMetadata) -> CompletedCheckpoint:
    return record_of(
        plan.log, plan.materialized, checkpoint_id=plan.checkpoint_id, parent_id=plan.parent_id,
        max_parallelism=8, retained=plan.retained,
    )  # fmt: skip


def commit(ledger: CheckpointLedger, checkpoint_id: int) -> CompletedCheckpoint:
    [plan] = ledger.handle(CommitRequested(checkpoint_id), 0)
    checkpoint = completed(plan)
    objects = (*checkpoint.referenced_paths(), f"m{checkpoint_id}")
    ledger.handle(Committed(checkpoint, objects), 0)
    return checkpoint


def ledger_with(checkpoints: int = 0, retained: int = 2) -> CheckpointLedger:
    ledger = CheckpointLedger(max_parallelism=8, retained=retained)
    for checkpoint_id in range(checkpoints):
        ledger.handle(Triggered(checkpoint_id, (ALL,)), 0)
        log = log_handle(0, checkpoint_id, ALL)
        ledger.handle(Acknowledged(checkpoint_id, TaskStateSnapshot(ALL, log)), 0)
        commit(ledger, checkpoint_id)
    return ledger


def refused(ledger, event, now_ns=0) -> str:
    with pytest.raises(CheckpointError) as raised:
        ledger.handle(event, now_ns)
    ledger.check_invariants()
    return raised.value.reason


def test_events_that_do_not_fit_are_refused_by_name():
    ledger = ledger_with(2)
    assert refused(ledger, Triggered(1, (ALL,))) == "not_newer"
    assert refused(ledger, Triggered(0, (ALL,))) == "not_newer"
    assert refused(ledger, Acknowledged(2, TaskStateSnapshot(ALL, None))) == "unknown"
    assert refused(ledger, CommitRequested(2)) == "unknown"
    assert refused(ledger, Declined(2, "no")) == "unknown"
    ledger.handle(Triggered(2, (LEFT, RIGHT)), 0)
    assert refused(ledger, Triggered(3, (ALL,))) == "in_progress"
    assert refused(ledger, Acknowledged(2, TaskStateSnapshot(ALL, None))) == "unknown_range"
    foreign = TaskStateSnapshot(LEFT, log_handle(2, 0, ALL))
    assert refused(ledger, Acknowledged(2, foreign)) == "foreign_key_groups"
    future = TaskStateSnapshot(LEFT, None, MaterializedHandle(LEFT, 3, FileStateHandle("s", 1)))
    assert refused(ledger, Acknowledged(2, future)) == "snapshot_too_new"
    ledger.handle(Declined(2, "a worker died"), 0)
    assert refused(ledger, CommitRequested(2)) == "declined"
    ledger.handle(Triggered(2, (ALL,)), 0)
    assert ledger.pending_id == 2


@pytest.mark.parametrize(
    "ranges", [(LEFT, ALL), (LEFT, LEFT), (KeyGroupRange(0, 8),), (KeyGroupRange.empty(),)]
)
def test_ranges_must_be_disjoint_and_of_the_job(ranges):
    with pytest.raises(UsageError):
        ledger_with().handle(Triggered(0, ranges), 0)


def test_missing_tasks_are_named_with_the_time_waited():
    ledger = ledger_with()
    ledger.handle(Triggered(0, (RIGHT, LEFT)), 5 * MS)
    ledger.handle(Acknowledged(0, TaskStateSnapshot(RIGHT, None)), 6 * MS)
    with pytest.raises(CheckpointError, match=r"after 37 ms, .* \[0, 3\] have not") as raised:
        ledger.handle(CommitRequested(0), 42 * MS)
    assert raised.value.missing == (LEFT,)


def test_of_two_acknowledgements_the_last_counts_until_the_commit():
    ledger = ledger_with()
    ledger.handle(Triggered(0, (ALL,)), 0)
    for number in (1, 2):
        ledger.handle(Acknowledged(0, TaskStateSnapshot(ALL, log_handle(0, number, ALL))), 0)
    [plan] = ledger.handle(CommitRequested(0), 0)
    assert [handle.state_handle_id for handle in plan.log] == ["h2"]
    late = Acknowledged(0, TaskStateSnapshot(ALL, log_handle(0, 3, ALL)))
    assert refused(ledger, late) == "committing"
    assert refused(ledger, Triggered(0, (ALL,))) == "committing"
    assert ledger.handle(CommitRequested(0), 0) == [plan]


def test_log_handles_get_the_id_of_their_checkpoint_which_needs_no_task():
    ledger = ledger_with(3)
    ledger.handle(Triggered(3, ()), 0)
    assert [handle.checkpoint_id for handle in commit(ledger, 3).log] == [0, 1, 2]


def test_a_fenced_owner_can_only_restart():
    ledger = ledger_with(1)
    ledger.handle(Fenced("epoch 2 is claimed"), 0)
    assert ledger.phase is Phase.FENCED
    for event in (Triggered(1, (ALL,)), CommitRequested(1), CleanUpRequested(()), Deleted(())):
        with pytest.raises(FencedError, match="epoch 2"):
            ledger.handle(event, 0)
    ledger.handle(Restored(None), 0)
    assert ledger.phase is Phase.IDLE
    ledger.handle(Triggered(0, (ALL,)), 0)


def test_an_unreadable_retained_checkpoint_holds_the_clean_up():
    ledger, latest = CheckpointLedger(max_parallelism=8, retained=2), ledger_with(2).latest
    unreadable, leftover = RetainedCheckpoint(0, None), RetainedCheckpoint(-1, ("old",))
    ledger.handle(Restored(latest, (unreadable, RetainedCheckpoint(1, ("a",)))), 0)
    assert ledger.handle(CleanUpRequested((), leftovers=(leftover,)), 0) == []
    ledger.handle(Triggered(2, (ALL,)), 0)
    ledger.handle(Acknowledged(2, TaskStateSnapshot(ALL, None)), 0)
    commit(ledger, 2)
    assert ledger.handle(CleanUpRequested(()), 0) == [DeleteObjects(("old",))]


def test_what_a_pending_acknowledgement_names_is_not_deleted():
    ledger = ledger_with(0, retained=1)
    ledger.handle(Triggered(0, (ALL,)), 0)
    ledger.handle(Acknowledged(0, TaskStateSnapshot(ALL, log_handle(0, 1, ALL))), 0)
    commit(ledger, 0)
    snapshot = MaterializedHandle(ALL, 0, FileStateHandle("s", 1))
    ledger.handle(Triggered(1, (ALL,)), 0)
    ledger.handle(Acknowledged(1, TaskStateSnapshot(ALL, None, snapshot)), 0)
    commit(ledger, 1)
    ledger.handle(Triggered(2, (ALL,)), 0)
    ledger.handle(Acknowledged(2, TaskStateSnapshot(ALL, log_handle(2, 1, ALL))), 0)
    assert ledger.handle(CleanUpRequested(()), 0) == [DeleteObjects(("m0",))]
    ledger.handle(Declined(2, "no"), 0)
    assert ledger.handle(CleanUpRequested(()), 0) == [DeleteObjects(("f1", "m0"))]


def random_event(dice: random.Random, ledger: CheckpointLedger, step: int):
    latest = -1 if ledger.latest is None else ledger.latest.checkpoint_id
    pending = ledger._pending
    checkpoint_id = latest + 1 if pending is None else pending.checkpoint_id
    if dice.random() < 0.1:
        checkpoint_id = max(0, checkpoint_id + dice.randint(-2, 2))
    ranges = split_key_groups(8, dice.randint(1, 3))
    key_groups = dice.choice(ranges)
    if pending is not None and dice.random() < 0.9:
        waiting = [part for part in pending.ranges if part not in pending.snapshots]
        key_groups = dice.choice(waiting or pending.ranges)
    log = log_handle(0, dice.randrange(step + 1), key_groups) if dice.random() < 0.7 else None
    materialized = None
    if dice.random() < 0.3:
        of = max(0, checkpoint_id - dice.randint(0, 1))
        materialized = MaterializedHandle(key_groups, of, FileStateHandle(f"s{step}", 1))
    acknowledged = Acknowledged(checkpoint_id, TaskStateSnapshot(key_groups, log, materialized))
    rare = [CleanUpRequested(()), Declined(checkpoint_id, "dice")]
    begun = [Triggered(checkpoint_id, ranges)] * (6 if pending is None else 1)
    return dice.choice([*begun, *[acknowledged] * 6, *[CommitRequested(checkpoint_id)] * 4, *rare])


@pytest.mark.parametrize("seed", range(30))
def test_invariants_hold_in_any_order_of_events(seed):
    dice = random.Random(seed)
    ledger = CheckpointLedger(max_parallelism=8, retained=dice.randint(1, 3))
    retained: dict[int, tuple[str, ...]] = {}
    refusals = commits = 0
    for step in range(400):
        event = random_event(dice, ledger, step)
        before, phase = (ledger.latest, ledger.retained, ledger.pending_id), ledger.phase
        try:
            actions = ledger.handle(event, step)
            assert ledger.phase is PHASES[phase].get(type(event), phase)
        except (CheckpointError, UsageError):
            refusals += 1
            assert (ledger.latest, ledger.retained, ledger.pending_id) == before
            actions = []
        for action in actions:
            if isinstance(action, DeleteObjects):
                needed = {path for objects in retained.values() for path in objects}
                assert not needed & set(action.paths)
                ledger.handle(Deleted(action.paths[: dice.randint(0, len(action.paths))]), step)
            elif dice.random() < 0.7:
                checkpoint = completed(action)
                objects = (*checkpoint.referenced_paths(), f"m{action.checkpoint_id}")
                phase, done = ledger.phase, Committed(checkpoint, objects)
                ledger.handle(done, step)
                assert ledger.phase is PHASES[phase].get(type(done), phase)
                retained[action.checkpoint_id] = objects
                retained = {i: o for i, o in retained.items() if i in checkpoint.retained}
                commits += 1
        ledger.check_invariants()
        assert ledger.retained == tuple(retained)
    assert commits > 5
    assert refusals > 5


def test_the_invariants_find_what_they_are_for():
    ledger = ledger_with(2)
    ledger._references["f0"] += 1
    with pytest.raises(InvariantError, match="1:"):
        ledger.check_invariants()
    ledger._references["f0"] -= 1
    ledger._garbage["f0"] = None
    with pytest.raises(InvariantError, match="2:"):
        ledger.check_invariants()
