"""
Run the steps of `statelog demo`.

This module prints nothing; it calls an `Audience` at each step.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries, present_ids
from statelog.demo.check import Verdict
from statelog.demo.connect_server import batch_workers
from statelog.demo.data import lay_out, write_orders
from statelog.demo.java import prepare_environment
from statelog.demo.job import JobConfig
from statelog.demo.process import JobProcess, ProcessInfo
from statelog.errors import StatelogError, UsageError
from statelog.model import JsonObject
from statelog.redaction import redacted
from statelog.store import open_location

_POLL_SECONDS = 0.01
_INTO_THE_BATCH = 0.45
_BATCHES_MIN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """
    The settings of a demonstration.

    Args:
        work: An empty folder for all files.
        source: Folder of CSV files; None to generate them.
        orders: Number of orders to generate.
        seed: Seed of the generated orders.
        batches: Target number of micro-batches.
        session_gap_seconds: Longest pause within a session.
        delivery: "staged" or "direct".
        location: State location; None for a folder in *work*.
        kill: Whether to kill the job half-way and restart it.
        tasks_before: Number of tasks of the first run.
        tasks_after: Number of tasks after the kill.
        cores: Cores that Spark may use.
        connect: Whether the job runs on Spark Connect; then the query's process in the server is
            killed too, before the kill of the job.
    """

    work: Path
    source: Path | None = None
    orders: int = 10_000
    seed: int = 1
    batches: int = 24
    session_gap_seconds: float = 1800.0
    delivery: str = "staged"
    location: str | None = None
    kill: bool = True
    tasks_before: int = 2
    tasks_after: int = 3
    cores: int = 2
    connect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """
    The kill of the job.

    Args:
        batch_id: The newest micro-batch that had begun.
        batches_before: Number of finished micro-batches.
        in_batch: Whether that micro-batch was running (Spark had not recorded its end).
        committed: Whether its checkpoint was committed.
        delivered: Whether its rows were in the sink.
        processes: The killed processes.
    """

    batch_id: int
    batches_before: int
    in_batch: bool
    committed: bool
    delivered: bool
    processes: tuple[ProcessInfo, ...]


class Audience(Protocol):
    """Called at each step of the demonstration."""

    def prepared(self, files: int, batches: int, location: str) -> None:
        """Report that the input is ready."""

    def starting(self, run: int, tasks: int) -> None:
        """Report that run 1 or 2 starts."""

    def started(self) -> None:
        """Report that Spark has started."""

    def batch(self, run: int, progress: JsonObject) -> None:
        """Report the figures of a micro-batch, see `BatchProgress`."""

    def killed(self, kill: Kill) -> None:
        """Report that the job was killed."""

    def killed_worker(self, batch_id: int) -> None:
        """Report that the process of the query in a Connect server was killed."""

    def verifying(self) -> None:
        """Report that all input is processed and that the verification begins."""


@dataclass(slots=True)
class DemoResult:
    """
    The result of a demonstration.

    Args:
        verdict: The result of the verification.
        kill: The kill, if there was one.
        killed_workers: Number of killed processes of the query in a Connect server.
        micro_batches: Figures of each, with the number of its run.
        phases: Seconds of each phase.
        files: Number of CSV files.
        location: Where the state is.
    """

    verdict: Verdict = field(default_factory=Verdict)
    kill: Kill | None = None
    killed_workers: int = 0
    micro_batches: list[JsonObject] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    files: int = 0
    location: str = ""

    def to_json(self) -> JsonObject:
        """Return the JSON form: the document of `statelog demo --json`."""
        verdict: JsonObject = msgspec.to_builtins(self.verdict)
        batches = self.micro_batches
        return {
            **{
                name: verdict.pop(name)
                for name in ("exact", "differences", "difference_count", "customers", "lines")
            },
            "dropped_lines": verdict.pop("dropped_lines"),
            "top_customers": verdict.pop("top"),
            "files": self.files,
            "location": redacted(self.location),
            "kill": None if self.kill is None else msgspec.to_builtins(self.kill),
            "killed_workers": self.killed_workers,
            "totals": {
                **verdict,
                "micro_batches": len({batch["batch_id"] for batch in batches}),
                "rows": sum(batch["rows"] for batch in batches),
                "objects": sum(batch["objects"] for batch in batches),
                "object_bytes": sum(batch["object_bytes"] for batch in batches),
                "snapshots": sum(batch["snapshots"] for batch in batches),
            },
            "micro_batches": batches,
            "seconds": round(sum(self.phases.values()), 3),
            "phases": {name: round(seconds, 3) for name, seconds in self.phases.items()},
        }


class Demo:
    """One demonstration."""

    def __init__(self, plan: DemoPlan, audience: Audience) -> None:
        self._plan = plan
        self._audience = audience
        self._location = plan.location or str(plan.work / "state")
        self._result = DemoResult(location=self._location)
        self._files_per_trigger = 1
        self._batches = 0

    @property
    def log(self) -> Path:
        """The log of the job."""
        return self._plan.work / "job.log"

    def run(self) -> DemoResult:
        """
        Run all steps.

        Raises:
            UsageError: The input or the location cannot be used.
            StatelogError: The job failed, or there is no Java.

        Blocks: For a minute or more.  An exception, also an interrupt, ends the job.
        """
        plan = self._plan
        with self._phase("prepare"):
            _refuse_used(self._location)
            prepare_environment()
            self._prepare()
        tasks = plan.tasks_before
        if plan.kill:
            self._run_job(1, tasks, verify=False)
            tasks = plan.tasks_after
        self._run_job(2 if plan.kill else 1, tasks, verify=True)
        return self._result

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            phases = self._result.phases
            phases[name] = phases.get(name, 0.0) + time.monotonic() - begin

    def _prepare(self) -> None:
        plan, source = self._plan, self._plan.source
        if source is None:
            source = plan.work / "orders"
            write_orders(source, orders=plan.orders, seed=plan.seed)
        files = self._result.files = lay_out(source, plan.work / "input")
        self._files_per_trigger = math.ceil(files / plan.batches)
        self._batches = math.ceil(files / self._files_per_trigger)
        if plan.kill and self._batches < _BATCHES_MIN:
            raise UsageError(
                f"{files} files make {self._batches} micro-batches; a kill in the middle needs "
                f"{_BATCHES_MIN}: set a higher --batches, or --no-kill"
            )
        self._audience.prepared(files, self._batches, self._location)

    def _config(self, tasks: int, verify: bool) -> JobConfig:
        plan = self._plan
        return JobConfig(
            input=str(plan.work / "input"),
            checkpoint=str(plan.work / "spark"),
            location=self._location,
            output=str(plan.work / "output"),
            tasks=tasks,
            delivery=plan.delivery,
            files_per_trigger=self._files_per_trigger,
            session_gap_seconds=plan.session_gap_seconds,
            master=f"local[{plan.cores}]",
            verify=verify,
            connect=plan.connect,
        )

    def _run_job(self, run: int, tasks: int, *, verify: bool) -> None:
        self._audience.starting(run, tasks)
        spark = self._plan.work / "spark"
        moment = None if verify else _KillMoment(spark, self._batches // 2)
        first = None if verify or not self._plan.connect else _KillMoment(spark, self._batches // 4)
        phase, begin = f"start_{run}", time.monotonic()
        phases = self._result.phases
        with JobProcess(self._config(tasks, verify), self.log) as job:
            for message in job.events(None if moment is None else _POLL_SECONDS):
                event = message.get("event")
                if event in ("session", "finished"):
                    now = time.monotonic()
                    phases[phase], begin = now - begin, now
                    phase = f"run_{run}" if event == "session" else "verify"
                self._report(run, event, message)
                if first is not None and first.has_come(message):
                    first = None
                    self._kill_worker(job)
                if moment is not None and moment.has_come(message):
                    self._kill(job)
                    break
        phases[phase] = time.monotonic() - begin
        if moment is not None and self._result.kill is None:
            raise StatelogError("the job ended before it could be killed; set a higher --batches")
        if verify and not self._result.verdict.lines:
            raise StatelogError(f"the job ended without a verdict: status {job.exit_status}")

    def _report(self, run: int, event: str | None, message: JsonObject) -> None:
        if event == "session":
            self._audience.started()
        elif event == "batch":
            progress = message["progress"]
            self._result.micro_batches.append({"run": run, **progress})
            self._audience.batch(run, progress)
        elif event == "finished":
            self._audience.verifying()
        elif event == "verdict":
            self._result.verdict = msgspec.convert(message["verdict"], Verdict)

    def _kill_worker(self, job: JobProcess) -> None:
        for worker in batch_workers(job.pid):
            os.kill(worker, signal.SIGKILL)
            self._result.killed_workers += 1
        self._audience.killed_worker(_newest_number(self._plan.work / "spark" / "offsets"))

    def _kill(self, job: JobProcess) -> None:
        processes = job.kill()
        spark, output = self._plan.work / "spark", self._plan.work / "output"
        newest = Entries(open_location(self._location)).newest()
        batch_id = _newest_number(spark / "offsets")
        ended = _newest_number(spark / "commits")
        self._result.kill = Kill(
            batch_id=batch_id,
            batches_before=ended + 1,
            in_batch=ended < batch_id,
            committed=newest is not None and BatchRecord.of(newest).batch_id == batch_id,
            delivered=(output / f"batch={batch_id}.parquet").exists(),
            processes=tuple(processes),
        )
        self._audience.killed(self._result.kill)


class _KillMoment:
    """
    Finds the moment in the middle of a micro-batch.

    Spark writes a file to its folder `offsets` before a micro-batch begins; the middle is about half
    of the median duration later.
    """

    def __init__(self, spark: Path, after: int) -> None:
        self._begun = spark / "offsets" / str(after)
        self._durations: list[float] = []
        self._due: float | None = None

    def has_come(self, message: JsonObject) -> bool:
        if message.get("event") == "batch":
            self._durations.append(message["progress"]["milliseconds"]["total"] / 1000)
        if self._due is None and self._durations and self._begun.exists():
            usual = statistics.median(self._durations[-3:])
            self._due = time.monotonic() + usual * _INTO_THE_BATCH
        return self._due is not None and time.monotonic() >= self._due


def _newest_number(folder: Path) -> int:
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else iter(())
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _refuse_used(location: str) -> None:
    store = open_location(location)
    if store.local_root is not None and not Path(store.local_root).exists():
        return  # the first write creates it
    if present_ids(store):
        raise UsageError(
            f"{location} holds state already; the demonstration needs an empty location"
        )
