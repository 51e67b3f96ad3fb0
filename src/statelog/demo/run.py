"""
Run the steps of `statelog demo`: write the input, run the job, kill it, run it again, check it.

This module prints nothing; it calls a `Show` at each step.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

import statelog
from statelog.checkpoint.history import is_state
from statelog.demo.java import prepare_environment
from statelog.demo.job import JobConfig
from statelog.demo.process import JobProcess
from statelog.errors import StatelogError, UsageError
from statelog.model import JsonObject
from statelog.runtime.clock import pause
from statelog.store import open_location

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
    """Run all steps."""
    if is_state(open_location(location)):
        raise UsageError(
            f"{location} contains state already; the demonstration needs an empty location"
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
        raise StatelogError(f"the job ended by signal {-job.process.returncode}")


def _kill_after(job: JobProcess, batches: int, show: Show) -> dict[int, str]:
    """Kill the job in the middle of the micro-batch that follows *batches* others."""
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
