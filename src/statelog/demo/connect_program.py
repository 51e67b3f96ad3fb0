"""
The demonstration's job on Spark Connect: a server, a client, and a query that is started again.

The server is a child of the client here, so that both end together.  The query is started again
after its process in the server was killed, as a user's supervisor would do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statelog import extras
from statelog.demo.connect_server import ConnectServer
from statelog.demo.job import JobConfig, start_job

if TYPE_CHECKING:
    from statelog.demo.program import Messages

_STARTS: Final = 3
_POLL_SECONDS: Final = 0.2
_CORES: Final = re.compile(r"local\[(\d+)")


def run_on_connect(config: JobConfig, messages: Messages) -> None:
    """
    Run the job over all input on a server of its own, and verify if asked to.

    Args:
        config: The run.
        messages: Sends the progress.

    Raises:
        StreamingQueryException: The query failed more often than it is started again.
    """
    from statelog.demo.program import verified

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
