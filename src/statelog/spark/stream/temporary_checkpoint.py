"""
The temporary checkpointLocation of a query that was given none, where Spark gives one.

Source: Spark's DataStreamWriter and StreamExecution: sinks that a query is run for once, the folder
`temporary-...`, its deletion at the end of a query that did not fail.
"""

from __future__ import annotations

import logging
import shutil
import threading
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("statelog.spark")

SINKS: Final = ("console", "memory", "noop")
"""Formats whose queries get one; `foreach` and `foreachBatch` do as well."""

_FORCE: Final = "spark.sql.streaming.forceDeleteTempCheckpointLocation"
_FILE: Final = "file://"


def temporary_checkpoint(session: SparkSession) -> str:
    """Return a new folder on the driver's disk; the JVM deletes it when it ends, at the latest."""
    jvm: Any = session._jvm
    root = jvm.java.lang.System.getProperty("java.io.tmpdir")
    folder = jvm.org.apache.spark.util.Utils.createTempDir(root, "temporary")
    checkpoint = f"{_FILE}{folder.getCanonicalPath()}"
    _log.warning(
        "the query has no checkpointLocation: its offsets and its state are in the temporary folder "
        "%s, which is deleted when the query ends without an error",
        checkpoint,
    )
    return checkpoint


def delete_at_end(query: StreamingQuery, checkpoint: str, session: SparkSession) -> None:
    """Delete a temporary checkpointLocation once *query* has ended, as Spark does."""
    forced = str(session.conf.get(_FORCE, "false")).lower() == "true"
    jquery = query._jsq

    def wait() -> None:
        try:
            jquery.awaitTermination()
        except Exception as error:
            if not forced:  # Spark leaves what may tell why the query failed
                _log.debug("the temporary folder %s stays: %s", checkpoint, error)
                return
        shutil.rmtree(checkpoint.removeprefix(_FILE), ignore_errors=True)

    threading.Thread(target=wait, name="statelog-temporary", daemon=True).start()
