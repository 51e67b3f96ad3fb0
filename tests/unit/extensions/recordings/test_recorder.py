"""What is recorded is what a key saw: replayed with the same processor, nothing differs."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.jobs.recorded_job import RecordedJob, added_by
from tests.support.jobs.recorded_processors import COLUMNS, OUTPUT, FrameSteps, OtherSteps, Steps

from statelog.checkpoint import collect_garbage
from statelog.errors import ProcessorError
from statelog.extensions.recordings.location import list_recordings, read_recording
from statelog.extensions.recordings.step import steps_of
from statelog.extensions.testing.replay import ReplayedStep, replay
from statelog.spark.query.record import Record
from statelog.spark.worker.protocol import TaskAck
from statelog.store import PATHS

pytestmark = pytest.mark.campaign

KEYS = [f"k{number}" for number in range(6)]
SAFE = ("add", "append", "put", "remove", "clear", "expire", "timer", "untimer", "yield")
Batch = tuple[int, list[tuple[str, str, int]]]

operations = st.tuples(st.sampled_from(KEYS), st.sampled_from(SAFE), st.integers(0, 9))
histories = st.lists(
    st.tuples(st.integers(1, 400), st.lists(operations, max_size=30)), min_size=1, max_size=6
)


def run_all(job: RecordedJob, history: list[Batch]) -> None:
    now = 1000
    for elapsed, rows in history:
        now += elapsed
        job.run(rows, now, watermark_ms=now - 100)


def fresh(folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    return str(folder)


def recorded_and_dropped(ack: TaskAck) -> tuple[int, int]:
    (added,) = added_by(ack, "recordings")
    return added.count, added.info["dropped"]


def recorded_keys(job: RecordedJob) -> list[Any]:
    return [
        step.key
        for stored in list_recordings(job.store)
        for task in read_recording(job.store, stored)
        for step in steps_of(task)
    ]


def differences(steps: list[ReplayedStep]) -> list[Any]:
    return [
        (step.checkpoint_id, step.differences, step.error) for step in steps if step.differences
    ]


@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("time_mode", ["none", "processingtime", "eventtime"])
@settings(max_examples=10, deadline=None)
@given(history=histories, tasks=st.integers(1, 3), input_bytes=st.sampled_from([4000, 1 << 30]))
def test_an_unchanged_processor_does_what_was_recorded(
    history: list[Batch], tasks: int, input_bytes: int, time_mode: str, in_pandas: bool,
    tmp_path_factory: Any,
) -> None:  # fmt: skip
    kind = FrameSteps if in_pandas else Steps
    if time_mode != "processingtime":  # a time to live needs that mode
        kind = without_ttl(kind)
    if time_mode == "none":
        history = [
            (elapsed, [row for row in rows if "timer" not in row[1]]) for elapsed, rows in history
        ]
    folder = tmp_path_factory.getbasetemp() / f"same-{time_mode}-{in_pandas}"
    job = RecordedJob(
        fresh(folder), kind(), COLUMNS, OUTPUT, Record(share=1.0), time_mode, in_pandas, tasks,
        input_bytes=input_bytes,
    )  # fmt: skip
    run_all(job, history)
    keys = recorded_keys(job)
    touched = {(row[0],) for _, rows in history for row in rows}
    # Of a task that takes its input in parts, keys that are too large are not recorded.
    assert set(keys) <= touched if input_bytes == 4000 else set(keys) == touched
    for key in set(keys):
        steps = replay(str(folder), key, processor=kind())
        assert [] == differences(steps)
        assert keys.count(key) == len(steps)


_WITHOUT: dict[type, type] = {}


def without_ttl(kind: type[Steps]) -> type[Steps]:
    """Return the processor with the same state without a time to live."""

    def init(self: Any, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, text string")
        self.short = handle.getValueState("short", "n long")
        self.big = handle.getValueState("big", "n long")
        self.items = handle.getListState("items", "n long")
        self.recent = handle.getListState("recent", "n long")
        self.counts = handle.getMapState("counts", "k long", "n long")
        self.seen = handle.getMapState("seen", "k long", "at double")

    def time(self: Any, times: Any) -> int:
        return max(int(times.getCurrentWatermarkInMs()), 0)

    return _WITHOUT.setdefault(
        kind, type(f"{kind.__name__}Plain", (kind,), {"init": init, "time": time})
    )


def test_a_changed_processor_differs_in_what_it_changes(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(keys=(("k1",),)))
    job.run([("k1", "add", 3), ("k1", "yield", 0), ("k2", "add", 1)])
    job.run([("k1", "append", 3)])
    first, second = replay(str(tmp_path), "k1", processor=OtherSteps())
    assert (["output"], []) == (
        [difference.what for difference in first.differences],
        [difference.what for difference in second.differences],
    )
    (difference,) = first.differences
    assert [6] == [row.n for row in difference.recorded]  # type: ignore[attr-defined]
    assert [7] == [row.n for row in difference.found]  # type: ignore[attr-defined]


def test_the_sample_is_the_same_at_every_parallelism(tmp_path: Path) -> None:
    rows = [(f"key {number}", "add", number) for number in range(3000)]
    samples = []
    for tasks in (1, 2, 5):
        folder = tmp_path / str(tasks)
        job = RecordedJob(
            str(folder), Steps(), COLUMNS, OUTPUT, Record(share=0.1), tasks=tasks,
            record_bytes=1 << 24,
        )  # fmt: skip
        job.run(rows)
        samples.append(sorted(recorded_keys(job)))
    assert samples[0] == samples[1] == samples[2]
    assert 200 < len(samples[0]) < 400
    groups = {step[0] for step in samples[0]}
    assert len(groups) == len(samples[0])


def test_timers_alone_are_recorded_too(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0))
    job.run([("k1", "timer", 1), ("k2", "timer", 3)], 1000)
    job.run([], 1150)
    steps = replay(str(tmp_path), "k1", processor=Steps())
    assert [1, 0] == [len(step.input) for step in steps]
    assert ["handleExpiredTimer"] == [step.method for step in steps[1].recorded.calls]
    assert [] == differences(steps)
    assert 1 == len(replay(str(tmp_path), "k2", processor=Steps()))


# ------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("op", ["fail", "misfit"])
def test_a_key_that_failed_fails_again(tmp_path: Path, op: str, in_pandas: bool) -> None:
    kind = FrameSteps if in_pandas else Steps
    job = RecordedJob(
        str(tmp_path), kind(), COLUMNS, OUTPUT, Record(failed=True), pandas=in_pandas, tasks=2
    )
    job.run([("k1", "add", 3), ("k2", "add", 4)])
    rows = [("k2", "add", 1), ("k1", "append", 7), ("k1", op, 8), ("k1", "add", 1)]
    for _ in range(3):  # a query that is started again fails again
        with pytest.raises(
            ProcessorError, match=r"Replay it: statelog replay --processor \S+ file://\S+ k1$"
        ):
            job.run(rows)
    assert [(None, 1)] == [
        (recording.checkpoint_id, recording.keys) for recording in list_recordings(job.store)
    ]
    (step,) = replay(str(tmp_path), "k1", processor=kind())
    assert step.error is not None
    assert () == step.differences
    assert {"total": (3, "t3"), "short": (3,)} == step.before
    assert [7, 8, 1] == [row.n for row in step.input]

    class Corrected(kind):  # type: ignore[misc, valid-type]
        def do(self, op: str, n: int, now: int) -> None:
            if op not in ("fail", "misfit"):
                super().do(op, n, now)

    (step,) = replay(str(tmp_path), "k1", processor=Corrected())
    assert ["error"] == [difference.what for difference in step.differences]
    assert step.error is None


def test_a_failing_timer_is_recorded(tmp_path: Path) -> None:
    class Failing(Steps):
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            raise KeyError("lost")

    job = RecordedJob(str(tmp_path), Failing(), COLUMNS, OUTPUT, Record(failed=True))
    job.run([("k1", "timer", 1)], 1000)
    with pytest.raises(ProcessorError, match=r"Replay it: statelog replay"):
        job.run([("k3", "add", 1)], 1200)
    (step,) = replay(str(tmp_path), "k1", processor=Failing())
    assert isinstance(step.error and step.error.__cause__, KeyError)
    assert [1100] == step.timers_before
    assert "handleExpiredTimer" == step.recorded.failure.method  # type: ignore[union-attr]


def test_without_a_setting_the_error_says_how_to_record(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Steps(), COLUMNS, OUTPUT, None)
    with pytest.raises(ProcessorError, match=r"record it: record=Record\(failed=True\)"):
        job.run([("k1", "fail", 3)])
    assert [] == list_recordings(job.store)


def test_failures_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statelog.extensions.recordings.worker.FAILURES_MAX", 3)
    job = RecordedJob(str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(failed=True))
    for number in range(6):
        with pytest.raises(ProcessorError):
            job.run([(f"k{number}", "fail", number)])
    assert 3 == len(list_recordings(job.store))


# --------------------------------------------------------------------------------------- bounds


def test_a_key_beyond_the_bound_is_dropped_whole_and_counted(tmp_path: Path) -> None:
    job = RecordedJob(
        str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0), record_bytes=20_000
    )
    large = [("large", "append", number) for number in range(2000)]
    small = [(f"k{number}", "append", number) for number in range(10)]
    (ack,) = job.run([*large, *small])
    assert (10, 1) == recorded_and_dropped(ack)
    (stored,) = list_recordings(job.store)
    assert (10, 1) == (stored.keys, stored.dropped)
    (task,) = read_recording(job.store, stored)
    assert {"the key exceeds its size limit": 1} == task.dropped
    assert ("large",) not in recorded_keys(job)
    # Its state is too large from now on, even without a row.
    (ack,) = job.run([("large", "append", 1)])
    assert (0, 1) == recorded_and_dropped(ack)


@pytest.mark.parametrize("record_bytes", [5_000, 50_000])
def test_a_micro_batch_is_bounded(tmp_path: Path, record_bytes: int) -> None:
    job = RecordedJob(
        str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0), record_bytes=record_bytes
    )
    (ack,) = job.run([(f"key {number}", "append", number) for number in range(5000)])
    recorded, dropped = recorded_and_dropped(ack)
    assert recorded > 0
    assert 5000 == recorded + dropped
    (task,) = read_recording(job.store, list_recordings(job.store)[0])
    own = len(task.before) + len(task.after) + len(task.input)
    assert own < record_bytes + 8_000  # and the schemas of the streams


# ------------------------------------------------------------------------------------- lifetime


def test_recordings_are_deleted_after_their_checkpoints(tmp_path: Path) -> None:
    from statelog.spark.query.settings import QuerySettings

    job = RecordedJob(
        str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0), retained=2,
        settings=QuerySettings(record=Record(checkpoints=4)),
    )  # fmt: skip
    for number in range(12):
        job.run([("k1", "add", number)])
    assert [9, 10, 11, 12] == [recording.checkpoint_id for recording in list_recordings(job.store)]
    files = [info.path for info in job.store.list("recordings")]
    assert 5 == len(files)  # the retained checkpoint before the newest names one more
    assert 4 == len(replay(str(tmp_path), "k1", processor=Steps()))


def test_old_recordings_are_dropped_by_age(tmp_path: Path) -> None:
    import datetime as dt

    from statelog.spark.query.settings import QuerySettings

    job = RecordedJob(
        str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0), retained=1,
        settings=QuerySettings(retention=dt.timedelta(seconds=10)),
    )  # fmt: skip
    for number in range(5):
        job.run([("k1", "add", number)], 1_000_000 + number * 4000)
    assert [3, 4, 5] == [recording.checkpoint_id for recording in list_recordings(job.store)]
    job.record = None
    job.run([("k1", "add", 1)], 2_000_000)
    assert [] == list_recordings(job.store)
    assert [] == list(job.store.list("recordings"))


def test_garbage_collection_keeps_recordings_and_lets_failures_age(tmp_path: Path) -> None:
    import datetime as dt

    job = RecordedJob(str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0))
    job.run([("k1", "add", 1)])
    with pytest.raises(ProcessorError):
        job.run([("k1", "fail", 1)])
    job.store.put(PATHS.recording("orphan"), b"of an attempt that failed")
    before = {info.path for info in job.store.list("recordings")}
    assert 3 == len(before)

    def collect(days: float) -> set[str]:
        now = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
        hour = dt.timedelta(hours=1)
        report = collect_garbage(job.store, min_age=hour, apply=True, now=now)
        assert 0 == report.unknown
        return set(report.deleted)

    assert set() == collect(0)
    assert {"recordings/orphan"} == collect(1)
    (failure,) = collect(8)
    assert failure.startswith("recordings/failed/")
    assert [1] == [recording.checkpoint_id for recording in list_recordings(job.store)]


def test_a_new_location_under_an_old_name_begins_empty(tmp_path: Path) -> None:
    """Its epoch is the same, and the worker may still be there with what it read."""
    for rows, tasks in (([("k1", "timer", 1)], 3), ([], 1)):
        folder = fresh(tmp_path / "job")
        job = RecordedJob(
            folder, Steps(), COLUMNS, OUTPUT, Record(share=1.0), "processingtime", False, tasks
        )
        job.run(rows, 1000)
        job.run([], 1001)  # tasks without changes read the checkpoint before, and keep it
        job.run([("k2", "add", 1)], 5000)
    assert {("k2",)} == set(recorded_keys(job))


def test_an_attempt_that_is_not_committed_leaves_no_recording(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0))
    job.run([("k1", "add", 1)])
    job.run_killed([("k1", "add", 5)])
    job = RecordedJob(str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0))
    job.run([("k1", "add", 7)])
    steps = replay(str(tmp_path), "k1", processor=Steps())
    assert [[1], [7]] == [[row.n for row in step.input] for step in steps]
    assert [] == differences(steps)


def test_a_restart_and_another_parallelism_go_on(tmp_path: Path) -> None:
    rng = random.Random(5)
    for tasks in (1, 3, 2):
        job = RecordedJob(str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0), tasks=tasks)
        for _ in range(3):
            rows = [(rng.choice(KEYS), rng.choice(SAFE), rng.randrange(9)) for _ in range(30)]
            job.run(rows, 1000 + 200 * job.batch_id)
    assert 9 == len({recording.checkpoint_id for recording in list_recordings(job.store)})
    for key in set(recorded_keys(job)):
        assert [] == differences(replay(str(tmp_path), key, processor=Steps()))


def test_a_large_recording_is_a_file_of_its_task(tmp_path: Path) -> None:
    job = RecordedJob(
        str(tmp_path), Steps(), COLUMNS, OUTPUT, Record(share=1.0), tasks=2, inline_bytes=100
    )
    acks = job.run([(f"k{number}", "add", number) for number in range(50)])
    assert all(
        added.file is not None and not added.data
        for ack in acks
        for added in added_by(ack, "recordings")
    )
    recordings = list_recordings(job.store)
    assert (2, 50) == (len(recordings), sum(item.keys for item in recordings))
    assert [] == differences(replay(str(tmp_path), "k3", processor=Steps()))


def test_a_fork_has_no_recordings_of_its_parent(tmp_path: Path) -> None:
    import statelog as sl

    job = RecordedJob(
        str(tmp_path / "parent"), Steps(), COLUMNS, OUTPUT, Record(share=1.0), tasks=2
    )
    job.run([("k1", "add", 1)])
    sl.fork(str(tmp_path / "parent"), str(tmp_path / "fork"), state_only=True)
    forked = RecordedJob(str(tmp_path / "fork"), Steps(), COLUMNS, OUTPUT, None)
    assert [] == list_recordings(forked.store)
    assert 1 == len(list_recordings(job.store))
