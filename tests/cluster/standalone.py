"""A standalone cluster of Spark as processes on the loopback interface."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from statelog.demo.process import kill_session, start_program

START_S = 90


@contextmanager
def standalone_cluster(
    folder: Path, variables: Mapping[str, str], *, workers: int
) -> Iterator[str]:
    """Run a master and workers, each on one core; yield the URL of the master."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    started, log = [], folder / "master.log"

    def start(program: str, *arguments: str, log: Path) -> None:
        command = [spark_class, f"org.apache.spark.deploy.{program}", *arguments]
        started.append(
            start_program([*command, "--webui-port", "0"], log=log, environment=variables)
        )

    try:
        start("master.Master", "--host", "127.0.0.1", "--port", "0", log=log)
        url = wait_for(log, r"Starting Spark master at (spark://\S+)", 1)
        for index in range(workers):
            place = ["--host", f"127.0.0.{index + 1}", "--work-dir", str(folder / f"w{index}")]
            size = ["--cores", "1", "--memory", "1g"]
            start("worker.Worker", *place, *size, url, log=folder / f"worker-{index}.log")
        wait_for(log, "Registering worker", workers)
        yield url
    finally:
        for process in reversed(started):
            kill_session(process)


def wait_for(log: Path, pattern: str, times: int) -> str:
    """Wait until a log says something so many times; return the last group, if there is one."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = re.findall(pattern, log.read_text(errors="replace"))
        if len(found) >= times:
            return str(found[-1])
        time.sleep(0.1)
    raise AssertionError(f"{pattern!r} is not in {log}: {log.read_text()[-2000:]}")
