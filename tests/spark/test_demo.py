"""`statelog demo`: its job, its proof, and the whole of it as a user runs it."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from tests.house.sources import ROOT
from tests.support.spark.streams import ON_ROCKSDB, configured, until
from tests.support.spark.versions import row_operator

from statelog.demo.job import FIELDS, OUTPUT, CustomerTotals, JobConfig, read_lines, start_job
from statelog.demo.process import JobProcess, processes_of_session, write_orders
from statelog.demo.program import check
from statelog.errors import StatelogError

RETAIL = Path(os.environ.get("STATELOG_ONLINE_RETAIL", ROOT / "../shared/data/online-retail"))
PROGRAM = (sys.executable, "-m", "statelog.cli.main", "demo")


def config_in(folder: Path, **more: Any) -> JobConfig:
    location = str(folder / "state")
    return JobConfig(folder=str(folder), location=location, operator={"tasks": 3}, **more)


@pytest.fixture(scope="module")
def finished(spark, tmp_path_factory):
    """The folder of a job that ran to its end in the tests' session."""
    folder = tmp_path_factory.mktemp("demo")
    write_orders(folder / "input", orders=240, days=3, seed=5)
    start_job(spark, config_in(folder), lambda _: None).awaitTermination()
    return folder


def newest(rows: list[Row]) -> dict[str, tuple[Any, ...]]:
    return {row.customer: tuple(row[name] for name in FIELDS) for row in rows}


def test_the_result_is_that_of_the_batch_query(spark, finished):
    result = check(spark, config_in(finished))
    assert [] == result["differences"]
    assert result["exact"]
    assert 3 == result["batches"]
    assert 240 == result["orders"]
    assert 20 < result["customers"] < result["sessions"] < result["orders"] < result["lines"]


def test_the_processor_runs_unchanged_on_sparks_state(spark, finished):
    with configured(spark, ON_ROCKSDB):
        grouped = read_lines(spark.read, config_in(finished)).groupBy("customer")
        rows = row_operator(grouped)(CustomerTotals(), OUTPUT, "Update", "None").collect()
    assert newest(rows) == newest(
        spark.read.parquet(str(finished / "output")).orderBy("batch").collect()
    )


def test_what_is_wrong_is_found(spark, finished, tmp_path):
    def checked(name: str, damage: Callable[[Path], object]) -> dict[str, Any]:
        copy = Path(shutil.copytree(finished, tmp_path / name))
        damage(copy)
        result = check(spark, config_in(copy))
        assert not result["exact"]
        return result

    missing = checked("missing", lambda copy: shutil.rmtree(copy / "output" / "batch=1"))
    assert 2 == missing["batches"]
    assert any(text.startswith("lines of all batches") for text in missing["differences"])
    twice = checked(
        "twice", lambda copy: shutil.copytree(copy / "output/batch=2", copy / "output/batch=3")
    )
    assert all(text.startswith("lines of all batches") for text in twice["differences"])
    first, *others = (finished / "input" / "00002.csv").read_text().splitlines(keepends=True)
    other_input = checked(
        "state", lambda copy: (copy / "input" / "00002.csv").write_text("".join(others))
    )
    assert other_input["difference_count"] >= 2
    wrong = f"state, account: wrong {first.partition(',')[0]}, "
    assert any(wrong in text for text in other_input["differences"])


def test_a_job_that_fails_shows_the_end_of_its_log(tmp_path):
    program = ("-c", "import sys; print('the reason', file=sys.stderr); sys.exit(3)")
    with (
        pytest.raises(StatelogError, match=r"(?s)status 3.*the reason"),
        JobProcess(config_in(tmp_path), tmp_path / "log", program=program) as job,
    ):
        list(job.events())
    assert {} == processes_of_session(job.process.pid)


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp")}


def run_demo(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    program = subprocess.run(
        [*PROGRAM, "--json", *arguments],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = program.stdout.splitlines()
    return program.returncode, json.loads(lines[0]) if len(lines) == 1 else {}, program.stderr


def test_a_job_killed_in_the_middle_is_exact(tmp_path):
    status, document, shown = run_demo(
        tmp_path, "--orders", "1500", "--batches", "8", "--location", str(tmp_path / "state")
    )
    assert 0 == status, shown
    assert document["exact"]
    assert [] == document["differences"]
    assert {"before": 2, "after": 3} == document["tasks"]
    assert document["kill"]["batch_id"] >= 4
    names = document["kill"]["processes"]
    assert "java" in names
    assert names.count("python") >= 2  # the driver, and Spark's daemon with its workers
    assert {1, 2} == {batch["run"] for batch in document["micro_batches"]}
    assert 1500 == document["orders"]
    assert "killed" in shown
    assert "exact" in shown
    assert [] == list((tmp_path / "tmp").glob("statelog-demo-*"))
    # The location is the user's: it stays, and is not used twice.
    (tmp_path / "second").mkdir()
    status, _, shown = run_demo(tmp_path / "second", "--location", str(tmp_path / "state"))
    assert 2 == status
    assert "already contains state" in shown


def started(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if "running on" in line:
            return


def test_an_interrupt_ends_the_job_and_leaves_nothing(tmp_path):
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
    until(lambda: not any(map(processes_of_session, leaders)), "the end of the job")


RETAIL_COLUMNS = ("InvoiceNo", "InvoiceDate", "Country", "Quantity", "UnitPrice")


def write_retail(folder: Path, files: int) -> None:
    """Write the real order lines in the columns of the demonstration, in fewer files."""
    folder.mkdir()
    days = sorted(RETAIL.glob("*.csv"))
    for number in range(files):
        target = folder / f"{number:05}.csv"
        with open(target, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            for day in days[number * len(days) // files : (number + 1) * len(days) // files]:
                with open(day, newline="", encoding="utf-8") as opened:
                    for row in csv.DictReader(opened):
                        if row["CustomerID"]:
                            customer = row["CustomerID"].removesuffix(".0")
                            writer.writerow([customer, *(row[name] for name in RETAIL_COLUMNS)])
        os.utime(target, (1_700_000_000 + number,) * 2)


@pytest.mark.slow
@pytest.mark.skipif(not RETAIL.is_dir(), reason="the Online Retail data is not here")
@pytest.mark.parametrize(("tasks", "delivery"), [((2, 7), "staged"), ((7, 1), "direct")])
def test_the_real_data_is_exact(tasks, delivery, tmp_path):
    write_retail(tmp_path / "input", 24)

    def run(count: int, *, last: bool) -> JobProcess:
        operator = {"tasks": count, "delivery": delivery}
        location = str(tmp_path / "state")
        config = JobConfig(folder=str(tmp_path), location=location, operator=operator, check=last)
        return JobProcess(config, tmp_path / "log")

    with run(tasks[0], last=False) as job:
        for message in job.events():
            if message.get("progress", {}).get("batch_id") == 11:
                break
        time.sleep(0.3)
        job.kill()
    with run(tasks[1], last=True) as job:
        (result,) = [message for message in job.events() if message["event"] == "checked"]
    assert [] == result["differences"]
    assert result["exact"]
    assert 4372 == result["customers"]
    assert 541_909 - 135_080 == result["lines"]
