"""Kills of the client, of the query's process in the server and of the server: the rows are exact."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.house.sources import ROOT
from tests.spark.connect.client import URL
from tests.spark.connect.jobs import ConnectJob
from tests.spark.connect.server import ConnectServer
from tests.spark.connect.sessions import connected
from tests.spark.processors import INPUT, TOTALS, SlowTotals, Totals, TotalsModel
from tests.spark.streams import TIMEOUT_SECONDS, BatchSource, until, workers_get_by_value

from statelog.demo.process import processes_of_session
from statelog.runtime.fail_points import VARIABLE

for module in (__name__, "tests.spark.processors"):
    workers_get_by_value(module)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEED = 7
BATCHES = 6


def input_of(seed: int) -> list[list[tuple[int, int]]]:
    rng = random.Random(seed)
    return [[(rng.randrange(9), rng.randrange(100)) for _ in range(20)] for _ in range(BATCHES)]


def job_in(folder: Path, session: Any, processor: Totals) -> ConnectJob:
    source = BatchSource(session, folder / "in", INPUT)
    return ConnectJob(source, folder, ["key"], processor, TOTALS, {"tasks": 2})


def check(job: ConnectJob, batches: list[list[tuple[int, int]]]) -> None:
    model = TotalsModel()
    wanted = [model.apply(rows) for rows in batches]
    found = [sorted(tuple(row.values()) for row in rows) for rows in job.sink.batches()]
    assert found == wanted


def server_in(folder: Path, **options: Any) -> ConnectServer:
    server = ConnectServer(folder, folder / "server.log", **options)
    try:
        server.wait()
    except BaseException:
        server.kill()
        raise
    return server


def test_a_query_outlives_its_client(tmp_path: Path) -> None:
    batches = input_of(SEED)
    with server_in(tmp_path) as server:
        with connected(server.url) as session:
            job = job_in(tmp_path, session, Totals())
            job.source.add(batches[0])
            with subprocess.Popen(
                [sys.executable, "-m", "tests.spark.connect.client", str(tmp_path)],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT), URL: server.url},
                cwd=ROOT,
            ) as client:
                try:
                    assert client.stdout is not None
                    assert client.stdout.readline() == b"started\n"
                finally:
                    client.kill()
            for rows in batches[1:4]:
                job.source.add(rows)
            until(lambda: len(job.sink.batches()) == 4, "the batches after the client's end")
        assert len(server.batch_workers()) == 1
    with server_in(tmp_path) as server, connected(server.url) as session:
        job = job_in(tmp_path, session, Totals())
        job.source._count = 4  # this source did not write the files that there are
        for rows in batches[4:]:
            job.source.add(rows)
        job.run(tasks=3)
        check(job, batches)


@pytest.mark.parametrize("point", ["before-commit", "after-commit", "after-sink"])
def test_the_querys_process_dies_at_each_second_batch(tmp_path: Path, point: str) -> None:
    batches, deaths = input_of(SEED + 1), 0
    with (
        server_in(tmp_path, environment={VARIABLE: f"{point}:2"}) as server,
        connected(server.url) as session,
    ):
        job = job_in(tmp_path, session, Totals())
        for rows in batches:
            job.source.add(rows)
        for tasks in (1, 2, 3, 2, 1, 3, 2, 1):
            try:
                job.run(tasks=tasks)
                break
            except StreamingQueryException as error:
                deaths += 1
                assert str(error).startswith("UnavailableError: the server's Python process")
        assert deaths >= BATCHES // 2, "the process did not die"
        check(job, batches)


def test_a_kill_of_the_querys_process_and_one_of_the_server(tmp_path: Path) -> None:
    batches = input_of(SEED + 2)
    server = server_in(tmp_path)
    try:
        with connected(server.url) as session:
            job = job_in(tmp_path, session, SlowTotals())
            for rows in batches:
                job.source.add(rows)
            query = job.start()
            until(lambda: len(job.sink.batches()) == 1, "the first batch")
            time.sleep(0.3)  # into the second
            (worker,) = server.batch_workers()
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(StreamingQueryException):
                query.awaitTermination(TIMEOUT_SECONDS)
            assert 1 <= len(job.sink.batches()) < BATCHES
            before = len(job.sink.batches())
            job.start(tasks=3)
            until(lambda: len(job.sink.batches()) > before, "a batch after the kill")
            time.sleep(0.3)
            killed = server.kill()
            assert "java" in killed.values()
            assert not processes_of_session(next(iter(killed)))
            assert len(job.sink.batches()) < BATCHES
    finally:
        server.kill()
    with server_in(tmp_path) as server, connected(server.url) as session:
        job = job_in(tmp_path, session, Totals())
        query = job.run(tasks=1)
        assert query.lastBatch is not None
        check(job, batches)


def test_a_checkpoint_location_that_only_spark_reaches(tmp_path: Path) -> None:
    """With kills of the query's process; the state is on local disk."""
    batches, deaths = input_of(SEED + 3), 0
    (tmp_path / "mounted").mkdir()
    mounted = "spark.hadoop.fs.viewfs.mounttable.statelog.link./q"
    settings = {mounted: (tmp_path / "mounted").as_uri()}
    environment = {VARIABLE: "after-commit:3"}
    with (
        server_in(tmp_path, settings=settings, environment=environment) as server,
        connected(server.url) as session,
    ):
        job = job_in(tmp_path, session, Totals())
        job.checkpoint = "viewfs://statelog/q/query"
        for rows in batches:
            job.source.add(rows)
        for tasks in (1, 2, 3, 2):
            try:
                job.run(tasks=tasks)
                break
            except StreamingQueryException:
                deaths += 1
        assert deaths >= 1, "the process did not die"
        assert (tmp_path / "mounted" / "query" / "metadata").exists()
        check(job, batches)
