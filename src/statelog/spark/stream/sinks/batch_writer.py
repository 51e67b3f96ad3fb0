"""
The sink of Spark's batch writer: each micro-batch is appended.

A micro-batch that is delivered again is appended again, except to Delta tables: Delta skips a
transaction whose application id and version it has.
Source: Delta Lake's writer options txnAppId and txnVersion.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark.sql import DataFrame

from statelog.spark.query.delivery import Sink
from statelog.spark.query.writer_name import writer_id
from statelog.spark.stream.sinks.target import Target

_log = logging.getLogger("statelog.spark")

DELTA: Final = "delta"
_APPLICATION: Final = "txnAppId"
_VERSION: Final = "txnVersion"
_DISCARDS: Final = "noop"


def batch_writer(target: Target, source: str, *, appends_again: bool = True) -> Sink:
    """
    Return a sink that appends each micro-batch with Spark's batch writer.

    Args:
        target: Where to write.
        source: The format that Spark will use, in lower case.
        appends_again: Whether to warn that a batch which is delivered again is appended again.
    """
    is_delta = source == DELTA
    if appends_again and not is_delta and source != _DISCARDS:
        _log.warning(
            "the output (%s) is written at least once: a micro-batch that is delivered again after "
            "a failure is appended again. For exactly once see docs/how-to/exactly-once-sinks.md",
            target.table or target.source or source,
        )

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.mode("append").options(**target.options())
        if is_delta:
            application = target.option(_APPLICATION, None) or writer_id(frame)
            writer = writer.option(_APPLICATION, application).option(_VERSION, batch_id)
        if target.source is not None:
            writer = writer.format(target.source)
        if target.partition_by:
            writer = writer.partitionBy(*target.partition_by)
        if target.cluster_by:
            writer = writer.clusterBy(*target.cluster_by)
        if target.table is not None:
            writer.saveAsTable(target.table)
        else:
            writer.save()

    return write
