"""
The process that `statelog demo` starts, kills and restarts: `python -m statelog.demo.program`.

It runs the job over all input, writes a JSON line for each micro-batch to a pipe, and, if asked to,
verifies the result at the end.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence

import msgspec
from pyspark.sql import SparkSession

from statelog.demo.check import verify
from statelog.demo.java import prepare_environment
from statelog.demo.job import OUTPUT, JobConfig, start_job
from statelog.spark import StatefulProcessor
from statelog.spark.query.progress import BatchProgress


class Messages:
    """
    Sends messages to the parent process, one JSON object per line.

    Args:
        descriptor: The pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: str, **facts: object) -> None:
        """Send one message."""
        data = msgspec.json.encode({"event": event, **facts}) + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def batch(self, progress: BatchProgress) -> None:
        """Send the figures of a micro-batch."""
        self.send("batch", progress=progress.to_json())


def open_session(master: str, scratch: str) -> SparkSession:
    """Start a small, quiet, local Spark."""
    session = (
        SparkSession.builder.master(master)
        .appName("statelog demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.warehouse.dir", os.path.join(scratch, "warehouse"))
        .config("spark.local.dir", os.path.join(scratch, "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("WARN")
    return session


def run(
    config: JobConfig,
    messages: Messages,
    processor: StatefulProcessor | None = None,
    output: str = OUTPUT,
) -> None:
    """
    Run the job over all input, and verify if asked to.

    Args:
        config: The run.
        messages: Sends the progress.
        processor: The processor; None for `CustomerTotals`.
        output: The schema of its output rows.
    """
    prepare_environment()
    if config.connect:
        from statelog.demo.connect_program import run_on_connect

        run_on_connect(config, messages)
        return
    session = open_session(config.master, os.path.dirname(config.checkpoint))
    messages.send("session")
    query = start_job(session, config, messages.batch, processor, output)
    query.awaitTermination()
    verified(session, config, messages)
    session.stop()


def verified(session: SparkSession, config: JobConfig, messages: Messages) -> None:
    """Report that the job has finished, and the verdict if asked to."""
    messages.send("finished")
    if config.verify:
        messages.send("verdict", verdict=msgspec.to_builtins(verify(session, config)))


def main(arguments: Sequence[str], work: Callable[[JobConfig, Messages], None] = run) -> int:
    """
    Call *work*.

    The arguments are a `JobConfig` in JSON and the number of the pipe.
    """
    config = msgspec.json.decode(arguments[0], type=JobConfig)
    messages = Messages(int(arguments[1]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        work(config, messages)
    except Exception as error:
        traceback.print_exc()
        messages.send("failed", message=f"{type(error).__name__}: {error}")
        return 1
    return 0


def _end_with_parent() -> None:
    """End the process when standard input ends, as with the parent."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)  # the JVM and the workers end with their driver


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
