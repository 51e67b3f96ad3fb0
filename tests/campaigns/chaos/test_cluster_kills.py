"""
A cluster whose executors are killed: three workers as processes, state on a real S3 server.

`STATELOG_CLUSTER_KILLS` (20) is the number of executors that SIGKILL ends over both numbers of tasks.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.standalone import standalone_cluster
from tests.support.project import evidence
from tests.support.servers.real_stores import seaweedfs_server
from tests.support.spark.processors import TotalsModel

import statelog
from statelog.demo.java import prepare_environment
from statelog.demo.process import kill_session, start_program

ROOT = Path(__file__).parents[3]
WORKERS = 3
KEYS = 300
ROWS = 400
KILLS = int(os.environ.get("STATELOG_CLUSTER_KILLS", "20"))
SEED = 20261125


def environment() -> dict[str, str]:
    prepare_environment()
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
    }


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master and its workers on the loopback interface; each worker is a host of its own."""
    with standalone_cluster(tmp_path, environment(), workers=WORKERS) as url:
        yield url


def executors(folder: Path) -> list[int]:
    """Return the process ids of the executors of this cluster."""
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            here = os.readlink(entry / "cwd") if b"CoarseGrainedExecutorBackend" in command else ""
            if here.startswith(str(folder)):
                pids.append(int(entry.name))
    return pids


def write_input(folder: Path, batches: int, rng: random.Random) -> list[list[list[int]]]:
    """Write a file for each micro-batch; return what each must deliver."""
    (folder / "in").mkdir(parents=True)
    model, expected = TotalsModel(), []
    for number in range(batches):
        rows = [(rng.randrange(KEYS), rng.randrange(1000)) for _ in range(ROWS)]
        path = folder / "in" / f"{number:04}.json"
        path.write_text("".join(json.dumps({"key": k, "amount": a}) + "\n" for k, a in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)
        expected.append(sorted(map(list, model.apply(rows))))
    return expected


def run_job(
    master: str, folder: Path, state: str, options: dict[str, Any], kills: int, **asked: Any
) -> tuple[int, dict[str, Any]]:
    """Run the job to its end, kill executors meanwhile; return how many, and what it noted."""
    told = {"master": master, "folder": str(folder), "state": state, "options": options, **asked}
    log, killed, rng = folder / "job.log", 0, random.Random(SEED)
    program = str(Path(__file__).with_name("cluster_job.py"))
    job = start_program(
        [sys.executable, program, json.dumps(told)], log=log, environment=environment()
    )
    deadline = time.monotonic() + 900
    try:
        while job.poll() is None and time.monotonic() < deadline:
            time.sleep(rng.uniform(1.0, 3.0))
            running = executors(folder.parent)
            begun = any((folder / "delivered").glob("*.json"))
            if killed < kills and begun and len(running) == WORKERS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(running), signal.SIGKILL)
                    killed += 1
        text = log.read_text(errors="replace")
        assert 0 == job.poll(), text[-3000:]
    finally:
        kill_session(job)
    return killed, json.loads((folder / "times.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_row_is_exact_after_executors_were_killed(tmp_path: Path, master: str) -> None:
    figures: dict[str, Any] = {}
    with (
        seaweedfs_server() as server,
        evidence.campaign(
            "kills of executors on a cluster",
            "standalone, 3 workers, SeaweedFS",
            seeds=[SEED],
            servers=[evidence.server("SeaweedFS")],
            spark=True,
        ) as record,
    ):
        server.make_bucket("cluster")
        for tasks, delivery in ((8, "staged"), (32, "direct")):
            for kills in (0, KILLS // 2):
                name = f"{tasks}-{kills}"
                folder = tmp_path / name
                # A micro-batch takes about as long as an executor lives, so that each is hit.
                batches = 12 if not kills else 4 * kills
                expected = write_input(folder, batches, random.Random(tasks + kills))
                state = f"s3://cluster/{name}"
                killed, noted = run_job(
                    master, folder, state, server.options, kills, tasks=tasks, delivery=delivery
                )
                delivered = [
                    json.loads((folder / "delivered" / f"{at}.json").read_text())
                    for at in range(batches)
                ]
                assert expected == delivered
                with statelog.open(state, storage_options=server.options) as opened:
                    rows = opened.table("total").to_pylist()
                final = {key: [total, count] for batch in expected for key, total, count in batch}
                assert final == {
                    row["key.key"]: [row["value.total"], row["value.rows"]] for row in rows
                }
                record.kills += killed
                record.runs += 1
                record.commits += batches
                figures[name] = {
                    "micro_batches": batches,
                    "killed": killed,
                    "median_ms": statistics.median(noted["ms"][1:]),
                    "replayed": sum(times.get("replayed", 0) for times in noted["catch_up"]),
                }
                print(name, figures[name], flush=True)
        record.counts.update(
            {
                f"median ms of a micro-batch, {name}": int(run["median_ms"])
                for name, run in figures.items()
            }
        )
        assert record.kills >= KILLS * 0.8
