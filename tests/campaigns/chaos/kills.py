"""
Real processes killed at named points, again and again on one state location.

Each run of the job is armed with one fail point and dies there by SIGKILL: the driver with it, or a
worker, for which Spark fails the query.  The next run goes on with another number of tasks.  The
last run works through the rest while its workers keep dying and Spark repeats their tasks; then
everything is compared with what must have come, and what the dead left behind is swept.
"""

import datetime as dt
import json
import os
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.campaigns.chaos.batch_files import DELIVERIES
from tests.campaigns.chaos.request_log import noting
from tests.campaigns.model.linearize import check_journal
from tests.support.locations.sequence_entries import claims
from tests.support.project import evidence

from statelog.checkpoint import collect_garbage
from statelog.checkpoint.clean_up import reachable_objects
from statelog.checkpoint.verify import verify_location
from statelog.demo.java import prepare_environment
from statelog.demo.job import JobConfig
from statelog.demo.process import JobProcess, processes_of_session, write_orders
from statelog.errors import StatelogError
from statelog.runtime.fail_points import VARIABLE
from statelog.state.reader import StateReader
from statelog.store import PATHS, open_location

DRIVER_POINTS = ("before-commit", "after-commit", "after-sink")
WORKER_POINTS = ("before-upload", "after-upload", "between-uploads", "before-acknowledge")
DIES = "local[2]"  # one failure of a task fails the query
REPEATS = "local[2,3]"
NO_INLINE = 0
INLINE = 1024 * 1024
EXITED = "worker exited unexpectedly"
LOST_WORKER = re.compile(rf"TaskSetManager: .*Lost task .*{EXITED}")


@dataclass
class Campaign:
    """
    A series of kills of `job.py` on one location.

    Args:
        folder: Where everything lies.
        seed: Of the data and of every choice.
        delivery: "staged" or "direct".
        inline_bytes: Whether deltas travel inline or in files.
        state_backend: Where the workers keep the state.
        files: Daily files, each of which is a micro-batch.
    """

    folder: Path
    seed: int
    delivery: str = "staged"
    inline_bytes: int = INLINE
    state_backend: str = "auto"
    files: int = 24
    kills: list[str] = field(default_factory=list)
    program: ClassVar = "job.py"
    time_mode: ClassVar = "ProcessingTime"
    has_answer: ClassVar = True
    """Whether a batch query of the demonstration answers what the job computes."""

    def __post_init__(self) -> None:
        prepare_environment()
        self.chance = random.Random(self.seed)
        self.location = str(self.folder / "state")
        self.requests = self.folder / "requests.jsonl"
        self.trace_events = 0
        self._tasks = 0
        self.write_input()

    def write_input(self) -> None:
        folder = self.folder / "input"
        write_orders(folder, orders=self.files * 35, seed=self.seed, days=self.files)

    def batches_left(self) -> int:
        """Return how many micro-batches are still to be done, about."""
        return self.files - len(list((self.folder / "spark" / "commits").glob("[0-9]*")))

    def _config(self, master: str, verify: bool) -> JobConfig:
        # Never the number of the run before.
        self._tasks = self.chance.choice([n for n in (1, 2, 3, 5, 7) if n != self._tasks])
        operator = {
            "tasks": self._tasks,
            "delivery": self.delivery,
            "stream.data-inline-threshold": self.inline_bytes,
            "timeMode": self.time_mode,
            "state.backend": self.state_backend,
            "state.local-directory": str(self.folder / "local"),
        }
        return JobConfig(
            folder=str(self.folder),
            location=self.location,
            operator=operator,
            master=master,
            check=verify and self.has_answer,
        )

    def _start(self, config: JobConfig, points: str) -> JobProcess:
        return JobProcess(
            config,
            self.folder / "job.log",
            program=[str(Path(__file__).with_name(self.program))],
            **{VARIABLE: points, **noting(self.requests)},
        )

    def die_at(self, point: str, hit: int) -> None:
        """Run the job until it is killed at the given hit of *point*."""
        before = self._log().count(EXITED)
        with self._start(self._config(DIES, verify=False), f"{point}:{hit}") as job:
            told: list[Any] = []
            try:
                for message in job.events():
                    told.append(message["event"])
            except StatelogError as error:
                assert point in WORKER_POINTS, error
                assert self._log().count(EXITED) > before, error
            else:
                assert point not in WORKER_POINTS, f"{point} did not stop the job: {told}"
                assert job.process.returncode == -9, f"{point}:{hit} was not reached: {told}"
        assert "finished" not in told, f"{point}:{hit} was not reached"
        assert {} == processes_of_session(job.process.pid)
        self.kills.append(f"{point}:{hit} on {self._tasks}")

    def finish_while_workers_die(self, point: str) -> dict[str, Any]:
        """Work through the rest, workers dying at *point* a few times; return the job's verdict."""
        config = self._config(REPEATS, verify=True)
        # A new worker counts anew, and is costly: let about one in eight hits be deadly.
        hit = max(2, self.batches_left() * self._tasks // 8)
        before = len(LOST_WORKER.findall(self._log()))
        verdict: dict[str, Any] = {}
        with self._start(config, f"{point}:{hit}") as job:
            for message in job.events():
                verdict = message if message["event"] == "checked" else verdict
        assert job.process.returncode == 0, self.story
        lost = len(LOST_WORKER.findall(self._log())) - before
        self.kills += [f"{point}:{hit} of a worker"] * lost
        return verdict

    def check(self, verdict: dict[str, Any]) -> None:
        """Check that everything is exact, and stays so when the leavings are swept."""
        self.check_output_and_state(verdict)
        self.check_leavings()
        self.trace_events = check_journal(self.requests)

    def record(self, record: evidence.Record) -> None:
        """Note the kills, and the trace that conforms to the model."""
        record.runs, record.kills = 1, len(self.kills)
        record.counts.update({"conforming traces": 1, "events of traces": self.trace_events})

    def check_output_and_state(self, verdict: dict[str, Any]) -> None:
        """Check what the last run said of the output and the state."""
        assert [] == verdict["differences"], self.story
        assert verdict["exact"]
        assert self.files == verdict["batches"]
        self.check_deliveries()

    def check_deliveries(self) -> None:
        """Check that a batch that was delivered twice came with the same rows."""
        notes = []
        for line in (self.folder / "output" / DELIVERIES).read_bytes().splitlines():
            try:
                notes.append(json.loads(line))
            except ValueError:  # cut short by a kill
                continue
        digests = {(note["batch"], note["digest"]) for note in notes if note["rows"]}
        if self.delivery == "staged":
            assert len(digests) == len({batch for batch, _ in digests}), self.story

    def state(self) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        """Return the newest checkpoint, and the rows of each variable of its state."""
        with StateReader.open(self.location) as reader:
            tables = reader.tables()
            return reader.checkpoint_id, {name: table.to_pylist() for name, table in tables.items()}

    def check_leavings(self) -> None:
        """Sweep, and check that everything needed is left, whole, and nothing else."""
        store = open_location(self.location)
        before = self.state()
        now = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
        report = collect_garbage(store, min_age=dt.timedelta(0), apply=True, now=now)
        assert () == report.failed
        if self.inline_bytes == NO_INLINE:
            assert report.deleted, "dead tasks left no file behind?"
        kept_always = ("probed/", "audit/")
        left = {info.path for info in store.list() if not info.path.startswith(kept_always)}
        claimed = {PATHS.metadata(number) for number in claims(self.location)}
        assert left - claimed == reachable_objects(store)
        assert [] == [verified for verified in verify_location(store) if verified.problem]
        assert before == self.state()

    def _log(self) -> str:
        log = self.folder / "job.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    @property
    def story(self) -> str:
        """What was done, for a failure's message."""
        return f"seed {self.seed}, {self.delivery}, inline {self.inline_bytes}: {self.kills}"


def run_campaign(campaign: Campaign, deaths: int) -> None:
    """Let the job die *deaths* times at random points, then finish and check."""
    chance = campaign.chance
    print(f"\nseed {campaign.seed}")
    points = [*DRIVER_POINTS, *WORKER_POINTS]
    chance.shuffle(points)
    for number in range(deaths):
        campaign.die_at(points[number % len(points)], chance.randint(1, 3))
    verdict = campaign.finish_while_workers_die(chance.choice(WORKER_POINTS))
    print(campaign.story)
    campaign.check(verdict)


SEED = int(os.environ.get("STATELOG_CHAOS_SEED", "20261"))
