"""Workers that vanish, tasks that are tried again or stopped, and the numbers that are told."""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.house.sources import ROOT
from tests.support.locations.sequence_entries import objects
from tests.support.spark.processors import PromptTotals, SlowTotals, totals_job, totals_of

from statelog.checkpoint import collect_garbage
from statelog.spark import transform_with_state
from statelog.store import open_store


def workers_of_this_session() -> list[int]:
    """Return the Python workers: children of PySpark's daemon, which descends from this process."""
    parents, daemons = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                daemons.add(pid)

    def is_ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid]))

    return [pid for pid in daemons if parents[pid] in daemons and is_ours(pid)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are found in /proc")
@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_idle_workers_may_be_killed_between_batches(job, delivery):
    batches = [[(key, batch + key) for key in range(30)] for batch in range(5)]
    job.source.add_all(batches)
    killed: list[int] = []

    def kill(frame: Any, batch_id: int) -> None:
        job.collect(frame, batch_id)
        if batch_id % 2:
            for pid in workers_of_this_session():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    job.run(kill, delivery=delivery, tasks=2)
    assert killed
    assert totals_of(batches) == job.take_in_order()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only has TCP_QUICKACK")
@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_a_task_does_not_wait_for_its_connection(job, delivery):
    job.source.add_all([[(1, 1), (2, 2)]] * 2)
    job.run(delivery=delivery, tasks=2, processor=PromptTotals())
    assert job.take_in_order() == [[(1, 1, 1), (2, 2, 1)], [(1, 2, 1), (2, 4, 1)]]


def test_a_query_keeps_its_worker_beside_another(spark, tmp_path):
    jobs = [totals_job(spark, tmp_path / name, SlowTotals(), tasks=1) for name in ("a", "b")]
    for job in jobs:
        job.source.add_all([[(1, 1)]] * 5)
    long, short = jobs
    query = long.start(trigger={"processingTime": "0 seconds"})
    try:
        short.run()  # their tasks run at the same time
        query.processAllAvailable()
        for _ in range(5):
            long.source.add([(1, 1)])
            query.processAllAvailable()
    finally:
        query.stop()
    assert [10, 5] == [len(job.progress) for job in jobs]
    for job in jobs:
        assert [0] * len(job.progress) == [report.catch_up["replayed"] for report in job.progress]
    assert (1, 10, 10) == tuple(long.take()[-1][0])


def test_spark_lets_go_of_a_query_that_has_ended(job, spark):
    """It refers to our function through both garbage collectors, and so must not be kept by it."""
    reference = spark._jvm.java.lang.ref.WeakReference
    executions = []
    for _ in range(4):
        job.source.add([(1, 1)])
        executions.append(reference(job.run()._jsq.streamingQuery()))

    def kept() -> int:
        gc.collect()  # references that Python has
        spark._jvm.System.gc()
        return sum(execution.get() is not None for execution in executions)

    until_s = time.monotonic() + 30
    while kept() > 2 and time.monotonic() < until_s:  # Spark itself keeps the last ones for a while
        time.sleep(0.5)
    assert kept() <= 2


def test_the_driver_forgets_the_answers_of_tasks(job):
    from pyspark.accumulators import _accumulatorRegistry

    seen: list[bool] = []

    def look(frame: Any, batch: int) -> None:
        frame.collect()
        seen.append(any(answers.value for answers in _accumulatorRegistry.values()))

    job.source.add_all([[(1, 1), (2, 2)]] * 3)
    job.run(look, delivery="direct", tasks=2)
    assert [True] * 3 == seen  # those of its own micro-batch
    assert not any(answers.value for answers in _accumulatorRegistry.values())


@pytest.mark.parametrize(("delivery", "inline_bytes"), [("staged", 0), ("direct", 1024 * 1024)])
def test_the_numbers_of_a_batch_are_right(job, delivery, inline_bytes):
    job.source.add_all([[(1, 1), (2, 2), (2, 3)], [(1, 1)]])
    seen: list[set[str]] = [set()]
    new_objects: list[int] = []
    sizes: list[int] = []

    def count(progress: Any) -> None:
        job.progress.append(progress)
        now = objects(job.state)
        new_objects.append(len(now - seen[-1]))
        sizes.append(sum((job.state / name).stat().st_size for name in now - seen[-1]))
        seen.append(now)

    inline = {"stream.data-inline-threshold": inline_bytes}
    job.run(delivery=delivery, tasks=2, on_progress=count, **inline)
    first, second = job.progress
    assert (0, 1, 2, 3, 2, 2) == (
        first.batch_id,
        first.checkpoint_id,
        first.tasks,
        first.rows,
        first.keys,
        first.output_rows,
    )
    assert (1, 1, 1, 1) == (second.batch_id, second.rows, second.keys, second.output_rows)
    assert (0, 2) == (first.state_entries, second.state_entries)
    assert new_objects == [first.objects, second.objects]
    assert sizes == [first.object_bytes, second.object_bytes]
    if inline_bytes:
        assert [1, 1] == new_objects
    assert first.log_bytes < second.log_bytes
    assert not first.replayed
    parts = {name: ms for name, ms in first.milliseconds.items() if name != "total"}
    assert sum(parts.values()) == pytest.approx(first.milliseconds["total"])
    assert json.loads(json.dumps(second.to_json()))["rows"] == 1
    assert "batch 1 checkpoint 2: rows=1 late=0 keys=1 out=1" in str(second)


RETRY = """
import sys
from pathlib import Path
from statelog.demo.java import prepare_environment
prepare_environment()
from pyspark.sql import SparkSession
from tests.support.spark.processors import totals_job

spark = (
    SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m").config("spark.driver.host", "127.0.0.1").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
for delivery in ("staged", "direct"):
    job = totals_job(spark, Path(sys.argv[1]) / delivery)
    job.source.add_all([(key, batch) for key in range(20)] for batch in range(3))
    job.run(tasks=2, **{"stream.data-inline-threshold": 0}, delivery=delivery)
    for batch_id, rows in job.delivered:
        print(delivery, batch_id, sorted(map(tuple, rows)))
spark.stop()
"""


def test_a_retried_task_counts_once_and_its_leftovers_are_swept(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FIRST_ATTEMPT_FAILS)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
    }
    program = subprocess.run(
        [sys.executable, "-c", RETRY, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert 0 == program.returncode, program.stderr[-3000:]
    totals = totals_of([[(key, batch) for key in range(20)] for batch in range(3)])
    expected = [
        f"{delivery} {batch} {sorted(rows)}"
        for delivery in ("staged", "direct")
        for batch, rows in enumerate(totals)
    ]
    prefixes = ("staged ", "direct ")
    assert expected == [line for line in program.stdout.splitlines() if line.startswith(prefixes)]
    # Two tasks in three batches: changes, and with staged delivery rows, in files of their own.
    assert ["dstl"] * 6 + ["output"] * 6 == swept_folders(tmp_path / "staged" / "state")
    assert ["dstl"] * 6 == swept_folders(tmp_path / "direct" / "state")


def swept_folders(location: Path) -> list[str]:
    """Sweep a location and return the folder of each object that went."""
    store = open_store(str(location))
    now = dt.datetime.now(dt.UTC)
    hour = dt.timedelta(hours=1)
    young = collect_garbage(store, min_age=hour, apply=True, now=now)
    assert () == young.deleted
    swept = collect_garbage(store, min_age=hour, apply=True, now=now + 2 * hour)
    assert young.too_young == len(swept.deleted)
    again = collect_garbage(store, min_age=hour, apply=True, now=now + 2 * hour)
    assert () == again.deleted
    assert again.reachable > 0
    return sorted(path.partition("/")[0] for path in swept.deleted)


FIRST_ATTEMPT_FAILS = '''
"""In a worker: the first attempt of each task dies after everything it writes is written."""
import sys

if "pyspark.daemon" in " ".join(sys.orig_argv):
    import statelog.spark.worker.task as task
    from pyspark import TaskContext

    def fail_at(name):
        if name == "before-acknowledge" and TaskContext.get().attemptNumber() == 0:
            raise ConnectionError("this attempt is lost")

    task.fail_point = fail_at
'''


class Slow(StatefulProcessor):
    """Takes its time, so that a stop comes in the middle."""

    def init(self, handle):
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key, rows, timerValues):
        time.sleep(0.05)
        self.seen.update((len(list(rows)),))
        yield Row(key=key[0])


def test_a_stop_in_mid_batch_ends_the_query_without_an_error(spark, tmp_path, capfd):
    begun = tmp_path / "job" / "statelog" / "chk-1" / "_metadata"
    events = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    out = transform_with_state(
        events.selectExpr("value AS key").groupBy("key"), Slow(), "key long", tasks=2
    )
    writer = out.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "job"))
    query = writer.start()
    for _ in range(300):
        if begun.exists():
            break
        time.sleep(0.2)
    time.sleep(3)  # a batch of some hundred keys is under way
    query.stop()
    assert not query.isActive
    assert query.exception() is None
    # Spark's search for an interruption overflows the stack on a stopped job's own error text.
    assert "StackOverflowError" not in capfd.readouterr().err


@pytest.mark.parametrize("by_group", [True, False])
def test_a_job_that_another_cancels_is_reported_as_cancelled(spark, tmp_path, by_group):
    events = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    out = transform_with_state(
        events.selectExpr("value AS key").groupBy("key"), Slow(), "key long", tasks=2
    )
    writer = out.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "job"))
    query = writer.start()
    tracker = spark.sparkContext.statusTracker()
    until = time.monotonic() + 60
    while query.isActive and time.monotonic() < until:
        if tracker.getActiveJobsIds():
            time.sleep(0.3)
            if by_group:
                spark.sparkContext.cancelJobGroup(str(query.runId))
            else:
                spark.sparkContext.cancelAllJobs()
        time.sleep(0.1)
    message = (
        r"^UnavailableError: batch \d+ was not finished, because one of its Spark jobs was cancelled, but "
        r"not by the query's stop\(\): Job \d+ cancelled .*[^.]\. Nothing is lost: start the query "
    )
    with pytest.raises(StreamingQueryException, match=message):
        query.awaitTermination(60)
