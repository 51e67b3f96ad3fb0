"""Jobs that tests run as programs and kill: their session, and the process around them."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession
from tests.house.sources import ROOT

from statelog.demo.java import prepare_environment
from statelog.demo.process import processes_of_session
from statelog.runtime.fail_points import VARIABLE


def session() -> SparkSession:
    prepare_environment()
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def run_killed(
    folder: Path, program: Sequence[object], fail_points: str, delivery: str = "staged"
) -> int:
    """Run a job as a process that dies at a fail point; return its exit status."""
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", VARIABLE: fail_points,
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
        "DELIVERY": delivery,
    }  # fmt: skip
    name, *arguments = map(str, program)
    command = [sys.executable, str(ROOT / "tests" / "spark" / name), str(folder), *arguments]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait(180)
        finally:
            for other in processes_of_session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
            process.wait()
