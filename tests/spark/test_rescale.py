"""Another number of tasks at every restart, snapshots, older checkpoints, damaged ones."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.locations.sequence_entries import committed
from tests.support.spark.checkpoint_files import remove
from tests.support.spark.processors import INPUT, totals_job, totals_of
from tests.support.spark.streams import FREQUENT_SNAPSHOTS, BatchSource, Job
from tests.support.spark.versions import needs

from statelog.core.task_count import BatchCost
from statelog.errors import CheckpointError
from statelog.metrics import Metrics
from statelog.spark.driver import operator_run
from statelog.spark.worker.protocol import TaskAck

TASKS = (1, 2, 7, 3)
KEYS = 60
HOUR_MS = 3_600_000
NEVER_MS = 4_000_000_000_000


class EveryKind(StatefulProcessor):
    """Notes each amount in states of every kind, and yields all the state of the key."""

    def init(self, handle):
        self.handle = handle
        self.sum = handle.getValueState("sum", "total bigint")
        self.all = handle.getListState("all", "amount bigint")
        self.by = handle.getMapState("by", "amount bigint", "times bigint")
        self.lasting = handle.getListState("lasting", "amount bigint", HOUR_MS)
        self.gone = handle.getValueState("gone", "amount bigint", 1)
        self.seen = handle.getMapState("seen", "amount bigint", "last bigint", HOUR_MS)

    def handleInputRows(self, key, rows, timerValues):
        gone = self.gone.get()
        for row in rows:
            amount = row.amount
            if amount < 0:
                self.forget()
            self.sum.update(((self.sum.get() or (0,))[0] + amount,))
            self.all.appendValue((amount,))
            self.by.updateValue((amount,), ((self.by.getValue((amount,)) or (0,))[0] + 1,))
            self.lasting.appendValue((amount,))
            self.gone.update((amount,))
            self.seen.updateValue((amount,), (row.at,))
            if amount % 5 == 0:
                self.by.removeKey((amount,))
                self.handle.deleteTimer(NEVER_MS + 5)
            self.handle.registerTimer(NEVER_MS + abs(amount))
        yield Row(key=key[0], state=json.dumps([gone, *self.state()]))

    def forget(self) -> None:
        for state in (self.sum, self.all, self.by, self.lasting, self.seen):
            state.clear()
        for time in list(self.handle.listTimers()):
            self.handle.deleteTimer(time)

    def state(self) -> list[Any]:
        return [
            list(self.sum.get() or ()),
            [amount for (amount,) in self.all.get()],
            sorted((*key, *value) for key, value in self.by.iterator()),
            [amount for (amount,) in self.lasting.get()],
            sorted((*key, *value) for key, value in self.seen.iterator()),
            list(self.handle.listTimers()),
        ]


class Model:
    """What `EveryKind` must yield, kept in plain Python."""

    def __init__(self) -> None:
        self.keys: dict[int, dict[str, Any]] = {}

    def apply(self, rows: list[tuple[int, int, int]]) -> dict[int, str]:
        for key, amount, at in rows:
            if amount < 0 or key not in self.keys:
                self.keys[key] = {"all": [], "by": {}, "seen": {}, "timers": set()}
            state = self.keys[key]
            state["all"].append(amount)
            state["by"][amount] = state["by"].get(amount, 0) + 1
            state["seen"][amount] = at
            if amount % 5 == 0:
                state["by"].pop(amount)
                state["timers"].discard(NEVER_MS + 5)
            state["timers"].add(NEVER_MS + abs(amount))
        return {key: self.text(self.keys[key]) for key, _, _ in rows}

    def text(self, state: dict[str, Any]) -> str:
        amounts = state["all"]
        by, seen = (sorted(map(list, state[name].items())) for name in ("by", "seen"))
        return json.dumps(
            [None, [sum(amounts)], amounts, by, amounts, seen, sorted(state["timers"])]
        )


def batch_of(rng: random.Random, at: int) -> list[tuple[int, int, int]]:
    return [(rng.randrange(KEYS), rng.choice([-1, 0, 5, rng.randrange(20)]), at) for _ in range(80)]


def test_all_state_survives_a_change_of_tasks(spark, tmp_path):
    rng = random.Random(4372)
    source = BatchSource(spark, tmp_path / "in", f"{INPUT}, at bigint")
    local = tmp_path / "local"
    options = {
        "timeMode": "ProcessingTime",
        **FREQUENT_SNAPSHOTS,
        "state.backend": "disk",  # every restart finds the state in columns
        "state.local-directory": str(local),
    }
    job = Job(source, tmp_path, ["key"], EveryKind(), "key bigint, state string", options)
    model = Model()
    for run, tasks in enumerate(TASKS):
        batches = [batch_of(rng, 3 * run + number) for number in range(3)]
        source.add_all(batches)
        job.run(tasks=tasks)
        expected = [model.apply(rows) for rows in batches]
        assert expected == [{row.key: row.state for row in batch} for batch in job.take()]
    assert [tasks for tasks in TASKS for _ in range(3)] == [report.tasks for report in job.progress]
    assert sum(progress.snapshots for progress in job.progress) >= 8
    assert any(progress.catch_up["restored"] for progress in job.progress)
    assert any(progress.catch_up["local"] for progress in job.progress)
    assert all(path.stat().st_mode & 0o077 == 0 for path in local.iterdir())


def cost_by_rows(acks: Sequence[TaskAck], size: int | None) -> BatchCost:
    rows = sum(ack.count("rows") for ack in acks)
    return BatchCost(len(acks), rows, size, work_ms=rows * 0.01, input_ms=1.0)


def test_tasks_follow_the_size_of_each_batch_and_state_is_not_read_anew(
    spark, tmp_path, monkeypatch
):
    # How long rows take depends on the machine: here each takes the same time.
    monkeypatch.setattr(operator_run, "batch_cost", cost_by_rows)
    job = totals_job(spark, tmp_path)
    rng = random.Random(1)
    small = [(key, key) for key in range(50)]
    large = [
        (7 if row % 3 else rng.randrange(100), rng.randrange(1 << 40)) for row in range(200_000)
    ]
    batches = [small, large, small, small, large, small]
    job.source.add_all(batches)
    job.run(tasks="1-2")
    assert totals_of(batches) == job.take_in_order()
    assert [1, 2, 1, 1, 2, 1] == [progress.tasks for progress in job.progress]
    assert 0 == sum(progress.catch_up["restored"] for progress in job.progress)
    # A worker reads what it missed since its last batch: never more than there were batches.
    assert all(progress.catch_up["replayed"] <= 2 * 6 for progress in job.progress)
    (largest,) = job.progress[1].largest_keys[:1]
    assert ("(7,)", True) == (largest["key"], 0.6 < largest["share"] < 0.7)
    assert () == tuple(job.progress[0].largest_keys)


def test_a_failed_snapshot_does_no_harm(spark, tmp_path):
    metrics = Metrics()
    policy = {"snapshot.max-log-handles": 4, "snapshot.slice-size": 1, "snapshot.max-slices": 4}
    job = totals_job(spark, tmp_path, metrics=metrics, tasks=2, **policy)
    rows = [(key, 1) for key in range(400)]

    files = job.state / "taskowned"
    files.parent.mkdir()
    files.touch()  # a folder that is a file: nothing can be put into it
    job.source.add_all([rows] * 6)
    job.run()
    failed = sum(progress.snapshots_failed for progress in job.progress)
    assert failed >= 1
    assert failed == metrics.value("failed_materialization")
    assert failed < metrics.value("log_handles_behind_snapshots") == 12  # all there is
    files.unlink()
    job.source.add_all([rows] * 9)
    job.run()
    swept = job.progress[6:]
    assert 1 <= max(progress.snapshots for progress in swept) <= 2
    assert all(progress.log_handles <= 2 * (4 + 2) for progress in swept[4:])
    assert swept[-1].log_handles == metrics.value("log_handles_behind_snapshots")
    assert swept[-1].log_bytes == metrics.value("log_bytes_behind_snapshots")
    assert 4 <= len(list(files.iterdir())) <= 16  # what nothing needs any more was deleted
    job.source.add(rows)
    job.run(tasks=3)  # a new run reads the snapshots there are
    assert job.progress[-1].catch_up["restored"]
    assert totals_of([rows] * 16) == job.take_in_order()


class Dropping(EveryKind):
    """`EveryKind` that deletes some of its variables when a task begins, then asks for all."""

    def init(self, handle):
        for name in ("all", "by", "sum", "lasting", "never there"):
            handle.deleteIfExists(name)
        super().init(handle)


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_a_variable_that_is_deleted_is_gone_for_every_key_and_the_others_stay(
    spark, tmp_path, delivery
):
    source = BatchSource(spark, tmp_path / "in", f"{INPUT}, at bigint")
    options = {"timeMode": "ProcessingTime", "delivery": delivery}
    job = Job(source, tmp_path, ["key"], EveryKind(), "key bigint, state string", options)
    source.add([(key, 7, 1) for key in range(KEYS)])
    job.run(tasks=2)
    source.add([(0, 8, 2)])  # every key loses its variables, not only those with rows
    job.run(processor=Dropping(), tasks=3)
    source.add([(key, 9, 3) for key in range(KEYS)])
    job.run(tasks=1)
    states = {row.key: json.loads(row.state) for row in job.take()[-1]}
    fresh = [None, [9], [9], [[9, 1]], [9], [[7, 1], [9, 3]], [NEVER_MS + 7, NEVER_MS + 9]]
    touched = [
        None,
        [17],
        [8, 9],
        [[8, 1], [9, 1]],
        [8, 9],
        [[7, 1], [8, 2], [9, 3]],
        [NEVER_MS + 7, NEVER_MS + 8, NEVER_MS + 9],
    ]
    assert {0: touched, **dict.fromkeys(range(1, KEYS), fresh)} == states


BATCHES = [[(1, 1), (2, 2)], [(1, 10)], [(2, 100)], [(1, 1000), (2, 1000)]]


def test_an_older_checkpoint_can_be_restored_and_the_newer_ones_are_given_up(job):
    job.source.add_all(BATCHES[:3])
    job.run(**FREQUENT_SNAPSHOTS)
    job.take()
    job.source.add(BATCHES[3])
    job.run(checkpoint=committed(job.state)[-2], tasks=3, **FREQUENT_SNAPSHOTS)
    job.source.add(BATCHES[1])
    job.run(**FREQUENT_SNAPSHOTS)
    # The older checkpoint knows the first two batches; batch 2 is given up with its own.
    expected = totals_of([*BATCHES[:2], BATCHES[3], BATCHES[1]])[2:]
    assert expected == job.take_in_order()


def flip(path: Path) -> None:
    """Flip a bit near the end: in a block of Snappy, it could decompress to the same bytes."""
    data = bytearray(path.read_bytes())
    data[-28] ^= 0x10
    path.write_bytes(data)


def test_a_damaged_newest_checkpoint_is_named_and_an_older_one_works(job):
    job.source.add_all(BATCHES[:3])
    job.run()
    *older, newest = committed(job.state)
    metadata = job.state / f"chk-{newest}" / "_metadata"
    flip(metadata)
    job.take()
    job.source.add(BATCHES[3])
    for _ in range(2):  # it is not forgotten either
        with pytest.raises(CheckpointError, match=f"chk-{newest}/_metadata") as raised:
            job.start()
    assert ("damaged", older[-1]) == (raised.value.reason, raised.value.usable_id)
    assert [] == job.delivered
    job.run(checkpoint=raised.value.usable_id)
    assert totals_of([*BATCHES[:2], BATCHES[3]])[2:] == job.take_in_order()
    assert {*older} <= {int(path.name[4:]) for path in job.state.glob("chk-*")}


@pytest.mark.parametrize(
    ("folder", "keys", "harm"),
    [("dstl", 40, flip), ("dstl", 40, Path.unlink), ("taskowned", 20_000, flip)],
)
def test_a_damaged_or_missing_file_is_reported_not_skipped(job, folder, keys, harm):
    for rows in BATCHES[:3]:
        job.source.add([(key + more, amount) for key, amount in rows for more in range(keys)])
    policy = FREQUENT_SNAPSHOTS if folder == "taskowned" else {}
    job.run(**{"stream.data-inline-threshold": 0}, **policy)
    job.source.add(BATCHES[3])
    for path in (job.state / folder).iterdir():
        harm(path)
    delivered = len(job.delivered)
    message = rf"(?s)^\w+Error: .*statelog verify file://{job.state}.*checkpoint="
    with pytest.raises(StreamingQueryException, match=message) as raised:
        job.run(**{"stream.data-inline-threshold": 0}, tasks=3, **policy)
    assert f"{folder}/" in str(raised.value).partition("\n\n")[0]
    assert delivered == len(job.delivered)


@needs((4, 3), "the repartition of a checkpointLocation")
def test_an_offline_repartition_can_be_undone(job, spark):
    batches = [[(1, 1), (2, 2)], [(1, 5)], [(2, 7)]]
    job.source.add_all(batches[:2])
    job.run()
    manager: Any = spark._streamingCheckpointManager
    with pytest.raises(Exception, match="STATE_REWRITER_INVALID_CHECKPOINT"):
        manager.repartition(str(job.query), 5)
    job.source.add(batches[2])
    with pytest.raises(CheckpointError, match=r"from 2 to 5 partitions.*offsets/2 and"):
        job.run()
    remove(job.query / "offsets", 2)
    job.run()
    assert totals_of(batches) == job.take_in_order()
