"""
A micro-batch with more rows than memory has room for gives what it gives at once.

Tasks run in this process, without Spark; tests/spark has the same through a stream.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from tests.support.jobs.pandas_input import SETTINGS
from tests.support.jobs.task_query import (
    ALL,
    INITIAL,
    Counting,
    Query,
    arrow_input,
    counting,
    numbers,
    of_initial,
)
from tests.support.spark.random_programs import (
    EPOCH_MS,
    OUTPUT,
    SECONDS_PER_BATCH,
    Interpreter,
    InterpreterInPandas,
    batch_of,
)

from statelog.errors import StoreError
from statelog.spark import StatefulProcessor
from statelog.spark.driver.batch_frame import BatchFrameSpec, batch_task
from statelog.spark.driver.batch_reports import figures_of
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.rows.formats import PandasRowFormat, RowFormat, SparkRowFormat
from statelog.spark.worker import task as task_module
from statelog.spark.worker.output_parts import OutputParts
from statelog.spark.worker.spill_file import SpillFile
from statelog.state import replay
from statelog.state.heap import MemoryLimits, StateBackendConfig

pytestmark = pytest.mark.campaign

FLAVOURS: dict[str, tuple[RowFormat, type[StatefulProcessor]]] = {
    "row": (SparkRowFormat(), Interpreter),
    "pandas": (
        PandasRowFormat(replace(SETTINGS, max_records=3), parse_ddl(OUTPUT)),
        InterpreterInPandas,
    ),
}


def entries_in_dicts(state: Any) -> int:
    return sum(len(table) for group in state.groups.values() for table in group.tables)


def by_key(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return output rows by key, in their order."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["key"], []).append(row)
    return grouped


@pytest.mark.parametrize(("input_bytes", "staged"), [(3_000, True), (50_000, False)])
@pytest.mark.parametrize("time_mode", ["none", "processingtime", "eventtime"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_random_programs_give_the_same_in_parts_as_at_once(
    flavour: str, time_mode: str, staged: bool, input_bytes: int, tmp_path: Path
) -> None:
    row_format, processor = FLAVOURS[flavour]
    has_ttl = time_mode == "processingtime"
    seed = f"{flavour} {time_mode} {staged} {input_bytes}"
    rng = random.Random(seed)
    if time_mode == "none":
        processor = {"row": WithoutTimers, "pandas": WithoutTimersInPandas}[flavour]
    inputs = [arrow_input(batch_of(rng, number, 40, has_ttl)) for number in range(3)]
    inputs.append([])
    runs = []
    for bound in (sys.maxsize, input_bytes):
        query = Query(
            tmp_path / str(bound), processor(has_ttl), row_format, bound, time_mode=time_mode,
            staged=staged,
        )  # fmt: skip
        outputs = []
        for number, batches in enumerate(inputs):
            at = EPOCH_MS + number * SECONDS_PER_BATCH * 1000
            times = {"none": (-1, -1), "processingtime": (at, -1), "eventtime": (at, at - 20_000)}
            now, watermark = times[time_mode]
            outputs.append(
                query.run(batches, forget=number % 2 == 1, now_ms=now, watermark_ms=watermark)
            )
        runs.append((outputs, query))
    (whole, at_once), (parts, in_parts) = runs
    assert time_mode == "none" or any(map(timers_of, whole))
    for batch, (expected, actual) in enumerate(zip(whole, parts, strict=True)):
        assert by_key(expected) == by_key(actual), f"batch {batch} of {seed!r}"
        assert timers_of(expected) == timers_of(actual), "timers fire in the order of time"
    assert at_once.tables() == in_parts.tables()
    for whole_ack, ack in zip(at_once.acks, in_parts.acks, strict=True):
        for figure in ("rows", "keys", "output_rows"):
            assert whole_ack.count(figure) == ack.count(figure)
        assert ack.changes.next_due_ms <= whole_ack.changes.next_due_ms
    logs = [ack.changes.log for ack in in_parts.acks if ack.changes.log is not None]
    assert not logs or max(len(log.handles_and_offsets) for log in logs) > 1


def timers_of(rows: list[dict[str, Any]]) -> list[str]:
    return [row["at"] for row in rows if row["at"].startswith("timer")]


class WithoutTimers(Interpreter):
    """The same where there are no timers."""

    def do(self, name: str, method: str, *samples: Any) -> str:
        return "" if name == "timers" else super().do(name, method, *samples)


class WithoutTimersInPandas(WithoutTimers, InterpreterInPandas):
    """The same in the pandas flavour."""


class Spreading(Counting):
    """Yield many rows for each key."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.total.update((1, 1.0))
        return (Row(key=key[0], n=n, total=0.0) for n in range(50_000))


def test_columnar_state_stays_in_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_COLUMNAR_RESTORE_BYTES", 0)
    monkeypatch.setattr(replay, "_COLUMNAR_REPLAY_BYTES", 0)
    monkeypatch.setattr(MemoryLimits, "pending_bytes", 2_000)
    queries = []
    for bound in (sys.maxsize, 200_000):
        folder = tmp_path / str(bound)
        backend = StateBackendConfig("disk", folder=str(folder / "local"))
        query = counting(
            folder, bound, Counting(has_timers=True), time_mode="processingtime", backend=backend
        )
        outputs = []
        for number in range(6):
            batches = numbers(3_000, 1_500, number) if number < 5 else []
            forget = number in (2, 4)
            outputs.append(query.run(batches, forget=forget, now_ms=1000 + number))
            if bound < sys.maxsize and number in (2, 4):
                (worker,) = task_module._states._by_name.values()
                assert worker.state.is_columnar
                # What timers needed has been moved; what rows needed is in columns again.
                assert entries_in_dicts(worker.state) < 1_500
        queries.append((query, outputs))
    (at_once, expected), (in_parts, actual) = queries
    assert [*map(by_key, expected)] == [*map(by_key, actual)]
    assert at_once.tables() == in_parts.tables()
    assert figures_of([[in_parts.acks[4]]]).catch_up["local"], (
        "files written in the middle of a replay are found"
    )
    assert len(in_parts.acks[0].changes.log.handles_and_offsets) > 5


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_rows_of_one_key_are_read_while_the_processor_asks(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(7 if at < 40_000 * share else at % 50, float(at % 5)) for at in range(40_000)]
    random.Random(3).shuffle(rows)
    batches = arrow_input(rows, "key long, value double", 1)
    expected = counting(tmp_path / "once", sys.maxsize).run(batches, forget=True)
    reads = []
    read = SpillFile.read
    monkeypatch.setattr(
        SpillFile, "read", lambda self, piece: (reads.append(piece), read(self, piece))[1]
    )
    actual = counting(tmp_path / "parts", 500_000).run(batches, forget=True)
    assert by_key(expected) == by_key(actual)

    class First(Counting):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            yield Row(key=key[0], n=len(reads), total=next(rows).value)

    every = len(reads)
    reads.clear()
    counting(tmp_path / "first", 500_000, First()).run(batches, forget=True)
    assert len(reads) < every


@pytest.mark.parametrize("flavour", ["row", "batch"])
def test_initial_state_in_parts_gives_the_same(flavour: str, tmp_path: Path) -> None:
    mixed = of_initial(True, numbers(2_000, 900, 1)) + of_initial(False, numbers(1_000, 1_200, 2))
    random.Random(1).shuffle(mixed)
    runs: list[Any] = []
    for bound in (sys.maxsize, 100_000):
        query = counting(tmp_path / str(bound), bound, initial=INITIAL)
        if flavour == "batch":
            frame = BatchFrameSpec(
                context=query.spec.context, rows=query.spec.rows, schema=query.spec.state.schema,
                key_groups=ALL, backend=query.spec.state.backend,
            )  # fmt: skip
            output = batch_task(frame, iter(mixed))
            runs.append(by_key([row for batch in output for row in batch.to_pylist()]))
            continue
        rows = by_key(query.run(mixed, forget=True))
        keys = {key for group in query.tables().values() for key in group[0]}
        assert query.acks[0].count("keys") == len(keys)
        runs.append((rows, query.tables()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("staged", [True, False])
def test_output_is_flushed(staged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffered = []
    flush = OutputParts.flush
    monkeypatch.setattr(
        OutputParts,
        "flush",
        lambda self: (buffered.append((self.rows.pending, self.held_bytes)), flush(self))[1],
    )
    batches = numbers(40, 20)
    query = counting(tmp_path, 10_000, Spreading(), staged=staged)
    rows = query.run(batches)
    keys = {key for batch in batches for key in batch.column(1).to_pylist()}
    assert len(keys) * 50_000 == len(rows) == query.acks[0].count("output_rows")
    assert all(list(range(50_000)) == [row["n"] for row in some] for some in by_key(rows).values())
    assert max(rows for rows, _ in buffered) <= 20_480
    assert max(size for _, size in buffered) <= 16 * 1024 * 1024
    if staged:
        assert isinstance(query.acks[0].output.staged, tuple)
        assert len(query.acks[0].output.staged) > 1


def test_a_local_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    backend = StateBackendConfig(folder=str(tmp_path / "file"))
    query = counting(tmp_path / "state", 10_000, backend=backend)
    with pytest.raises(StoreError, match=r"cannot write its input to the local disk in .*/file"):
        query.run(numbers(1_000, 10))


def test_a_variable_deleted_in_init_is_deleted_in_parts(tmp_path: Path) -> None:
    class Deleting(Counting):
        def init(self, handle: Any) -> None:
            handle.deleteIfExists("total")
            super().init(handle)

    tables = []
    for bound in (sys.maxsize, 100_000):
        query = counting(tmp_path / str(bound), bound)
        query.run(numbers(2_000, 800, 1), forget=True)
        query.run(numbers(2_000, 600, 2), processor=Deleting())
        tables.append(query.tables())
    assert tables[0] == tables[1]


def test_a_snapshot_in_parts_is_of_the_state_before(tmp_path: Path) -> None:
    tables = []
    for bound in (sys.maxsize, 100_000):
        query = counting(tmp_path / str(bound), bound)
        for number in range(3):
            snapshots = {0: ALL} if number != 1 else {}
            query.run(numbers(2_000, 800, number), snapshots=snapshots)
        tables.append(query.tables())
    assert tables[0] == tables[1]
    snapshots = [ack.changes.snapshot and ack.changes.snapshot.checkpoint_id for ack in query.acks]
    assert [None, None, 1] == snapshots, "the first micro-batch has no state before it"
    assert not any(ack.changes.snapshot_error for ack in query.acks)


MEMORY = """
import sys, threading, time
from pathlib import Path
from tests.support.jobs.task_query import Counting, counting, numbers, GROUPS
from statelog.spark.worker import task
from statelog.spark.worker.kept_states import KeptStates
from statelog.state.heap import StateBackendConfig

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) // 1024

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.02)

folder, bound = Path(sys.argv[1]), int(sys.argv[2])
part = numbers(50_000, 1_000_000)
backend = StateBackendConfig(budget_bytes=64 << 20, folder=str(folder / "local"))
query = counting(folder, bound or backend.input_bytes, backend=backend)
query.run(part[:10])
task._load = lambda *_: (query.store, query.restored())
before = anonymous()
peak = [before]
threading.Thread(target=watch, daemon=True).start()
task._states = KeptStates()
query.acks.clear()
import pyarrow as pa
def fresh():
    for number in range(10):
        for batch in part:
            keys = pa.compute.add(batch.column(1), 1_000_000 * number)
            yield batch.set_column(1, "key", keys)
rows = sum(batch.num_rows for batch in task.run_task(query.spec, fresh(), query.acks.append))
assert rows > 400_000, rows
print(peak[0] - before)
"""


def test_memory_keeps_its_bound_whatever_the_size_of_the_input(tmp_path: Path) -> None:
    def grown(name: str, bound: int) -> int:
        command = [sys.executable, "-c", MEMORY, str(tmp_path / name), str(bound)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert grown("parts", 0) < 64
    assert grown("once", sys.maxsize) > 150
