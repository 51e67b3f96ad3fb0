"""
The process that `statelog demo` starts, kills and restarts: `python -m statelog.demo.program`.

It runs the job over all input, writes a JSON line for each micro-batch to a pipe, and, if asked to,
verifies the result at the end.  On Spark Connect the server is a child of this process, so that both
end together, and a query that failed is started again, as a user's supervisor does.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statelog import extras
from statelog.demo.check import verify
from statelog.demo.connect_server import ConnectServer
from statelog.demo.java import prepare_environment
from statelog.demo.job import OUTPUT, JobConfig, start_job
from statelog.spark import StatefulProcessor
from statelog.spark.query.progress import BatchProgress

_STARTS: Final = 3
_POLL_SECONDS: Final = 0.2
_CORES: Final = re.compile(r"local\[(\d+)")


class Messages:
    """Sends messages to the parent process, one JSON object per line."""

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
        run_on_connect(config, messages)
        return
    session = open_session(config.master, os.path.dirname(config.checkpoint))
    messages.send("session")
    query = start_job(session, config, messages.batch, processor, output)
    query.awaitTermination()
    verified(session, config, messages)
    session.stop()


def run_on_connect(config: JobConfig, messages: Messages) -> None:
    """
    Run the job over all input on a server of its own, and verify if asked to.

    Raises:
        StreamingQueryException: The query failed more often than it is started again.
    """
    extras.require("the demonstration on Spark Connect", "connect", *extras.PACKAGES["connect"])
    folder = Path(config.checkpoint).parent
    cores = _CORES.match(config.master)
    with ConnectServer(
        folder, folder / "server.log", cores=int(cores[1]) if cores else 2, in_session=True
    ) as server:
        server.wait()
        session = SparkSession.builder.remote(server.url).getOrCreate()
        messages.send("session")
        reported: set[int] = set()
        for start in range(1, _STARTS + 1):
            query: Any = start_job(session, config, None)
            try:
                while not query.awaitTermination(_POLL_SECONDS):
                    _report(query, reported, messages)
                break
            except StreamingQueryException as error:
                if start == _STARTS:
                    raise
                messages.send("failed_query", message=str(error).partition("\n")[0])
        _report(query, reported, messages)
        verified(session, config, messages)
        session.stop()


def _report(query: Any, reported: set[int], messages: Messages) -> None:
    """Send the figures of the micro-batches that were not sent before."""
    for progress in query.recentBatches:
        if progress.batch_id not in reported:
            reported.add(progress.batch_id)
            messages.batch(progress)


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
