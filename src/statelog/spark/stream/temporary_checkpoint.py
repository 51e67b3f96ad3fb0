"""
Make and delete a temporary checkpointLocation.

Source: Spark's DataStreamWriter and StreamExecution: the sinks of one-time queries, the folder
`temporary-...`, its deletion at the end of a query that did not fail.
"""

from __future__ import annotations

import logging
import shutil
import threading
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from statelog.spark.jvm.files import temporary_folder
from statelog.spark.jvm.queries import wait_for_end

_log = logging.getLogger("statelog.spark")

SINKS: Final = ("console", "memory", "noop")
"""Formats whose queries get a temporary one, as with `foreach` and `foreachBatch`."""

_FORCE: Final = "spark.sql.streaming.forceDeleteTempCheckpointLocation"
_FILE: Final = "file://"


def temporary_checkpoint(session: SparkSession) -> str:
    """
    Return a new folder on the driver's disk.

    The JVM deletes it at its exit at the latest.
    """
    checkpoint = f"{_FILE}{temporary_folder(session)}"
    _log.warning(
        "the query has no checkpointLocation: its offsets and its state are in the temporary folder "
        "%s, which is deleted when the query ends without an error",
        checkpoint,
    )
    return checkpoint


def delete_at_end(query: StreamingQuery, checkpoint: str, session: SparkSession) -> None:
    """Delete a temporary checkpointLocation when *query* ends, as Spark does."""
    forced = str(session.conf.get(_FORCE, "false")).lower() == "true"
    wait_for = wait_for_end(query)

    def wait() -> None:
        try:
            wait_for()
        except Exception as error:
            if not forced:  # kept, as by Spark, to find out why the query failed
                _log.debug("the temporary folder %s is kept: %s", checkpoint, error)
                return
        shutil.rmtree(checkpoint.removeprefix(_FILE), ignore_errors=True)

    threading.Thread(target=wait, name="statelog-temporary", daemon=True).start()
