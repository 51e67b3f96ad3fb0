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
from statelog.spark.driver.batch_reports import figures_of
from statelog.spark.rows.formats import SparkRowFormat
from statelog.spark.worker import kept_states
from statelog.spark.worker import task as task_module
from statelog.store import open_location, requests

pytestmark = pytest.mark.campaign


class Puts:
    """Fails the first *failures* puts of each folder, and counts all; `gate` is opened at the end."""

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

    def opened(self, location: str, **options: Any) -> Any:
        store: Any = open_location(location, **options)
        put = store.put

        def noted(path: str, data: Any) -> None:
            self(path)
            put(path, data)

        store.put = noted
        return store


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Puts]:
    puts = Puts()
    monkeypatch.setattr(kept_states, "open_location", puts.opened)
    yield puts
    puts.gate.set()


def query(
    folder: Path, processor: Any = None, options: dict[str, Any] | None = None,
    input_bytes: int = sys.maxsize, **changes: Any,
) -> Query:  # fmt: skip
    """Return a query whose failed uploads are tried again at once; *options* are fields."""
    changelog = task_options().changelog
    values = {field: getattr(changelog, field) for field in changelog.__slots__}
    values |= {"upload_next_attempt_delay": dt.timedelta(0), **(options or {})}
    return Query(
        folder, processor or Counting(), SparkRowFormat(), input_bytes, output=COUNTS, key=NUMBERS,
        changelog=type(changelog)(**values), **changes,
    )  # fmt: skip


def stored(location: Query) -> list[str]:
    return sorted(info.path for info in location.store.list())


def log_of(location: Query) -> list[Any]:
    log = location.acks[-1].changes.log
    assert log is not None
    return [entry.handle for entry in log.handles_and_offsets]


def threads_of_statelog() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("statelog")}


def test_a_small_batch_starts_no_thread_and_writes_nothing(tmp_path: Path, puts: Puts) -> None:
    before = threads_of_statelog()
    job = query(tmp_path, inline_bytes=1 << 20, staged=False)
    for _ in range(3):
        job.run(numbers(500, 50))
    assert threads_of_statelog() == before
    assert not puts.seen
    assert {ByteStreamStateHandle} == {type(handle) for handle in log_of(job)}
    figures = figures_of([job.acks])
    assert not any(value for name, value in asdict(figures).items() if "upload" in name)


def test_every_object_of_a_task_is_put_again_after_errors(tmp_path: Path, puts: Puts) -> None:
    puts.failures = 3
    job = query(tmp_path, snapshots={0: ALL})
    rows = job.run(numbers(500, 50))
    assert len(rows) == 50
    (ack,) = job.acks
    assert ack.changes.snapshot is not None
    assert not ack.changes.snapshot_error
    assert puts.seen == {"dstl": 4, "taskowned": 4, "output": 4}
    assert len(stored(job)) == 3, "attempts that failed leave nothing"
    assert ack.count("objects") == 3
    figures = figures_of([job.acks])
    assert (3, 12) == (figures.uploads, figures.upload_attempts)
    assert (9, 9) == (figures.upload_failures, figures.upload_retries)
    assert figures.upload_bytes > 1_000
    assert figures.slowest_upload_ms > 0
    job.run(numbers(500, 50), snapshots={})
    assert figures_of([job.acks[1:]]).upload_retries == 0, "each answer has its own figures"


def test_repeated_requests_are_counted_as_the_other_figures(
    tmp_path: Path, puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a task that failed, or between two tasks, are reported by the next one, once."""
    kept_states._repeated.take()  # those of other tests in this process
    job = query(tmp_path)
    job.run(numbers(500, 50))
    monkeypatch.setattr(requests, "_repeated", requests.repeated_requests() + 3)
    job.run(numbers(500, 50))
    job.run(numbers(500, 50))
    assert [figures_of([[ack]]).repeated_requests for ack in job.acks] == [0, 3, 0]


def test_the_number_of_attempts_is_an_option(tmp_path: Path, puts: Puts) -> None:
    puts.failures = 1
    job = query(tmp_path, options={"upload_max_attempts": 1})
    with pytest.raises(UploadFailedError, match=r"connection reset.*Spark runs the task again"):
        job.run(numbers(500, 50))
    assert puts.seen["dstl"] == 1


class Failing(Counting):
    """Fails at the last of its keys."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if key[0] == 399:
            raise ValueError("the last key fails")
        yield from super().handleInputRows(key, rows, timerValues)


@pytest.mark.parametrize("is_large", [True, False])
def test_objects_of_a_failed_task_are_deleted(is_large: bool, tmp_path: Path, puts: Puts) -> None:
    input_bytes = 20_000 if is_large else sys.maxsize
    job = query(tmp_path, Failing(), {"preemptive_persist_threshold_bytes": 500}, input_bytes)
    with pytest.raises(ProcessorError):
        job.run(numbers(4_000, 400))
    assert not is_large or puts.seen["dstl"] > 1
    assert stored(job) == []


def test_the_log_of_a_task_that_cannot_stage_is_deleted(tmp_path: Path, puts: Puts) -> None:
    def no_output(folder: str) -> None:
        if folder == "output":
            raise StoreError("access denied", path=folder)

    puts.hook = no_output
    job = query(tmp_path)
    with pytest.raises(UploadFailedError):
        job.run(numbers(500, 50))
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


def test_uploads_of_a_large_input_run_while_the_task_continues(tmp_path: Path, puts: Puts) -> None:
    Opening.gate, Opening.keys = puts.gate, 0
    in_time: list[bool] = []

    def wait(folder: str) -> None:
        if folder == "dstl":
            in_time.append(puts.gate.wait(10))

    puts.hook = wait
    job = query(tmp_path, Opening(), {"preemptive_persist_threshold_bytes": 500}, 20_000)
    assert len(job.run(numbers(4_000, 400))) == 400
    assert len(in_time) > 1
    assert all(in_time), "a put held back the task that opens its gate"


@pytest.mark.parametrize(
    "options",
    [
        {"preemptive_persist_threshold_bytes": 0},
        {"preemptive_persist_threshold_bytes": 300, "compression_enabled": True},
        {"upload_max_in_flight_bytes": 1, "batch_persist_size_threshold_bytes": 1,
         "preemptive_persist_threshold_bytes": 700},
    ],
)  # fmt: skip
@pytest.mark.parametrize("input_bytes", [20_000, sys.maxsize])
def test_the_state_is_the_same_whatever_the_options(
    input_bytes: int, options: dict[str, Any], tmp_path: Path, puts: Puts
) -> None:
    puts.failures = 2
    inline = query(tmp_path / "inline", inline_bytes=1 << 20)
    job = query(tmp_path / "files", None, options, input_bytes)
    for number in range(3):
        inline.run(numbers(4_000, 400), staged=False)
        job.run(numbers(4_000, 400), staged=False, forget=number == 2)
    assert {FileStateHandle} == {type(handle) for handle in log_of(job)}
    assert inline.tables() == job.tables()


def test_each_micro_batch_has_its_own_bound_of_inline_bytes(tmp_path: Path, puts: Puts) -> None:
    job = query(tmp_path, staged=False)
    kinds = []
    for size in (1 << 20, 0, 1 << 20):  # the driver divides a bound by the number of tasks
        job.run(numbers(500, 50), inline_bytes=size)
        kinds.append(type(log_of(job)[0]))
    assert kinds == [ByteStreamStateHandle, FileStateHandle, ByteStreamStateHandle]


def test_the_threads_of_a_run_end_with_it(tmp_path: Path, puts: Puts) -> None:
    before = threads_of_statelog()
    job = query(tmp_path)
    job.run(numbers(500, 50))
    started = threads_of_statelog() - before
    assert started
    task_module._states._forget([*task_module._states._by_name])
    for thread in started:
        thread.join(20)
    assert not started & threads_of_statelog()


# --- who confirms, resets and truncates: docs/reference/flink-map.md, "In a query on Spark" ---------


def test_an_answer_hands_its_files_over_to_the_driver(tmp_path: Path, puts: Puts) -> None:
    job = query(tmp_path, snapshots={0: ALL})
    job.run(numbers(500, 50))
    files = stored(job)
    (worker,) = task_module._states._by_name.values()
    assert len(worker.storage.registry) == 0, "the worker owns nothing that an answer names"
    worker.close()
    assert files == stored(job)
    assert len(files) == 3


def test_the_coordinator_confirms_resets_and_truncates(tmp_path: Path) -> None:
    job = query(tmp_path, staged=False)
    store = job.store
    coordinator = CheckpointCoordinator(
        store, owner_id="driver", max_parallelism=len(ALL), options=CheckpointOptions(retained=1),
        clock_ms=lambda: 0,
    )  # fmt: skip
    coordinator.claim()
    coordinator.restore()

    def ended(number: int, *, commits: bool = True, **changes: Any) -> set[str]:
        """Run a micro-batch and commit or decline it; return the files of its log."""
        checkpoint_id = coordinator.next_checkpoint_id
        job.run(numbers(500, 50, number), **changes)
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
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    report = collect_garbage(store, min_age=dt.timedelta(0), apply=False, now=later)
    assert declined == {path for path in report.deleted if path.startswith("dstl/")}
    ended(2, snapshots={0: ALL})
    ended(3)
    left = set(stored(job))
    assert not (first | again) & left, "truncated: the snapshot of checkpoint 3 covers their log"
    assert declined <= left, "what was declined waits for garbage collection"


UNUSED = {
    "confirm", "reset", "create_checkpoint_state_output_stream", "cache_directories",
    "LocalRecoveryConfig", "LocalBackup", "DirectStateChangeUploadScheduler",
}  # fmt: skip
"""What the engine on Spark does not use; the page says what does the work instead."""
USED = {"create_writer", "append_batch", "persist", "truncate_and_close", "inline_bytes"}


def test_the_page_lists_what_the_engine_does_not_use() -> None:
    folder = Path(statelog.__file__).parent
    page = (folder.parents[1] / "docs/reference/flink-map.md").read_text()
    section = page.partition("## In a query on Spark")[2].partition("\n## ")[0]
    text = "\n".join(source.read_text() for source in (folder / "spark").rglob("*.py"))
    names = {getattr(node, "attr", getattr(node, "id", getattr(node, "arg", None)))
             for node in ast.walk(ast.parse(text))}  # fmt: skip
    assert (set(), USED) == (UNUSED & names, USED & names)
    # Files of the local disk have a method `truncate`.
    assert set() == {name for name in {*UNUSED, "truncate"} if f"`{name}`" not in section}
