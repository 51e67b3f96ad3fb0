"""
Tasks upload through the storage of the library: attempts, time-outs, ownership, back-pressure.

Tasks run in this process, without Spark, over a store whose faults the test chooses.
"""

import ast
import datetime as dt
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from tests.support.jobs.task_query import ALL, COUNTS, NUMBERS, Counting, Query, numbers

import statelog
from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.errors import ProcessorError, StoreError, UploadFailedError
from statelog.model import ByteStreamStateHandle, FileStateHandle
from statelog.model.checkpoint import TaskStateSnapshot
from statelog.options import CheckpointOptions, task_options
from statelog.spark.driver.progress import figures_of
from statelog.spark.rows.formats import SparkRowFormat
from statelog.spark.worker import kept_states
from statelog.spark.worker import task as task_module
from statelog.spark.worker.kept_states import KeptStates
from statelog.store import open_location, requests

pytestmark = pytest.mark.campaign

QUICK = {"changelog.upload.next-attempt-delay": dt.timedelta(0)}


class Faults:
    """A store that calls `on_put` before each put."""

    def __init__(self, store: Any, on_put: Callable[[str], None]) -> None:
        self._store, self._on_put = store, on_put

    def put(self, path: str, data: Any) -> None:
        self._on_put(path)
        self._store.put(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture(autouse=True)
def no_workers() -> Iterator[None]:
    task_module._states = KeptStates()
    yield
    for kept in task_module._states._by_name.values():
        kept.close()
    task_module._states = KeptStates()


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Puts]":
    puts = Puts()

    def opened(location: str, **options: Any) -> Any:
        return Faults(open_location(location, **options), puts)

    monkeypatch.setattr(kept_states, "open_location", opened)
    yield puts
    puts.gate.set()


class Puts:
    """Fails the first *failures* puts of each folder, and counts all."""

    def __init__(self) -> None:
        self.failures = 0
        self.gate = threading.Event()
        self.seen: Counter[str] = Counter()
        self.hook: Callable[[str], None] | None = None

    def __call__(self, path: str) -> None:
        folder = path.split("/")[0]
        self.seen[folder] += 1
        if self.hook is not None:
            self.hook(folder)
        if self.seen[folder] <= self.failures:
            raise StoreError(f"connection reset while {path} was written", path=path)


def query(folder: Path, processor: Any = None, **changes: Any) -> Query:
    options = task_options().changelog
    settings = QUICK | changes.pop("options", {})
    fields = {
        "changelog.upload.next-attempt-delay": "upload_next_attempt_delay",
        "changelog.upload.max-attempts": "upload_max_attempts",
        "changelog.preemptive-persist-threshold": "preemptive_persist_threshold_bytes",
        "changelog.compression.enabled": "compression_enabled",
        "changelog.upload.max-in-flight": "upload_max_in_flight_bytes",
        "changelog.batch.persist-size-threshold": "batch_persist_size_threshold_bytes",
    }
    values = {field: getattr(options, field) for field in options.__slots__}
    values |= {fields[key]: value for key, value in settings.items()}
    return Query(
        folder,
        Counting() if processor is None else processor,
        SparkRowFormat(),
        changes.pop("input_bytes", sys.maxsize),
        output=COUNTS,
        key=NUMBERS,
        changelog=type(options)(**values),
        **changes,
    )


def stored(location: Query) -> list[str]:
    return sorted(info.path for info in location.store.list())


def log_of(location: Query) -> list[Any]:
    log = location.acks[-1].changes.log
    assert log is not None
    return [entry.handle for entry in log.handles_and_offsets]


def threads_of_statelog() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("statelog")}


def test_a_small_micro_batch_starts_no_thread_and_writes_nothing(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threads_of_statelog()
    job = query(tmp_path, inline_bytes=1 << 20, staged=False)
    for _ in range(3):
        job.run(numbers(500, 50), monkeypatch)
    assert threads_of_statelog() == before
    assert not puts.seen
    assert {ByteStreamStateHandle} == {type(handle) for handle in log_of(job)}
    figures = figures_of([job.acks])
    assert not any(value for name, value in asdict(figures).items() if "upload" in name)


def test_every_object_of_a_task_is_put_again_after_errors(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts.failures = 3
    job = query(tmp_path, snapshots={0: ALL})
    rows = job.run(numbers(500, 50), monkeypatch)
    assert len(rows) == 50
    (ack,) = job.acks
    assert ack.changes.snapshot is not None
    assert not ack.changes.snapshot_error
    assert puts.seen == {"dstl": 4, "taskowned": 4, "output": 4}
    assert len(stored(job)) == 3, "attempts that failed leave nothing"
    assert ack.count("objects") == 3
    figures = figures_of([job.acks])
    assert (3, 12, 9, 9) == (
        figures.uploads,
        figures.upload_attempts,
        figures.upload_failures,
        figures.upload_retries,
    )
    assert figures.upload_bytes > 1_000
    assert figures.slowest_upload_ms > 0
    job.run(numbers(500, 50), monkeypatch, snapshots={})
    assert figures_of([job.acks[1:]]).upload_retries == 0, "each answer has its own figures"


def test_repeated_requests_are_counted_as_the_other_figures(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a task that failed, or between two tasks, are reported by the next one, once."""
    kept_states._repeated.take()  # those of other tests in this process
    job = query(tmp_path)
    job.run(numbers(500, 50), monkeypatch)
    monkeypatch.setattr(requests, "_repeated", requests.repeated_requests() + 3)
    job.run(numbers(500, 50), monkeypatch)
    job.run(numbers(500, 50), monkeypatch)
    assert [figures_of([[ack]]).repeated_requests for ack in job.acks] == [0, 3, 0]


def test_the_number_of_attempts_is_an_option(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts.failures = 1
    job = query(tmp_path, options={"changelog.upload.max-attempts": 1})
    with pytest.raises(
        UploadFailedError, match=r"connection reset.*Spark runs the task again"
    ) as it:
        job.run(numbers(500, 50), monkeypatch)
    assert "next persist" not in str(it.value), "a task does not persist twice"
    assert puts.seen["dstl"] == 1


class Failing(Counting):
    """Fails at the last of its keys."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if key[0] == 399:
            raise ValueError("the last key fails")
        yield from super().handleInputRows(key, rows, timerValues)


@pytest.mark.parametrize("is_large", [True, False])
def test_what_a_failed_task_wrote_is_deleted(
    is_large: bool, tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = query(
        tmp_path,
        Failing(),
        input_bytes=20_000 if is_large else sys.maxsize,
        options={"changelog.preemptive-persist-threshold": 500},
    )
    rows = [batch for batch in numbers(4_000, 400) if batch.num_rows]
    with pytest.raises(ProcessorError):
        job.run(rows, monkeypatch)
    assert not is_large or puts.seen["dstl"] > 1
    assert stored(job) == []


def test_the_log_of_a_task_whose_rows_cannot_be_staged_is_deleted(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_output(folder: str) -> None:
        if folder == "output":
            raise StoreError("access denied", path=folder)

    puts.hook = no_output
    job = query(tmp_path)
    with pytest.raises(UploadFailedError):
        job.run(numbers(500, 50), monkeypatch)
    assert puts.seen["dstl"] == 1
    assert stored(job) == []


class Opening(Counting):
    """Opens the gate once many keys are processed."""

    gate: threading.Event
    keys = 0

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        type(self).keys += 1
        if type(self).keys == 300:
            self.gate.set()
        yield from super().handleInputRows(key, rows, timerValues)


def test_uploads_of_a_large_input_run_while_the_task_continues(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    Opening.gate, Opening.keys = puts.gate, 0
    in_time: list[bool] = []

    def wait(folder: str) -> None:
        if folder == "dstl":
            in_time.append(puts.gate.wait(10))

    puts.hook = wait
    job = query(
        tmp_path,
        Opening(),
        input_bytes=20_000,
        options={"changelog.preemptive-persist-threshold": 500},
    )
    assert len(job.run(numbers(4_000, 400), monkeypatch)) == 400
    assert len(in_time) > 1
    assert all(in_time), "a put held back the task that opens its gate"


@pytest.mark.parametrize(
    "options",
    [
        {"changelog.preemptive-persist-threshold": 0},
        {"changelog.preemptive-persist-threshold": 300, "changelog.compression.enabled": True},
        {
            "changelog.upload.max-in-flight": 1,
            "changelog.batch.persist-size-threshold": 1,
            "changelog.preemptive-persist-threshold": 700,
        },
    ],
)
@pytest.mark.parametrize("input_bytes", [20_000, sys.maxsize])
def test_the_state_is_the_same_whatever_the_options(
    input_bytes: int,
    options: dict[str, Any],
    tmp_path: Path,
    puts: Puts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    puts.failures = 2
    jobs = [
        query(tmp_path / "one", inline_bytes=1 << 20),
        query(tmp_path / "other", input_bytes=input_bytes, options=options),
    ]
    for number in range(3):
        jobs[0].run(numbers(4_000, 400), monkeypatch, staged=False)
        jobs[1].run(numbers(4_000, 400), monkeypatch, staged=False, forget=number == 2)
    assert {FileStateHandle} == {type(handle) for handle in log_of(jobs[1])}
    assert jobs[0].tables() == jobs[1].tables()


def test_each_micro_batch_has_its_own_bound_of_inline_bytes(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = query(tmp_path, staged=False)
    kinds = []
    for size in (1 << 20, 0, 1 << 20):  # the driver divides a bound by the number of tasks
        job.run(numbers(500, 50), monkeypatch, inline_bytes=size)
        kinds.append(type(log_of(job)[0]))
    assert kinds == [ByteStreamStateHandle, FileStateHandle, ByteStreamStateHandle]


def test_the_threads_of_a_run_end_with_it(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threads_of_statelog()
    job = query(tmp_path)
    job.run(numbers(500, 50), monkeypatch)
    started = threads_of_statelog() - before
    assert started
    task_module._states._forget([*task_module._states._by_name])
    for thread in started:
        thread.join(20)
    assert not started & threads_of_statelog()


# --- who confirms, resets and truncates: docs/reference/flink-map.md, "In a query on Spark" ---------


def test_an_answer_hands_its_files_over_to_the_driver(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = query(tmp_path, snapshots={0: ALL})
    job.run(numbers(500, 50), monkeypatch)
    files = stored(job)
    (kept,) = task_module._states._by_name.values()
    assert len(kept.storage.registry) == 0, "the worker owns nothing that an answer names"
    kept.close()
    assert files == stored(job)
    assert len(files) == 3


def test_the_coordinator_confirms_resets_and_truncates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = query(tmp_path, staged=False)
    store = job.store
    coordinator = CheckpointCoordinator(
        store,
        owner_id="driver",
        max_parallelism=len(ALL),
        options=CheckpointOptions(retained=1),
        clock_ms=lambda: 0,
    )
    coordinator.claim()
    coordinator.restore()

    def ended(number: int, *, commits: bool = True, **changes: Any) -> set[str]:
        """Run a micro-batch and commit or decline it; return the files of its log."""
        checkpoint_id = coordinator.next_checkpoint_id
        job.run(numbers(500, 50, number), monkeypatch, **changes)
        ack = job.acks[-1]
        coordinator.trigger(checkpoint_id, [ALL])
        coordinator.acknowledge(
            checkpoint_id, TaskStateSnapshot(ALL, ack.changes.log, ack.changes.snapshot)
        )
        paths_of_log = {handle.path for handle in log_of(job)}
        if commits:
            coordinator.complete(checkpoint_id, properties={})
            coordinator.clean_up()
        else:
            coordinator.decline(checkpoint_id, "the micro-batch failed")
            job.acks.pop()
        return paths_of_log

    first = ended(0)
    declined = ended(1, commits=False)  # reset: the state is that of checkpoint 1, and B is garbage
    again = ended(1)
    assert first | declined | again <= set(stored(job)), "confirmed: checkpoint 2 needs its log"
    report = collect_garbage(
        store,
        min_age=dt.timedelta(0),
        apply=False,
        now=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
    )
    assert declined == {path for path in report.deleted if path.startswith("dstl/")}
    ended(2, snapshots={0: ALL})
    ended(3)
    left = set(stored(job))
    assert not (first | again) & left, "truncated: the snapshot of checkpoint 3 covers their log"
    assert declined <= left, "what was declined waits for garbage collection"


UNUSED = {
    "confirm": "the coordinator's complete",
    "reset": "the coordinator's decline",
    "create_checkpoint_state_output_stream": "state of a query is task-owned",
    "cache_directories": "CachedStore",
    "LocalRecoveryConfig": "state on the host's disk",
    "LocalBackup": "state on the host's disk",
    "DirectStateChangeUploadScheduler": "the batching scheduler, behind the inline one",
}
"""What the pipeline has no use for, and what does its work."""


def test_what_the_pipeline_does_not_use_is_what_the_page_lists() -> None:
    folder = Path(statelog.__file__).parent
    page = (folder.parents[1] / "docs/reference/flink-map.md").read_text()
    section = page.partition("## In a query on Spark")[2].partition("\n## ")[0]
    sources = [*(folder / "spark").rglob("*.py"), *(folder / "carry").rglob("*.py")]
    sources = [one for one in sources if "testing" not in one.parts]  # the tester has no store
    names: Counter[str] = Counter()
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Attribute):
                names[node.attr] += 1
            elif isinstance(node, ast.Name):
                names[node.id] += 1
            elif isinstance(node, ast.keyword) and node.arg:
                names[node.arg] += 1
    assert {name for name in UNUSED if names[name]} == set()
    listed = [*UNUSED, "truncate"]  # files of the local disk have a method of this name
    assert {name for name in listed if f"`{name}`" not in section} == set()
    for name in ("create_writer", "append_batch", "persist", "truncate_and_close", "inline_bytes"):
        assert names[name], f"the pipeline uses {name}"
