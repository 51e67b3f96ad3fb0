"""
A job killed again and again between the delivery of a micro-batch and Spark's record of its end.

Each run dies by SIGKILL, at a named point or at any moment; the next run continues.  When all input
is done, the rows of the sink are compared with those of a plain computation.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.processors import TotalsModel

from statelog.demo.java import prepare_environment
from statelog.demo.processes import kill_session, start_session
from statelog.runtime.fail_points import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
KEYS = 5
ROWS = 12
ANY_TIME = "any time"
POINTS = {
    "staged": ("after-commit", "after-sink", "after-batch"),
    "direct": ("after-sink", "before-commit", "after-commit", "after-batch"),
}
OF_FILES = ("before-files", "after-files")
FILE_SINKS = ("parquet", "json", "csv", "table")
RUN_SECONDS = 180


@dataclass
class SinkCampaign:
    """
    A series of kills of `sink_job.py`.

    Args:
        folder: Where everything is stored.
        sink: One of `sink_job.SINKS`.
        delivery: "staged" or "direct".
        seed: Of the input and of every choice.
        batches: Micro-batches of the input at the beginning; more are added while kills are left.
    """

    folder: Path
    sink: str
    delivery: str
    seed: int
    batches: int = 6
    kills: list[str] = field(default_factory=list)
    repeats: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        prepare_environment()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.chance = random.Random(f"{self.seed} {self.sink} {self.delivery}")
        self.model = TotalsModel()
        self.expected: Counter[tuple[Any, ...]] = Counter()
        self._added = 0
        self.add(self.batches)

    def add(self, batches: int) -> None:
        """Add micro-batches to the input."""
        folder = self.folder / "input"
        folder.mkdir(exist_ok=True)
        for _ in range(batches):
            rows = [(self.chance.randrange(KEYS), self.chance.randrange(100)) for _ in range(ROWS)]
            table = pa.Table.from_pylist([{"key": key, "amount": amount} for key, amount in rows])
            hidden = folder / f".{self._added:05}.parquet"
            pq.write_table(table, hidden)
            os.utime(hidden, (1_600_000_000 + self._added,) * 2)  # Spark takes them in this order
            hidden.rename(folder / hidden.name[1:])
            self.expected.update(self.model.apply(rows))
            self._added += 1

    def run(self, kills: int) -> None:
        """Kill the job *kills* times, then let it finish, and compare."""
        while len(self.kills) < kills:
            self.add(max(0, 5 - self.left()))
            self._run_to_death()
        status, log = self._process("", None)
        assert status == 0, f"{self.story}\n{log}"
        self.check()

    def check(self) -> None:
        """Compare the rows of the sink with those that must be there."""
        rows = json.loads((self.folder / "rows.json").read_text(encoding="utf-8"))
        found = Counter(map(tuple, rows))
        assert found - self.expected == Counter(), f"written twice or wrong: {self.story}"
        assert self.expected - found == Counter(), f"lost: {self.story}"

    def left(self) -> int:
        """Return how many micro-batches are still to be done."""
        commits = self.folder / "query" / "commits"
        done = [int(one.name) for one in commits.glob("[0-9]*")]
        return self._added - max(done, default=-1) - 1

    def _run_to_death(self) -> None:
        points = POINTS[self.delivery] + (OF_FILES if self.sink in FILE_SINKS else ())
        point = self.chance.choice((*points, ANY_TIME))
        if point == ANY_TIME:
            status, log = self._process("", self.chance.uniform(0.2, 3.0))
        else:
            hit = self.chance.choice((1, 2, 2, 3))
            status, log = self._process(f"{point}:{hit}", None)
            point = f"{point}:{hit}"
        if status == 0:  # it had finished before
            self.check()
            return
        assert status == -signal.SIGKILL, f"{point}: exit status {status}\n{self.story}\n{log}"
        self.kills.append(point)

    def _process(self, points: str, seconds: float | None) -> tuple[int, str]:
        """
        Run the job; return its exit status and what it wrote.

        It is killed *seconds* after it began with the first micro-batch, unless that is None.
        """
        log = self.folder / "job.log"
        tasks = self.chance.choice((1, 2, 3))
        arguments = [str(self.folder), self.sink, self.delivery, str(tasks)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, VARIABLE: points, "PYTHONPATH": path}
        log.unlink(missing_ok=True)
        program = [sys.executable, "-m", "tests.spark.sink_job", *arguments]
        process = start_session(program, log=log, environment=environment)
        try:
            if seconds is not None:
                self._wait_for(log, process)
                time.sleep(seconds)
                process.kill()
            _wait_for_end(process)
        finally:
            kill_session(process)  # Spark's JVM and its workers
        return process.returncode, log.read_text(encoding="utf-8", errors="replace")

    def _wait_for(self, log: Path, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + RUN_SECONDS
        while "started" not in log.read_text(encoding="utf-8", errors="replace"):
            assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")
            assert time.monotonic() < until, "the job does not start"
            time.sleep(0.1)

    @property
    def story(self) -> str:
        """What was done, for a failure's message."""
        return f"seed {self.seed}, {self.sink}, {self.delivery}: {self.kills}"


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, whose id stays its own until it is waited for."""
    until = time.monotonic() + RUN_SECONDS
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        assert time.monotonic() < until, "the job hangs"
        time.sleep(0.05)
