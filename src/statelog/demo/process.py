"""
Run the demonstration's job in a process, and kill it with all of its child processes.

A Spark job is a tree of processes: the driver, its JVM, the Python daemon, the workers.  The daemon
makes its own process group, and orphaned children get another parent, but all of them stay in the
session of the program.  So they are found by their session and ended by their ids.

The steps of `statelog demo` are here too: write the input, run the job, kill it, run it again,
check it.  They print nothing; they call a `Show`.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

import statelog
from statelog.checkpoint.history import is_state
from statelog.demo.java import prepare_environment
from statelog.demo.job import JobConfig
from statelog.errors import StatelogError, UsageError
from statelog.model import JsonObject
from statelog.runtime.clock import pause
from statelog.runtime.closing import ClosesAtExit
from statelog.store import open_location

PROGRAM: Final = ("-m", "statelog.demo.program")
_PROC: Final = Path("/proc")
_POLL_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 10.0
_LOG_LINES: Final = 15


def start_program(
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """
    Start a program in a new session.

    Its standard input is a pipe that ends when this process ends, also by a signal.
    """
    with open(log, "ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=output if stdout is None else stdout,
            stderr=output,
            env=environment,
            start_new_session=True,
        )


def processes_of_session(leader: int) -> dict[int, str]:
    """Return the ids and names of the processes that run in the session of *leader*."""
    processes = {}
    for pid, name in _running_processes():
        try:
            if os.getsid(pid) == leader:
                processes[pid] = name
        except OSError:
            continue  # it has ended, or this process may not read it
    return processes


def kill_session(leader: subprocess.Popen[bytes]) -> dict[int, str]:
    """Kill all processes in a session, wait until they have ended, and return ids and names."""
    killed: dict[int, str] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    # Repeated: a process forked while the list is made is in the next list.
    while running := processes_of_session(leader.pid):
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= running
        if time.monotonic() > deadline:
            break  # a process that waits in the kernel ends after that
        time.sleep(_POLL_SECONDS)
    leader.communicate()  # closes the pipes, and waits
    return killed


def _running_processes() -> Iterator[tuple[int, str]]:
    """Yield those processes on this machine that this process can inspect, except zombies."""
    if not (_PROC / "self" / "stat").exists():
        command = ["ps", "-A", "-o", "pid=,stat=,comm="]
        listing = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in listing.stdout.splitlines():
            pid, state, *name = line.split(None, 2)
            if not state.startswith("Z"):
                yield int(pid), os.path.basename("".join(name))
        return
    for pid in filter(str.isdigit, os.listdir(_PROC)):
        try:
            stat = (_PROC / pid / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # pid (name) state parent ...; the name may contain blanks and brackets
        head, _, rest = stat.rpartition(") ")
        if rest[0] not in "ZX":
            yield int(pid), head.partition("(")[2]


class JobProcess(ClosesAtExit):
    """
    One run of the demonstration's job.

    All its processes end with the `with` block at the latest; `process` is the driver, the leader
    of their session.
    """

    def __init__(
        self, config: JobConfig, log: Path, program: Sequence[str] = PROGRAM, **environment: str
    ) -> None:
        self._log = log
        self.process = start_program(
            [sys.executable, *program, msgspec.json.encode(config).decode()],
            log=log,
            environment={**os.environ, **environment},
            stdout=subprocess.PIPE,
        )

    def events(self) -> Iterator[JsonObject]:
        """Yield the messages of the job until its driver ends."""
        assert self.process.stdout is not None
        failure = ""
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # a kill may truncate the last message
                message: JsonObject = msgspec.json.decode(line)
                if message["event"] == "failed":
                    failure = message["message"].partition("\n")[0]
                else:
                    yield message
        status = self.process.wait()
        self.kill()  # a JVM may be about to end
        if status > 0:
            what = f"failed: {failure}" if failure else f"ended with status {status}"
            text = self._log.read_text(encoding="utf-8", errors="replace")
            tail = "\n  ".join(text.splitlines()[-_LOG_LINES:])
            raise StatelogError(f"the job {what}\nthe last lines of its log:\n  {tail}")

    def kill(self) -> dict[int, str]:
        """
        Kill all processes of the job, and return their ids and names.

        Further calls return none.
        """
        return kill_session(self.process)

    def close(self) -> None:
        """Kill all processes of the job."""
        self.kill()


TASKS_BEFORE: Final = 2
"""Tasks of the first run."""

_INTO_THE_BATCH: Final = 0.45
_FIRST_DAY: Final = dt.datetime(2024, 3, 1)
_COUNTRIES: Final = ("United Kingdom", "Germany", "France", "Ireland", "Spain", "Japan")

Show = Callable[[JsonObject], None]
"""
Called with each message of the demonstration, which has the name of its `event`.

`starting` (with `run` and `tasks`), `session`, `batch` (with `progress`, see `BatchProgress`),
`killed`, `finished` and `checked` (see `check`).
"""


def run_demo(
    folder: Path, location: str, show: Show, *, tasks_after: int, orders: int, batches: int
) -> None:
    """Run all steps of the demonstration."""
    if is_state(open_location(location)):
        raise UsageError(
            f"{location} already contains state; the demonstration needs an empty location"
        )

    def start(run: int, tasks: int) -> JobProcess:
        show({"event": "starting", "run": run, "tasks": tasks})
        operator = {"tasks": tasks}
        config = JobConfig(folder=str(folder), location=location, operator=operator, check=run == 2)
        return JobProcess(config, folder / "job.log")

    prepare_environment()
    write_orders(folder / "input", orders=orders, days=batches)
    with start(1, TASKS_BEFORE) as job:
        processes = _kill_after(job, batches // 2, show)
    begun = max(int(file.name) for file in folder.glob("spark/offsets/[0-9]*"))
    with statelog.open(location) as state:
        committed = state.checkpoints()[-1].batch_id == begun
    killed = {"batch_id": begun, "committed": committed, "processes": sorted(processes.values())}
    show({"event": "killed", **killed})
    with start(2, tasks_after) as job:
        for message in job.events():
            show(message)
    if job.process.returncode != 0:
        raise StatelogError(f"the job was terminated by signal {-job.process.returncode}")


def _kill_after(job: JobProcess, batches: int, show: Show) -> dict[int, str]:
    """Kill the job during the micro-batch that follows *batches* finished ones."""
    durations = []
    for message in job.events():
        show(message)
        if message["event"] == "batch":
            durations.append(message["progress"]["milliseconds"]["total"] / 1000)
        if len(durations) == batches:
            pause(_INTO_THE_BATCH * statistics.median(durations))
            return job.kill()
    raise StatelogError("the job ended before it could be killed; set a higher --batches")


def write_orders(folder: Path, *, orders: int, days: int, seed: int = 1) -> None:
    """
    Write a CSV file of order lines for each day.

    Customers order with very different frequency, some abroad, and return goods (negative
    quantities).  A seed gives the same bytes on every machine.
    """
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    customers = max(orders // 8, 3)
    invoice = 500_000
    for day in range(days):
        lines = []
        count = (day + 1) * orders // days - day * orders // days
        for minute in sorted(int(chance.random() * 600) for _ in range(count)):
            invoice += 1
            customer = int(customers * chance.random() ** 3)
            abroad = chance.random() < 0.05
            country = _COUNTRIES[(customer + abroad) % len(_COUNTRIES)]
            sign = -1 if chance.random() < 0.07 else 1
            ordered_at = _FIRST_DAY + dt.timedelta(days=day, hours=8, minutes=minute)
            for _ in range(1 + int(chance.random() * 9)):
                quantity = sign * (1 + int(chance.random() * 12))
                price = f"{0.25 + int(chance.random() * 20_000) / 1000:.3f}"
                lines.append(f"{customer},{invoice},{ordered_at},{country},{quantity},{price}\n")
        file = folder / f"{day:05}.csv"
        file.write_text("".join(lines), encoding="utf-8")
        os.utime(file, (1_700_000_000 + day,) * 2)  # Spark reads files in the order of their times
