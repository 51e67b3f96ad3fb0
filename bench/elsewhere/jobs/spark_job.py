"""
Spark and statelog on Spark: a result for each key and micro-batch of two files.

`spark_job.py PEER`, where PEER is one of `bench.peers` for `totals`, and spark-tws, statelog-staged or statelog-direct
for `last_ten`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import peers
from bench.harness.query_run import noop
from bench.harness.session import HEAP, PROVIDER, ROCKSDB, session
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StreamingQueryListener

from statelog.spark import transform_with_state

DATA = Path(os.environ["ELSEWHERE_DATA"])
ANSWERS = os.environ.get("ELSEWHERE_ANSWERS")
LAST = "key long, last array<double>"


class LastTen(StatefulProcessor):
    """The last ten values of each key."""

    def init(self, handle: Any) -> None:
        """Declare one value state."""
        self._last = handle.getValueState("last", "last array<double>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows of one key."""
        (last,) = self._last.get() or ([],)
        last = [*last, *(row.value for row in rows)][-10:]
        self._last.update((last,))
        yield Row(key=key[0], last=last)

    def close(self) -> None:
        """Do nothing."""


class Marks(StreamingQueryListener):
    """Writes a mark for each micro-batch with events."""

    def __init__(self) -> None:
        self._events = 0
        path = f"{os.environ['ELSEWHERE_MARKS']}/{os.getpid()}"
        self._file = open(path, "a", encoding="ascii")

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Add the events of a micro-batch; called right after it."""
        if event.progress.numInputRows:
            self._events += event.progress.numInputRows
            print(time.time(), self._events, file=self._file, flush=True)


def stream_of(peer: str, grouped: Any) -> Any:
    """Return the stream of results."""
    if os.environ["ELSEWHERE_QUERY"] == "totals":
        make = peers.PEERS[peer].frame
        assert make is not None
        return make(grouped, lambda report: None)
    if peer == "spark-tws":
        return grouped.transformWithState(LastTen(), LAST, "Update", "None")
    return transform_with_state(grouped, LastTen(), LAST, delivery=peer.rpartition("-")[2])


def write_answers(frame: DataFrame, batch_id: int) -> None:
    """Append the results of a micro-batch to one file."""
    with open(f"{ANSWERS}/answers", "a", encoding="ascii") as file:
        for row in frame.collect():
            numbers = row[1] if isinstance(row[1], list) else row[1:]
            print(row[0], *numbers, file=file)


def main() -> None:
    """Run the query to the end of the files."""
    peer = sys.argv[1]
    provider = HEAP if peer.endswith("-heap") else ROCKSDB
    with session(settings={PROVIDER: provider}) as (spark, _):
        spark.streams.addListener(Marks())
        events = spark.readStream.schema("key long, value double")
        events = events.option("maxFilesPerTrigger", 2).parquet(str(DATA / "parquet"))
        frame = stream_of(peer, events.groupBy("key"))
        writer = frame.writeStream.outputMode("update")
        writer = writer.option("checkpointLocation", f"{os.environ['ELSEWHERE_STATE']}/query")
        query = writer.foreachBatch(write_answers if ANSWERS else noop).trigger(availableNow=True)
        query.start().awaitTermination()
        time.sleep(1)  # until the listener has been called with the last micro-batch


if __name__ == "__main__":
    main()
