"""
One Spark application on a cluster, whose executors and attempts get into trouble.

Run as a program: `scenario.py <master> <folder> <delivery>`; prints one line of JSON with what
was delivered and what the sweeps found.  It has a JVM of its own because it needs a cluster.
"""

import datetime as dt
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from statelog.demo.java import prepare_environment

prepare_environment()

from pyspark.sql import SparkSession  # noqa: E402
from tests.support.spark.processors import INPUT, TOTALS, Totals  # noqa: E402
from tests.support.spark.streams import BatchSource, Job  # noqa: E402

from statelog.checkpoint import collect_garbage  # noqa: E402
from statelog.store import open_store  # noqa: E402

KEYS = 40


def executor_of_this_worker() -> int:
    """Return the id of the executor's JVM: the parent of the daemon that is our parent."""
    pid = os.getpid()
    for _ in range(5):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise RuntimeError("this is no worker of an executor")


class Disaster(Totals):
    """`Totals` under which, once, the executor or the Python worker dies in mid-batch."""

    def __init__(self, marker: str, victim: str) -> None:
        super().__init__()
        self.marker = marker
        self.victim = victim

    def handleInputRows(self, key, rows, timerValues):
        yield from super().handleInputRows(key, rows, timerValues)
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        pid = executor_of_this_worker() if self.victim == "executor" else os.getpid()
        os.kill(pid, signal.SIGKILL)


def batch(number: int) -> list[tuple[int, int]]:
    return [(key, number + key) for key in range(KEYS)]


def orphans(job: Job) -> dict[str, int]:
    """Sweep the location; return how many objects went, by folder, and how many a second finds."""
    store = open_store(str(job.state))
    found: dict[str, int] = {}
    for again in ("", "again "):
        report = collect_garbage(
            store,
            min_age=dt.timedelta(0),
            apply=True,
            now=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1),
        )
        for path in report.deleted:
            name = again + path.partition("/")[0]
            found[name] = found.get(name, 0) + 1
    return found


def run(job: Job, batches: int, **changes: Any) -> list[list[list[int]]]:
    """Add micro-batches, run them, and return what was delivered."""
    first = len(list(job.source.folder.glob("*.parquet")))
    for number in range(first, first + batches):
        job.source.add(batch(number))
    job.run(**changes)
    return [sorted(map(list, rows)) for rows in job.take()]


def main(master: str, folder: Path, delivery: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .appName("statelog cluster tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.executorEnv.STATELOG_SLOW_MARKER", str(folder / "slow"))
        .config("spark.default.parallelism", "2")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.efficiency.enabled", "false")  # it waits for heartbeats
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.multiplier", "1.2")
        .config("spark.speculation.minTaskRuntime", "2s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    job = Job(
        BatchSource(spark, folder / "in", INPUT), folder, ["key"], Totals(), TOTALS,
        {"delivery": delivery, "stream.data-inline-threshold": 0, "tasks": 2},
    )  # fmt: skip
    story: dict[str, Any] = {"delivered": run(job, 3)}
    orphans(job)
    victim = "executor" if delivery == "staged" else "worker"
    marker = str(folder / f"{victim}-died")
    story["delivered"] += run(job, 2, processor=Disaster(marker, victim))
    story["died"] = Path(marker).exists()
    orphans(job)
    # The attempt after the one that died has left it, too.
    (folder / "slow-overtaken").unlink(missing_ok=True)
    (folder / "slow").touch()  # from now on one first attempt waits to be overtaken
    story["delivered"] += run(job, 1)
    story["overtaken"] = (folder / "slow-overtaken").exists()
    story["orphans of speculation"] = orphans(job)
    story["delivered"] += run(job, 1, tasks=3)
    story["delivered"] += run(job, 1, tasks=1)
    story["last orphans"] = orphans(job)
    story["tasks"] = [progress.tasks for progress in job.progress]
    story["catch up"] = [dict(progress.catch_up) for progress in job.progress]
    spark.stop()
    print(json.dumps(story))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
