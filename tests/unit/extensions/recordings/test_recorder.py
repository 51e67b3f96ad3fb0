"""What is recorded is what a key saw: replayed with the same processor, nothing differs."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.jobs.poisoned_keys import KEYS, SAFE, Batch, fresh
from tests.support.jobs.recorded_job import RecordedJob, added_by, steps_recorded_by
from tests.support.jobs.recorded_processors import FrameSteps, Steps, steps_job

import statelog as sl
from statelog.checkpoint import collect_garbage
from statelog.errors import ProcessorError
from statelog.extensions.recordings.location import list_recordings, read_recording
from statelog.extensions.testing.replay import replay
from statelog.spark.query.record import Record
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.protocol import TaskAck
from statelog.store import PATHS

pytestmark = pytest.mark.campaign

ALL_KEYS = Record(share=1.0)
FAILURES = Record(failed=True)

operations = st.tuples(st.sampled_from(KEYS), st.sampled_from(SAFE), st.integers(0, 9))
histories = st.lists(
    st.tuples(st.integers(1, 400), st.lists(operations, max_size=30)), min_size=1, max_size=6
)


def recorded_and_dropped(ack: TaskAck) -> tuple[int, int]:
    (added,) = added_by(ack, "recordings")
    return added.count, added.info["dropped"]


def recorded_keys(job: RecordedJob) -> list[Any]:
    return [step.key for step in steps_recorded_by(job)]


def recorded_checkpoints(job: RecordedJob) -> list[int | None]:
    return [recording.checkpoint_id for recording in list_recordings(job.store)]


def assert_replays_alike(job: RecordedJob, key: Any, processor: Steps | None = None) -> int:
    """Check that nothing differs in the steps of a key; return how many there are."""
    steps = replay(job.location, key, processor=processor or Steps())
    assert [] == [(step.checkpoint_id, step.differences) for step in steps if step.differences]
    return len(steps)


@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("time_mode", ["none", "processingtime", "eventtime"])
@settings(max_examples=10, deadline=None)
@given(
    history=histories,
    tasks=st.integers(1, 3),
    input_bytes=st.sampled_from([4000, 1 << 30]),
    kills=st.sets(st.integers(0, 5)),
)
def test_an_unchanged_processor_does_what_was_recorded(
    history: list[Batch], tasks: int, input_bytes: int, kills: set[int], time_mode: str,
    in_pandas: bool, tmp_path_factory: Any,
) -> None:  # fmt: skip
    """Also where a run was killed before a commit, and the next one has other tasks."""
    kind = FrameSteps if in_pandas else Steps
    if time_mode != "processingtime":  # a time to live needs that mode
        kind = without_ttl(kind)
    if time_mode == "none":
        history = [
            (elapsed, [row for row in rows if "timer" not in row[1]]) for elapsed, rows in history
        ]
    folder = fresh(tmp_path_factory.getbasetemp() / f"same-{time_mode}-{in_pandas}")
    options = {"time_mode": time_mode, "pandas": in_pandas, "input_bytes": input_bytes}
    job = steps_job(folder, kind(), ALL_KEYS, tasks=tasks, **options)
    now = 1000
    for number, (elapsed, rows) in enumerate(history):
        now += elapsed
        if number in kills:
            job.run_killed(rows, now)
            job = steps_job(folder, kind(), ALL_KEYS, tasks=1 + number % 3, **options)
        job.run(rows, now, watermark_ms=now - 100)
    keys = recorded_keys(job)
    touched = {(row[0],) for _, rows in history for row in rows}
    # Of a task that takes its input in parts, keys that are too large are not recorded.
    assert set(keys) <= touched if input_bytes == 4000 else set(keys) == touched
    for key in set(keys):
        assert keys.count(key) == assert_replays_alike(job, key, kind())


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


def test_the_sample_is_the_same_at_every_parallelism(tmp_path: Path) -> None:
    samples = []
    for tasks in (1, 2, 5):
        record = Record(share=0.1)
        job = steps_job(tmp_path / str(tasks), record=record, tasks=tasks, record_bytes=1 << 24)
        job.run([(f"key {number}", "add", number) for number in range(3000)])
        samples.append(sorted(recorded_keys(job)))
    assert samples[0] == samples[1] == samples[2]
    assert 200 < len(samples[0]) < 400
    assert len(set(samples[0])) == len(samples[0])


# ------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("op", ["fail", "misfit"])
def test_a_key_that_failed_fails_again(tmp_path: Path, op: str, in_pandas: bool) -> None:
    kind = FrameSteps if in_pandas else Steps
    job = steps_job(tmp_path, kind(), FAILURES, pandas=in_pandas, tasks=2)
    job.run([("k1", "add", 3), ("k2", "add", 4)])
    rows = [("k2", "add", 1), ("k1", "append", 7), ("k1", op, 8), ("k1", "add", 1)]
    advice = r"Replay it: statelog replay --processor \S+ file://\S+ k1$"
    for _ in range(3):  # a query that is started again fails again
        with pytest.raises(ProcessorError, match=advice):
            job.run(rows)
    (recording,) = list_recordings(job.store)
    assert (None, 1) == (recording.checkpoint_id, recording.keys)
    (step,) = replay(job.location, "k1", processor=kind())
    assert step.error is not None
    assert () == step.differences
    assert {"total": (3, "t3"), "short": (3,)} == step.before
    assert [7, 8, 1] == [row.n for row in step.input]

    class Corrected(kind):  # type: ignore[misc, valid-type]
        def do(self, op: str, n: int, now: int) -> None:
            if op not in ("fail", "misfit"):
                super().do(op, n, now)

    (step,) = replay(job.location, "k1", processor=Corrected())
    assert ["error"] == [difference.what for difference in step.differences]
    assert step.error is None


def test_a_failing_timer_is_recorded(tmp_path: Path) -> None:
    class Failing(Steps):
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            raise KeyError("lost")

    job = steps_job(tmp_path, Failing(), FAILURES)
    job.run([("k1", "timer", 1)], 1000)
    with pytest.raises(ProcessorError, match=r"Replay it: statelog replay"):
        job.run([("k3", "add", 1)], 1200)
    (step,) = replay(job.location, "k1", processor=Failing())
    assert isinstance(step.error and step.error.__cause__, KeyError)
    assert [1100] == step.timers_before
    assert "handleExpiredTimer" == step.recorded.failure.method  # type: ignore[union-attr]


def test_without_a_setting_the_error_says_how_to_record(tmp_path: Path) -> None:
    job = steps_job(tmp_path)
    with pytest.raises(ProcessorError, match=r"record it: record=Record\(failed=True\)"):
        job.run([("k1", "fail", 3)])
    assert [] == list_recordings(job.store)


def test_failures_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statelog.extensions.recordings.worker.FAILURES_MAX", 3)
    job = steps_job(tmp_path, record=FAILURES)
    for number in range(6):
        with pytest.raises(ProcessorError):
            job.run([(f"k{number}", "fail", number)])
    assert 3 == len(list_recordings(job.store))


# --------------------------------------------------------------------------------------- bounds


def test_a_key_beyond_the_bound_is_dropped_whole_and_counted(tmp_path: Path) -> None:
    job = steps_job(tmp_path, record=ALL_KEYS, record_bytes=20_000)
    large = [("large", "append", number) for number in range(2000)]
    (ack,) = job.run([*large, *((f"k{number}", "append", number) for number in range(10))])
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
    job = steps_job(tmp_path, record=ALL_KEYS, record_bytes=record_bytes)
    (ack,) = job.run([(f"key {number}", "append", number) for number in range(5000)])
    recorded, dropped = recorded_and_dropped(ack)
    assert recorded > 0
    assert 5000 == recorded + dropped
    (task,) = read_recording(job.store, list_recordings(job.store)[0])
    size = len(task.before) + len(task.after) + len(task.input)
    assert size < record_bytes + 8_000  # and the schemas of the streams


# ------------------------------------------------------------------------------------- lifetime


def test_recordings_are_deleted_after_their_checkpoints(tmp_path: Path) -> None:
    settings = QuerySettings(record=Record(checkpoints=4))
    job = steps_job(tmp_path, record=ALL_KEYS, retained=2, settings=settings)
    for number in range(12):
        job.run([("k1", "add", number)])
    assert [9, 10, 11, 12] == recorded_checkpoints(job)
    # The retained checkpoint before the newest names one more.
    assert 5 == len(list(job.store.list("recordings")))
    assert 4 == len(replay(job.location, "k1", processor=Steps()))


def test_garbage_collection_keeps_recordings_and_lets_failures_age(tmp_path: Path) -> None:
    job = steps_job(tmp_path, record=ALL_KEYS)
    job.run([("k1", "add", 1)])
    with pytest.raises(ProcessorError):
        job.run([("k1", "fail", 1)])
    job.store.put(PATHS.recording("orphan"), b"of an attempt that failed")
    assert 3 == len(list(job.store.list("recordings")))

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
    assert [1] == recorded_checkpoints(job)


def test_a_new_location_under_an_old_name_begins_empty(tmp_path: Path) -> None:
    """Its epoch is the same, and the worker may still be there with what it read."""
    for rows, tasks in (([("k1", "timer", 1)], 3), ([], 1)):
        job = steps_job(fresh(tmp_path / "job"), record=ALL_KEYS, tasks=tasks)
        job.run(rows, 1000)
        job.run([], 1001)  # tasks without changes read the checkpoint before, and keep it
        job.run([("k2", "add", 1)], 5000)
    assert {("k2",)} == set(recorded_keys(job))


def test_a_large_recording_is_a_file_of_its_task_and_no_fork_has_it(tmp_path: Path) -> None:
    job = steps_job(tmp_path / "parent", record=ALL_KEYS, tasks=2, inline_bytes=100)
    acks = job.run([(f"k{number}", "add", number) for number in range(50)])
    added = [addition for ack in acks for addition in added_by(ack, "recordings")]
    assert [] == [addition for addition in added if addition.file is None or addition.data]
    recordings = list_recordings(job.store)
    assert (2, 50) == (len(recordings), sum(recording.keys for recording in recordings))
    assert_replays_alike(job, "k3")
    sl.fork(job.location, tmp_path / "fork", state_only=True)
    assert [] == list_recordings(steps_job(tmp_path / "fork").store)
    assert recordings == list_recordings(job.store)
