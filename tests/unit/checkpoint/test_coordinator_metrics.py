"""What the metrics record of checkpoints and of snapshots."""

from tests.support.locations.checkpoints import ManualClock, log_inline, run_checkpoint

import statelog as sl
from statelog.checkpoint.coordinator import CheckpointCoordinator, CheckpointRecorder
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot
from statelog.options import CheckpointOptions

ALL = KeyGroupRange(0, 7)


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
    run_checkpoint(
        owner, 1, [TaskStateSnapshot(ALL, log_inline(ALL, [[(1, b"abc")]], 1), snapshot)]
    )
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
