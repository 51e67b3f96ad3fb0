"""
A job killed again and again between the delivery of a micro-batch and Spark's record of its end.

The job runs several queries at once, because the start of a process is what costs.  Each run dies by
SIGKILL, at a named point of one of them or at any moment; the next run continues.  When all input is
done, the rows of each sink are compared with those of a plain computation.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
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
AHEAD = 6
"""Micro-batches that each query has before it when the job starts."""
ANY_TIME = "any time"
POINTS = (
    "before-commit",
    "after-commit",
    "before-files",
    "after-files",
    "after-sink",
    "after-batch",
)
RUN_SECONDS = 400


class SinkInput:
    """
    The input of one query, and the rows that its sink must have.

    Args:
        folder: Where the query stores everything.
        chance: Makes the rows.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.expected: Counter[tuple[Any, ...]] = Counter()
        self._chance = chance
        self._model = TotalsModel()
        self._added = 0
        (folder / "input").mkdir(parents=True)

    def add(self, batches: int) -> None:
        """Add micro-batches."""
        folder, chance = self.folder / "input", self._chance
        for _ in range(batches):
            rows = [(chance.randrange(KEYS), chance.randrange(100)) for _ in range(ROWS)]
            table = pa.Table.from_pylist([{"key": key, "amount": amount} for key, amount in rows])
            hidden = folder / f".{self._added:05}.parquet"
            pq.write_table(table, hidden)
            os.utime(hidden, (1_600_000_000 + self._added,) * 2)  # Spark takes them in this order
            hidden.rename(folder / hidden.name[1:])
            self.expected.update(self._model.apply(rows))
            self._added += 1

    def left(self) -> int:
        """Return how many micro-batches are still to be done."""
        commits = self.folder / "query" / "commits"
        done = [int(one.name) for one in commits.glob("[0-9]*")]
        return self._added - max(done, default=-1) - 1

    def differences(self) -> list[str]:
        """Compare the rows of the sink with those that must be there."""
        rows = json.loads((self.folder / "rows.json").read_text(encoding="utf-8"))
        found = Counter(map(tuple, rows))
        more, less = found - self.expected, self.expected - found
        return [f"{self.folder.name}: more {more}, missing {less}"] if more or less else []


@dataclass
class SinkCampaign:
    """
    A series of kills of `sink_job.py`.

    Args:
        folder: Where everything is stored.
        sinks: Names of sink and delivery, such as "parquet-staged"; each is a query of the job.
        seed: Of the input and of every choice.
    """

    folder: Path
    sinks: Sequence[str]
    seed: int
    kills: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        prepare_environment()
        self.chance = random.Random(f"{self.seed} {self.sinks}")
        self.inputs = [SinkInput(self.folder / name, self.chance) for name in self.sinks]

    def run(self, kills: int) -> None:
        """Kill the job *kills* times, then let it finish, and compare."""
        while len(self.kills) < kills:
            for one in self.inputs:
                one.add(max(0, AHEAD - one.left()))
            self._run_to_death()
            print(f"{time.strftime('%H:%M:%S')} {len(self.kills)} {self.kills[-1:]}", flush=True)
        status, log = self._process("", None)
        assert status == 0, f"{self.story}\n{log}"
        self.check()

    def check(self) -> None:
        """Check that each sink has every row exactly once."""
        found = [line for one in self.inputs for line in one.differences()]
        assert [] == found, self.story

    def _run_to_death(self) -> None:
        point = self.chance.choice((*POINTS, ANY_TIME))
        if point == ANY_TIME:
            status, log = self._process("", self.chance.uniform(0.2, 6.0))
        else:
            point = f"{point}:{self.chance.randint(1, 2 * len(self.sinks))}"
            status, log = self._process(point, None)
        if status == 0:  # it had finished before
            self.check()
            return
        assert status == -signal.SIGKILL, f"{point}: exit status {status}\n{self.story}\n{log}"
        self.kills.append(point)

    def _process(self, points: str, seconds: float | None) -> tuple[int, str]:
        """
        Run the job; return its exit status and what it wrote.

        It is killed *seconds* after its queries have started, unless that is None.
        """
        log = self.folder / "job.log"
        log.unlink(missing_ok=True)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, VARIABLE: points, "PYTHONPATH": path}
        tasks = str(self.chance.choice((1, 2, 3)))
        program = [sys.executable, "-m", "tests.spark.sink_job", str(self.folder), tasks]
        process = start_session([*program, *self.sinks], log=log, environment=environment)
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
        return f"seed {self.seed}, {', '.join(self.sinks)}: {self.kills}"


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, whose id stays its own until it is waited for."""
    until = time.monotonic() + RUN_SECONDS
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        assert time.monotonic() < until, "the job hangs"
        time.sleep(0.05)
