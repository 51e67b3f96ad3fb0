"""`statelog demo`: its job, its proof, and the whole of it as a user runs it."""

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.house.sources import ROOT
from tests.spark.versions import row_operator

from statelog.demo.check import FIELDS, Verdict, verify
from statelog.demo.data import lay_out, write_orders
from statelog.demo.job import (
    CSV_OPTIONS,
    ORDER_LINES,
    OUTPUT,
    CustomerTotals,
    JobConfig,
    purchases,
    start_job,
)
from statelog.demo.process import JobProcess, processes_of_session
from statelog.errors import StatelogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETAIL = Path(os.environ.get("STATELOG_ONLINE_RETAIL", ROOT / "../shared/data/online-retail"))
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROGRAM = (sys.executable, "-m", "statelog.cli.main", "demo")


@pytest.fixture(scope="module")
def finished(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> tuple[JobConfig, Verdict]:
    """A job that ran to its end in the tests' session."""
    work = tmp_path_factory.mktemp("demo")
    write_orders(work / "orders", orders=240, seed=5, days=6)
    lay_out(work / "orders", work / "input")
    config = JobConfig(
        input=str(work / "input"),
        checkpoint=str(work / "spark"),
        location=str(work / "state"),
        output=str(work / "output"),
        tasks=3,
        files_per_trigger=2,
    )
    start_job(spark, config, lambda _: None).awaitTermination()
    return config, verify(spark, config)


@pytest.fixture
def copied(finished: tuple[JobConfig, Verdict], tmp_path: Path) -> JobConfig:
    """The finished job with an output of its own, to be damaged."""
    config, _ = finished
    shutil.copytree(config.output, tmp_path / "output")
    values = {name: getattr(config, name) for name in config.__struct_fields__}
    return JobConfig(**{**values, "output": str(tmp_path / "output")})


def test_the_result_is_that_of_the_batch_query(finished: tuple[JobConfig, Verdict]) -> None:
    _, verdict = finished
    assert [] == verdict.differences
    assert verdict.exact
    assert (3, 3) == (verdict.batches, verdict.deliveries)
    assert 0 < verdict.dropped_lines < verdict.lines
    assert 0 < verdict.sessions < verdict.orders
    assert verdict.customers == verdict.state_customers > 20


def test_the_processor_runs_as_it_is_on_sparks_own_state(
    spark: "SparkSession", finished: tuple[JobConfig, Verdict], tmp_path: Path
) -> None:
    config, _ = finished
    spark.conf.set(PROVIDER, ROCKS)
    try:
        lines = spark.read.schema(ORDER_LINES).options(**CSV_OPTIONS).csv(config.input)
        grouped = purchases(lines).groupBy("customer")
        processor = CustomerTotals(dt.timedelta(seconds=config.session_gap_seconds))
        rows = row_operator(grouped)(processor, OUTPUT, "Update", "None").collect()
    finally:
        spark.conf.unset(PROVIDER)
    theirs = {row.customer: tuple(row[name] for name in FIELDS) for row in rows}
    ours: dict[str, Any] = {}
    for batch_id in range(3):
        for row in pq.read_table(Path(config.output) / f"batch={batch_id}.parquet").to_pylist():
            ours[row["customer"]] = tuple(row[name] for name in FIELDS)
    assert theirs == ours


def test_a_missing_batch_is_found(spark: "SparkSession", copied: JobConfig) -> None:
    (Path(copied.output) / "batch=1.parquet").unlink()
    verdict = verify(spark, copied)
    assert not verdict.exact
    assert "output: the batches are [0, 2], not 0 to 1" in verdict.differences
    assert any(text.startswith("sum over all batches") for text in verdict.differences)


def test_a_batch_that_counts_twice_is_found(spark: "SparkSession", copied: JobConfig) -> None:
    newest = Path(copied.output) / "batch=2.parquet"
    shutil.copy(newest, Path(copied.output) / "batch=3.parquet")
    verdict = verify(spark, copied)
    assert not verdict.exact
    assert all(text.startswith("sum over all batches") for text in verdict.differences)


def test_rows_that_changed_between_deliveries_are_found(
    spark: "SparkSession", copied: JobConfig
) -> None:
    with open(Path(copied.output) / "deliveries.jsonl", "ab") as log:
        log.write(b'{"batch":2,"rows":1,"digest":"another"}\n{"batch":2,"ro')
    verdict = verify(spark, copied)
    assert ["output: batch 2 was delivered twice, with different rows"] == verdict.differences
    assert 4 == verdict.deliveries


def test_a_job_that_fails_shows_the_end_of_its_log(copied: JobConfig, tmp_path: Path) -> None:
    program = ("-c", "import sys; print('the reason'); sys.exit(3)")
    with (
        pytest.raises(StatelogError, match=r"(?s)status 3.*the reason"),
        JobProcess(copied, tmp_path / "log", program=program) as job,
    ):
        list(job.events())
    assert [] == processes_of_session(job.pid)


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp")}


def run_demo(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [*PROGRAM, "--json", *arguments],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[0]) if len(lines) == 1 else {}, done.stderr


def test_a_job_killed_in_the_middle_is_exact(tmp_path: Path) -> None:
    status, document, shown = run_demo(
        tmp_path, "--orders", "1500", "--batches", "8", "--location", str(tmp_path / "state")
    )
    assert 0 == status, shown
    assert document["exact"]
    assert [] == document["differences"]
    assert {"before": 2, "after": 3} == document["tasks"]
    assert 4 == document["kill"]["batches_before"]
    names = [process["name"] for process in document["kill"]["processes"]]
    assert "java" in names
    assert names.count("python") >= 2  # the driver, and Spark's daemon with its workers
    assert {1, 2} == {batch["run"] for batch in document["micro_batches"]}
    assert document["lines"] > document["dropped_lines"] > 0
    assert "killed" in shown
    assert "exact" in shown
    assert [] == list((tmp_path / "tmp").glob("statelog-demo-*"))
    # The location is the user's: it stays, and is not used twice.
    (tmp_path / "second").mkdir()
    status, _, shown = run_demo(tmp_path / "second", "--location", str(tmp_path / "state"))
    assert 2 == status
    assert "holds state already" in shown


def started(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if "running on" in line:
            return


def test_an_interrupt_ends_the_job_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "--json"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "running on 2 tasks\n" in list(started(process))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        leaders = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(30)
    finally:
        process.kill()
        process.communicate()
    assert [] == list((tmp_path / "tmp").glob("statelog-demo-*"))
    deadline = time.monotonic() + 60
    while any(processes_of_session(leader) for leader in leaders):
        assert time.monotonic() < deadline, "the job lives on"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not RETAIL.is_dir(), reason="the Online Retail data is not here")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--no-kill",),
        ("--tasks-before", "2", "--tasks-after", "7"),
        ("--tasks-before", "7", "--tasks-after", "1", "--delivery", "direct"),
    ],
    ids=" ".join,
)
def test_the_real_data_is_exact(arguments: tuple[str, ...], tmp_path: Path) -> None:
    status, document, shown = run_demo(tmp_path, "--input", str(RETAIL), *arguments)
    assert 0 == status, shown
    assert document["exact"]
    assert 4372 == document["customers"]
    assert (541_909, 135_080) == (document["lines"], document["dropped_lines"])
    assert "9747747.9340" == document["totals"]["total_all_lines"]
