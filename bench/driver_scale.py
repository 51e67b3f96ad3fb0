"""
Simulate the driver of a very large job: real code, made-up answers of the tasks, a store that counts.

Question: with 1,000 cores, 10 TB of state and 5,000 tasks per micro-batch, how much does the driver do for each
micro-batch (requests, bytes, seconds), what does the store cost, and where does the driver saturate?

Real: the instructions for the tasks and their pickling, the unpickling of the answers, the coordinator with its
ledger, the metadata object with its log handles, the snapshot planner, the clean-up.  Made up: the
answers, which have the shape and size of those of real tasks; the objects of the tasks, of which the store knows only the
names that are deleted.  Clean-up runs in batches in another thread, as it does in a query.  Not part of it: Spark's own scheduler, and everything in the tasks.

Parts: `tasks-N` has N tasks, each of which writes its changes to a file.  `log-N` has 5,000 tasks, and begins with a
checkpoint whose log has N handles already, as it has before snapshots cover them.

Method: the micro-batches of a part run one after the other; each gives the CPU seconds of each step, all on one
thread, and what the store counted.  Waiting for the store is not measured but computed on the page, from requests and bytes at the stated speeds.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import pickle
import resource
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.cases import RunningCount
from bench.harness.results import Results, Run, in_turns
from pyspark import cloudpickle

from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.checkpoint.coordinator import (
    CheckpointCoordinator,
    CheckpointRecorder,
    prepare_commit,
)
from statelog.errors import ObjectExistsError, ObjectNotFoundError
from statelog.format.buffers import Buffers, pieces_of
from statelog.metrics import Metrics
from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
)
from statelog.options import CheckpointOptions, SnapshotPolicy
from statelog.spark.driver.batch_reports import figures_of
from statelog.spark.driver.delivery import one_per_task
from statelog.spark.driver.state_location import SnapshotPlanner
from statelog.spark.rows.layout import InputLayout
from statelog.spark.worker.protocol import (
    BatchContext,
    TaskAck,
    TaskChanges,
    TaskPlace,
    TaskRows,
    TaskSpec,
    TaskState,
)
from statelog.spark.worker.task import staged_task
from statelog.store import PATHS, ObjectInfo

CORES = 1_000
TASKS = 5_000
STATE_BYTES = 10**13
EVENTS_PER_TASK = 20_000
DELTA_BYTES = 480_000
"""Of a task: 8,000 distinct keys at 60 bytes, for a key of 16 and a value of 24 bytes."""
ENTRY_BYTES = 100
INLINE_BYTES = 32 * 1024 * 1024
_TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class CountingStore:
    """A store in memory that counts requests and bytes; it stores what the driver writes itself."""

    url = "memory://counting"

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.bytes_in = 0
        self._objects: dict[str, bytes] = {}

    def _add(self, kind: str, path: str, data: Buffers) -> None:
        self.requests[kind] += 1
        whole = b"".join(pieces_of(data))
        self.bytes_in += len(whole)
        self._objects[path] = whole

    def put(self, path: str, data: Buffers) -> None:
        self._add("put", path, data)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        if path in self._objects:
            self.requests["put"] += 1
            raise ObjectExistsError(path)
        self._add("put", path, data)

    def get(self, path: str) -> memoryview:
        self.requests["get"] += 1
        if path not in self._objects:
            raise ObjectNotFoundError(path)
        return memoryview(self._objects[path])

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        return self.get(path)[start : start + length]

    def head(self, path: str) -> ObjectInfo:
        self.requests["head"] += 1
        if path not in self._objects:
            raise ObjectNotFoundError(path)
        return ObjectInfo(path, len(self._objects[path]), _TIME)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.requests["list"] += 1
        for path in sorted(self._objects):
            if path.startswith(f"{prefix}/" if prefix else ""):
                yield ObjectInfo(path, len(self._objects[path]), _TIME)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        self.requests["list"] += 1
        start = f"{prefix}/" if prefix else ""
        below = (path[len(start) :] for path in self._objects if path.startswith(start))
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.requests["deleted objects"] += 1
            self._objects.pop(path, None)


class Answers:
    """
    Makes the pickled answers of the tasks of a micro-batch.

    Args:
        ranges: Key groups of each task.
    """

    def __init__(self, ranges: Sequence[KeyGroupRange]) -> None:
        self._ranges = ranges
        self._entries = STATE_BYTES // ENTRY_BYTES // len(ranges)

    def of(self, checkpoint_id: int, snapshots: dict[KeyGroupRange, KeyGroupRange]) -> list[bytes]:
        """Return one answer for each task."""
        return [
            pickle.dumps(self._one(partition, key_groups, checkpoint_id, snapshots.get(key_groups)))
            for partition, key_groups in enumerate(self._ranges)
        ]

    def _one(
        self,
        partition: int,
        key_groups: KeyGroupRange,
        checkpoint_id: int,
        wanted: KeyGroupRange | None,
    ) -> TaskAck:
        snapshot = None
        if wanted is not None:
            size = STATE_BYTES // len(self._ranges) * len(wanted) // len(key_groups)
            handle = FileStateHandle(f"taskowned/{uuid.uuid4()}", size)
            snapshot = MaterializedHandle(wanted, max(checkpoint_id - 1, 0), handle)
        each = self._entries // len(key_groups)
        return TaskAck(
            place=TaskPlace(partition, key_groups),
            changes=TaskChanges(
                log=self.log(key_groups, checkpoint_id),
                snapshot=snapshot,
                group_entries=[each] * len(key_groups),
            ),
            figures={
                "keys": 8_000,
                "delta_bytes": DELTA_BYTES,
                "snapshots": int(snapshot is not None),
                "rows": EVENTS_PER_TASK,
                "output_rows": 8_000,
                "state_entries": each * len(key_groups),
                "objects": 1 + (snapshot is not None),
                "object_bytes": DELTA_BYTES,
                "catch_up": {"folded": len(key_groups)},
                "task_milliseconds": {"restore": 1.0, "input": 5.0, "process": 80.0, "log": 20.0},
            },
            top_groups=[(key_groups.start, EVENTS_PER_TASK // 2)],
            top_keys=[(key_groups.start, "[123456789]", 40)],
        )

    def log(self, key_groups: KeyGroupRange, checkpoint_id: int) -> ChangelogStateHandle:
        """Return the handle of the changes of a task."""
        handle = FileStateHandle(f"dstl/{uuid.uuid4()}", DELTA_BYTES)
        return ChangelogStateHandle(
            key_groups,
            (HandleAndOffset(handle, 0, DELTA_BYTES),),
            DELTA_BYTES,
            DELTA_BYTES,
            str(uuid.uuid4()),
            checkpoint_id,
        )


class Driver:
    """
    The driver of the simulated job: what `MicroBatchEngine` calls, in its order.

    Args:
        tasks: Tasks of a micro-batch.
        policy: The bounds of the log.
        handles: Handles in the log of the checkpoint to begin with; 0 for an empty location.
    """

    def __init__(self, tasks: int, policy: SnapshotPolicy, handles: int = 0) -> None:
        self._groups = max(2 * tasks, 128)
        self.store = CountingStore()
        recorder = CheckpointRecorder(Metrics())
        self.coordinator = CheckpointCoordinator(
            self.store,
            owner_id="simulated",
            max_parallelism=self._groups,
            options=CheckpointOptions(),
            clock_ms=lambda: time.time_ns() // 1_000_000,
            recorder=recorder,
            pause=lambda seconds: None,
        )
        self.planner = SnapshotPlanner(policy, self._groups, recorder)
        self.ranges = KeyGroupRange(0, self._groups - 1).split(tasks)
        self._answers = Answers(self.ranges)
        if handles:
            self._write_base(handles)
        self.coordinator.claim()
        self._base = self.coordinator.restore()
        self.planner.begin(self._base, STATE_BYTES // ENTRY_BYTES)

    def _write_base(self, handles: int) -> None:
        """Put a checkpoint with so many log handles, as if micro-batches had made them."""
        newest = -(-handles // len(self.ranges))  # claim 0, then one checkpoint for each
        log = tuple(
            self._answers.log(key_groups, batch)
            for batch in range(1, newest + 1)
            for key_groups in self.ranges
        )[:handles]
        base = CompletedCheckpoint(
            checkpoint_id=newest,
            parent_id=None,
            created_at_ms=0,
            epoch=0,
            owner_id="simulated",
            max_parallelism=self._groups,
            materialized=(),
            log=log,
            retained=(newest,),
            properties=self._record(newest, ()).to_properties(),
        )
        self.store.put(PATHS.metadata(newest), prepare_commit(base, {}, compress=True).buffers)

    def micro_batch(self) -> Run:
        """Run one micro-batch; return its seconds by step, and what it counted."""
        batch_id = self.coordinator.next_checkpoint_id
        steps: dict[str, float] = {}
        before, bytes_before = Counter(self.store.requests), self.store.bytes_in
        with _Clock(steps, "plan"):
            now = time.time_ns() // 1_000_000
            snapshots = self.planner.choose(self.ranges, now)
            self.coordinator.trigger(batch_id, self.ranges)
        with _Clock(steps, "instructions"):
            function = partial(staged_task, self._spec(batch_id, snapshots))
            sent = len(cloudpickle.dumps(function))
        answers = self._answers.of(batch_id, snapshots)
        gc.collect()
        with _Clock(steps, "answers"):
            acks = one_per_task(pickle.loads(one) for one in answers)
        with _Clock(steps, "acknowledge"):
            for ack in acks:
                done = TaskStateSnapshot(ack.place.key_range, ack.changes.log, ack.changes.snapshot)
                self.coordinator.acknowledge(batch_id, done)
        with _Clock(steps, "commit"):
            record = self._record(batch_id, acks)
            completed = self.coordinator.complete(batch_id, properties=record.to_properties())
        with _Clock(steps, "advance"):
            self.planner.committed(acks, now)
            self.planner.advance(completed)
            self._base = completed
        with _Clock(steps, "clean_up"):
            self.coordinator.clean_up_when_due()
        return {
            "seconds": round(sum(steps.values()), 4),
            "steps": {name: round(seconds, 4) for name, seconds in steps.items()},
            "requests": dict(self.store.requests - before),
            "driver_bytes": self.store.bytes_in - bytes_before,
            "commit_bytes": self.coordinator.committed_bytes,
            "instruction_bytes": sent,
            "answer_bytes": sum(map(len, answers)),
            "log_handles": len(completed.log),
            "snapshots": len(snapshots),
            "snapshot_bytes": sum(
                ack.changes.snapshot.handle.size_bytes for ack in acks if ack.changes.snapshot
            ),
        }

    def _spec(self, batch_id: int, snapshots: dict[KeyGroupRange, KeyGroupRange]) -> TaskSpec:
        base = self._base
        base_id = -1 if base is None else base.checkpoint_id
        fresh = () if base is None else (one for one in base.log if one.checkpoint_id == base_id)
        return TaskSpec(
            context=BatchContext(RunningCount(), batch_id, "none"),
            rows=TaskRows(
                layout=InputLayout((1,), 2), row_format=None, output=pa.schema([("n", pa.int64())])
            ),
            state=TaskState(location="s3://bucket/job", storage_options={}, epoch=1, schema={}),
            checkpoint_id=batch_id,
            base_id=base_id,
            restore_id=base_id,
            committed=tuple(one.state_handle_id for one in fresh),
            ranges=self.ranges,
            snapshots={
                number: snapshots[one] for number, one in enumerate(self.ranges) if one in snapshots
            },
            inline_bytes=INLINE_BYTES // len(self.ranges),
            staged=False,
        )

    def _record(self, batch_id: int, acks: Sequence[TaskAck]) -> BatchRecord:
        operator = OperatorRecord(
            operator_id="counts",
            schema={"variables": [{"name": "count", "type": "n long"}]},
            state_entries=sum(ack.count("state_entries") for ack in acks),
        )
        return BatchRecord(
            operators=(operator,),
            query_id="simulated",
            batch_id=batch_id,
            location="",
            timeline=0,
            figures=replace(figures_of([acks]), tasks=len(acks)),
            delivery="direct",
            time_mode="none",
            now_ms=-1,
            output_files=[],
        )


class _Clock:
    """Adds the CPU time of a block to the steps."""

    def __init__(self, steps: dict[str, float], name: str) -> None:
        self._steps, self._name = steps, name

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *error: object) -> None:
        self._steps[self._name] = time.process_time() - self._began


def simulate(tasks: int, batches: int, handles: int, seconds: float) -> Run:
    """Run some micro-batches of a job, for a bounded time; return the facts of all but the first."""
    # With a log to begin with nothing falls due, so that the log has this length in each micro-batch.
    policy = (
        SnapshotPolicy(max_log_handles=1_000_000, min_log_bytes=10**15)
        if handles
        else SnapshotPolicy()
    )
    driver, began = Driver(tasks, policy, handles), time.monotonic()
    made = []
    for _ in range(batches):
        made.append(driver.micro_batch())
        if time.monotonic() - began > seconds:
            break
    shown = made[1:] or made
    names = sorted(set().union(*(one["requests"] for one in shown)))
    return {
        "batches": len(made),
        "seconds_per_batch": [one["seconds"] for one in shown],
        "steps": {
            name: _median(one["steps"][name] for one in shown) for name in shown[-1]["steps"]
        },
        "requests": {
            name: _median(one["requests"].get(name, 0) for one in shown) for name in names
        },
        **{
            name: _median(one[name] for one in shown)
            for name in made[-1]
            if name not in ("seconds", "steps", "requests")
        },
        "curve": {
            "log_handles": [one["log_handles"] for one in made],
            "seconds": [one["seconds"] for one in made],
            "commit_bytes": [one["commit_bytes"] for one in made],
        },
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "said": f"{_median(one['seconds'] for one in shown):.2f} s a micro-batch, "
        f"{made[-1]['log_handles']:,} handles, commit {made[-1]['commit_bytes'] / 1e6:.1f} MB",
    }


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def main() -> int:
    """Simulate and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--tasks", default="8,50,200,1000,5000")
    parser.add_argument(
        "--logs", default="2,5,10,20", help="micro-batches of 5,000 tasks in the log"
    )
    parser.add_argument("--log-tasks", type=int, default=TASKS)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=90, help="of a part")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    numbers: dict[str, Any] = {
        "batches": options.batches,
        "log_tasks": options.log_tasks,
        "events_per_task": EVENTS_PER_TASK,
        "delta_bytes": DELTA_BYTES,
        "state_bytes": STATE_BYTES,
        "cores": CORES,
    }
    results = Results(options.json, "driver-scale", numbers, resume=options.resume)
    parts, facts = [], {}
    for tasks in map(int, filter(None, options.tasks.split(","))):
        one = partial(simulate, tasks, options.batches, 0, options.seconds)
        parts.append((f"tasks-{tasks}", 1, one))
        facts[f"tasks-{tasks}"] = {"tasks": tasks, "handles": 0}
    for handles in map(int, filter(None, options.logs.split(","))):
        one = partial(simulate, options.log_tasks, options.batches, handles, options.seconds)
        parts.append((f"log-{handles}", 1, one))
        facts[f"log-{handles}"] = {"tasks": options.log_tasks, "handles": handles}
    return 1 if in_turns(results, parts, facts=facts) else 0


if __name__ == "__main__":
    sys.exit(main())
