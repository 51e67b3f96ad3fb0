"""
Measure one task of a micro-batch, phase by phase, without Spark.

Question: how much CPU time does a task need for the rows of a micro-batch, and in which phase?

Workload: micro-batches of pipeline.py, all key groups in one task, direct delivery.  With rows, `processor_alone`
is the time of the processor itself: its rows are made before, and its state is a dict.

Method: the task runs in this process, micro-batch after micro-batch, and each is committed as the
driver does it.  In a `warm` micro-batch the process has the state of the one before; in a `cold` one
another process had it, so that the task replays the changes of one micro-batch.  For that, two
workers take turns in one process: each misses every second micro-batch.  Times are CPU times of the
process; beside other work they vary less than those of a clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pipeline import WORKLOADS, RunningTotal, machine, write_input
from record import keyed, task_spec

from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.model.checkpoint import CompletedCheckpoint, TaskStateSnapshot
from statelog.options import CheckpointOptions
from statelog.runtime import clock
from statelog.spark.worker import task
from statelog.spark.worker.kept_states import KeptStates
from statelog.spark.worker.protocol import TaskAck
from statelog.store import open_location


class CpuClock:
    """Take the place of `time` in the stopwatch: CPU time instead of that of a clock."""

    perf_counter = staticmethod(time.process_time)
    time_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
    sleep = staticmethod(time.sleep)
    time = staticmethod(time.time)  # last: it hides the module


class Event(NamedTuple):
    """A row of the input; its columns are read as fast as Python reads any."""

    key: int
    value: float


class Location:
    """A state location with the commits of a driver."""

    def __init__(self, url: str) -> None:
        self._coordinator = CheckpointCoordinator(
            open_location(url, options={"fsync": False}),
            owner_id="bench",
            max_parallelism=128,
            options=CheckpointOptions(),
            clock_ms=lambda: time.time_ns() // 1_000_000,
        )
        self._coordinator.claim()
        self._coordinator.restore()
        self.base: CompletedCheckpoint | None = None

    @property
    def next_id(self) -> int:
        """The id of the next checkpoint."""
        return self._coordinator.next_checkpoint_id

    def commit(self, ack: TaskAck) -> None:
        """Commit the answer of the one task."""
        coordinator, checkpoint_id = self._coordinator, self.next_id
        coordinator.trigger(checkpoint_id, [ack.place.key_range])
        snapshot = TaskStateSnapshot(ack.place.key_range, ack.changes.log, None)
        coordinator.acknowledge(checkpoint_id, snapshot)
        self.base = coordinator.complete(checkpoint_id, properties={})
        coordinator.clean_up()


def run_batches(
    flavour: str, inputs: list[list[pa.RecordBatch]], url: str, *, cold: bool
) -> list[dict[str, float]]:
    """Run the micro-batches one after the other; return the phases of each."""
    location = Location(url)
    workers = [task.Worker(KeptStates()) for _ in range(2)]
    plain = task_spec(url, flavour, 0.0)
    options = {"fsync": False}
    plain = replace(plain, staged=False, state=replace(plain.state, storage_options=options))
    found = []
    for number, batches in enumerate(inputs):
        base = location.base
        own = -1 if base is None else base.checkpoint_id
        logs = () if base is None else base.log
        spec = replace(
            plain,
            checkpoint_id=location.next_id,
            base_id=own,
            restore_id=own,
            committed=tuple(log.state_handle_id for log in logs if log.checkpoint_id == own),
        )
        worker = workers[number % 2 if cold else 0]
        acks: list[TaskAck] = []
        start = time.process_time()
        for _ in task.run_task(spec, batches, acks.append, worker):
            pass
        total = (time.process_time() - start) * 1e3
        found.append({**acks[-1].figures["task_milliseconds"], "total": total})
        location.commit(acks[-1])
    return found


class DictState:
    """A value state in a dict: it stands for any way to keep state, and costs next to nothing."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[int, float]] = {}
        self.key = 0

    def getValueState(self, name: str, schema: str) -> DictState:
        """Return the one state."""
        return self

    def get(self) -> tuple[int, float] | None:
        """Return the value of the current key."""
        return self._values.get(self.key)

    def update(self, value: tuple[int, float]) -> None:
        """Set the value of the current key."""
        self._values[self.key] = value


def processor_alone(inputs: list[list[pa.RecordBatch]]) -> list[float]:
    """Return the CPU milliseconds of each micro-batch that the processor of rows takes by itself."""
    processor, state, found = RunningTotal(), DictState(), []
    processor.init(state)
    for batches in inputs:
        rows_of: dict[int, list[Event]] = {}
        table = pa.Table.from_batches(batches)
        for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            rows_of.setdefault(key, []).append(Event(key, value))
        # Without collections, which would look at all these rows: a worker does not let them either.
        gc.collect()
        gc.disable()
        start = time.process_time()
        for state.key, rows in rows_of.items():
            for _ in processor.handleInputRows((state.key,), iter(rows), None):
                pass
        found.append((time.process_time() - start) * 1e3)
        gc.enable()
    return found


def main() -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="w1zipf")
    parser.add_argument("--flavour", choices=("rows", "pandas", "columns"), default="rows")
    parser.add_argument("--cold", action="store_true", help="each task misses one micro-batch")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    clock.time = CpuClock()  # type: ignore[attr-defined]
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    try:
        data = work / "input"
        data.mkdir()
        write_input(data, arguments.batches, arguments.events, arguments.workload)
        files = [pq.read_table(path) for path in sorted(data.glob("*"))]
        pairs = zip(files[::2], files[1::2], strict=True)
        inputs = [keyed(pa.concat_tables(pair)) for pair in pairs]
        found = run_batches(arguments.flavour, inputs, f"{work}/state", cold=arguments.cold)
        if arguments.flavour == "rows":
            for phases, alone in zip(found, processor_alone(inputs), strict=True):
                phases["processor_alone"] = alone
    finally:
        shutil.rmtree(work, ignore_errors=True)
    steady = found[2 if arguments.cold else 1 :]
    times = {name: sorted(one.get(name, 0.0) for one in steady) for name in steady[-1]}
    medians = {name: round(statistics.median(each), 2) for name, each in times.items()}
    print(json.dumps({"total_best": round(times["total"][0], 2), **medians}))
    if arguments.json:
        result = {"machine": machine(), "arguments": {**vars(arguments), "json": ""}}
        arguments.json.write_text(json.dumps({**result, "phases": times}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
