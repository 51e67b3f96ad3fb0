"""What a checkpoint changed is in its own log, whatever its snapshot contains."""

from __future__ import annotations

from tests.support.locations.checkpoints import ManualClock, log_in_file
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint import CheckpointCoordinator, CheckpointOptions
from statelog.model import FileStateHandle, KeyGroupRange, TaskStateSnapshot
from statelog.model.checkpoint import MaterializedHandle
from statelog.store import PATHS

GROUPS = KeyGroupRange(0, 3)


def test_a_snapshot_does_not_hide_the_changes_of_its_own_checkpoint() -> None:
    store = DictStore()
    coordinator = CheckpointCoordinator(
        store,
        owner_id="writer",
        max_parallelism=len(GROUPS),
        options=CheckpointOptions(retained=2),
        clock_ms=ManualClock(),
    )
    coordinator.claim()
    coordinator.restore()
    logs = []
    for checkpoint_id in range(1, 5):
        log = log_in_file(store, GROUPS, [[(1, b"change")]], checkpoint_id)
        snapshot = None
        if checkpoint_id == 2:
            path = PATHS.task_owned("snapshot")
            store.put(path, b"snapshot")
            snapshot = MaterializedHandle(GROUPS, checkpoint_id, FileStateHandle(path, 8))
        coordinator.trigger(checkpoint_id, [GROUPS])
        coordinator.acknowledge(checkpoint_id, TaskStateSnapshot(GROUPS, log, snapshot))
        logs.append(coordinator.complete(checkpoint_id, properties={}).log)
    assert [[one.checkpoint_id for one in log] for log in logs] == [[1], [2], [3], [3, 4]]
    latest = coordinator.latest
    assert latest is not None
    assert [one.checkpoint_id for one in latest.for_range(GROUPS).log] == [3, 4]
    assert [one.checkpoint_id for one in coordinator.load(3).for_range(GROUPS).log] == [3]
