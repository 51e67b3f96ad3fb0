"""Kills of the client, of the query's process in the server and of the server: the rows are exact."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.house.sources import ROOT
from tests.support.spark.connect.client import URL
from tests.support.spark.connect.jobs import ConnectJob, connect_job
from tests.support.spark.connect.server import ConnectServer
from tests.support.spark.connect.sessions import connected
from tests.support.spark.processors import SlowTotals, totals_of
from tests.support.spark.streams import TIMEOUT_SECONDS, until

from statelog.demo.process import processes_of_session
from statelog.runtime.fail_points import VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEED = 7
BATCHES = 6


def input_of(seed: int) -> list[list[tuple[int, int]]]:
    rng = random.Random(seed)
    return [[(rng.randrange(9), rng.randrange(100)) for _ in range(20)] for _ in range(BATCHES)]


def deaths_before_the_end(job: ConnectJob, numbers_of_tasks: Sequence[int]) -> int:
    """Run the job until a run ends; return how often its process died before."""
    for deaths, tasks in enumerate(numbers_of_tasks):
        try:
            job.run(tasks=tasks)
            return deaths
        except StreamingQueryException as error:
            assert str(error).startswith("UnavailableError: the server's Python process")
    raise AssertionError("no run ended")


def server_in(folder: Path, **options: Any) -> ConnectServer:
    server = ConnectServer(folder, folder / "server.log", **options)
    try:
        server.wait()
    except BaseException:
        server.kill()
        raise
    return server


def test_a_query_outlives_its_client(tmp_path):
    batches = input_of(SEED)
    with server_in(tmp_path) as server:
        with connected(server.url) as session:
            job = connect_job(session, tmp_path)
            job.source.add(batches[0])
            with subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.connect.client", str(tmp_path)],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT), URL: server.url},
                cwd=ROOT,
            ) as client:
                try:
                    assert client.stdout is not None
                    assert client.stdout.readline() == b"started\n"
                finally:
                    client.kill()
            job.source.add_all(batches[1:4])
            until(lambda: len(job.sink.batches()) == 4, "the batches after the client's end")
        assert len(server.batch_workers()) == 1
    with server_in(tmp_path) as server, connected(server.url) as session:
        job = connect_job(session, tmp_path)
        job.source.count = 4  # this source did not write the files that there are
        job.source.add_all(batches[4:])
        job.run(tasks=3)
        assert job.sink.in_order() == totals_of(batches)


@pytest.mark.parametrize(
    ("point", "is_mounted"),
    [
        ("before-commit", False),
        ("after-commit", False),
        ("after-commit", True),
        ("after-sink", False),
    ],
)
def test_the_querys_process_dies_at_each_second_batch(tmp_path, point, is_mounted):
    """With the checkpointLocation where only Spark reaches it, too; the state is on local disk."""
    batches = input_of(SEED + 1)
    (tmp_path / "mounted").mkdir()
    mounted = "spark.hadoop.fs.viewfs.mounttable.statelog.link./q"
    settings = {mounted: (tmp_path / "mounted").as_uri()}
    environment = {VARIABLE: f"{point}:2"}
    with (
        server_in(tmp_path, settings=settings, environment=environment) as server,
        connected(server.url) as session,
    ):
        job = connect_job(session, tmp_path)
        if is_mounted:
            job.checkpoint = "viewfs://statelog/q/query"
        job.source.add_all(batches)
        deaths = deaths_before_the_end(job, (1, 2, 3, 2, 1, 3, 2, 1))
        assert deaths >= BATCHES // 2, "the process did not die"
        assert is_mounted == (tmp_path / "mounted" / "query" / "metadata").exists()
        assert job.sink.in_order() == totals_of(batches)


def test_a_kill_of_the_querys_process_and_one_of_the_server(tmp_path):
    batches = input_of(SEED + 2)
    server = server_in(tmp_path)
    try:
        with connected(server.url) as session:
            job = connect_job(session, tmp_path, SlowTotals())
            job.source.add_all(batches)
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
        job = connect_job(session, tmp_path)
        query = job.run(tasks=1)
        assert query.lastBatch is not None
        assert job.sink.in_order() == totals_of(batches)
