"""
A job on event time to be killed: reminders that ring once the watermark has come to them.

Run as a program, as `python -m statelog.demo.program` is.  Its input comes in parts.  After each part
comes a tick, a micro-batch without data in which timers fire; only then the next part appears.  So what a micro-batch holds, and by which watermark its rows are
late, does not depend on where the job was killed.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import timestamp_millis
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from tests.campaigns.chaos.batch_files import BatchFiles, log_everything
from tests.campaigns.chaos.job import SNAPSHOTS
from tests.campaigns.chaos.request_log import log_requests_if_asked

from statelog.demo.job import JobConfig
from statelog.demo.program import Send, finish, main, open_session
from statelog.spark import transform_with_state
from statelog.spark.query.progress import BatchProgress

INPUT = "customer int, n bigint, at_ms bigint, wait_ms bigint, gives_up boolean"
OUTPUT = "customer int, kind string, n bigint, time bigint, watermark bigint, token string"
DELAY_MS = 20_000
AGAIN_MS = 20_000


class Reminders(StatefulProcessor):
    """
    Each row sets a timer, and some rows delete one.

    When a timer fires, some are set again, due already or later, and some delete another.  What was
    set and what fired is kept in states of every kind; where they disagree the job fails.  Each row
    of the output has a token that no two computations share.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.counts = handle.getValueState(
            "counts", "read bigint, registered bigint, deleted bigint, fired bigint"
        )
        self.fired = handle.getListState("fired", "time bigint, watermark bigint")
        self.pending = handle.getMapState("pending", "time bigint", "n bigint, again bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        self.audit(key)
        watermark = timerValues.getCurrentWatermarkInMs()
        for row in sorted(rows, key=lambda row: row.n):
            self.count(read=1)
            if row.gives_up:
                self.give_up()
            self.register(row.at_ms + row.wait_ms, row.n, 0)
            yield tell(key, "row", row.n, row.at_ms, watermark)
        self.audit(key)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        time, watermark = (
            expiredTimerInfo.getExpiryTimeInMs(),
            timerValues.getCurrentWatermarkInMs(),
        )
        if not self.pending.containsKey((time,)):
            raise AssertionError(f"{key}: the timer at {time} fired twice, or was deleted")
        if time > watermark:
            raise AssertionError(f"{key}: the timer at {time} fired at the watermark {watermark}")
        n, again = self.pending.getValue((time,))
        self.pending.removeKey((time,))
        self.fired.appendValue((time, watermark))
        self.count(fired=1)
        if n % 4 == 0 and again < 2:  # due already, or just so: it waits for the next batch
            self.register(watermark if again else time - 1000, n, again + 1)
        elif n % 4 == 1 and again < 1:
            self.register(time + AGAIN_MS, n, again + 1)
        elif n % 4 == 2:
            self.give_up()
        yield tell(key, f"timer {again}", n, time, watermark)

    def count(self, read: int = 0, registered: int = 0, deleted: int = 0, fired: int = 0) -> None:
        before = self.counts.get() or (0, 0, 0, 0)
        more = (read, registered, deleted, fired)
        self.counts.update(tuple(map(sum, zip(before, more, strict=True))))

    def register(self, time: int, n: int, again: int) -> None:
        if not self.pending.containsKey((time,)):
            self.handle.registerTimer(time)
            self.pending.updateValue((time,), (n, again))
            self.count(registered=1)

    def give_up(self) -> None:
        """Delete the latest timer, which may be due in this very batch."""
        times = [time for (time,), _ in self.pending.iterator()]
        if times:
            self.handle.deleteTimer(max(times))
            self.pending.removeKey((max(times),))
            self.count(deleted=1)

    def audit(self, key: Any) -> None:
        """Compare everything that says the same."""
        _, registered, deleted, fired = self.counts.get() or (0, 0, 0, 0)
        pending = sorted(time for (time,), _ in self.pending.iterator())
        listed, rung = list(self.handle.listTimers()), len(list(self.fired.get()))
        if pending != listed or len(pending) != registered - deleted - fired or rung != fired:
            raise AssertionError(
                f"{key}: {registered} timers, {deleted} deleted, {fired} fired, {rung} noted; "
                f"pending {pending}, listed {listed}"
            )


def tell(key: Iterable[Any], kind: str, n: int, time: int, watermark: int) -> Row:
    """Return a row of the output."""
    (customer,) = key
    token = os.urandom(8).hex()
    return Row(customer=customer, kind=kind, n=n, time=time, watermark=watermark, token=token)


def run_once(session: SparkSession, config: JobConfig, send: Send) -> int:
    """Run the query over all files that are there; return the batches it did."""
    done: list[BatchProgress] = []

    def note(progress: BatchProgress) -> None:
        done.append(progress)
        send("batch", progress=progress.to_json())

    events = (
        session.readStream.schema(INPUT)
        .option("maxFilesPerTrigger", 1)
        .parquet(f"{config.folder}/input")
        .withColumn("at", timestamp_millis("at_ms"))
        .withWatermark("at", f"{DELAY_MS} milliseconds")
    )
    reminders = transform_with_state(
        events.groupBy("customer"),
        Reminders(),
        outputStructType=OUTPUT,
        outputMode="Update",
        stateLocation=config.location,
        operator="reminders",
        **SNAPSHOTS,
        on_progress=note,
        **config.operator,
    )
    query = (
        reminders.writeStream.foreachBatch(BatchFiles(Path(config.folder) / "output"))
        .option("checkpointLocation", f"{config.folder}/spark")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return len(done)


def release(folder: Path) -> bool:
    """Let the files of the next part appear; return whether there were any."""
    hidden = sorted(path for path in folder.glob(".part*.parquet"))
    for path in hidden:
        if path.name.partition("-")[0] == hidden[0].name.partition("-")[0]:
            path.rename(path.with_name(path.name[1:]))
    return bool(hidden)


def work(config: JobConfig, send: Send) -> None:
    """Go on where the last run ended, part by part."""
    session = open_session(config)
    send("session")
    folder = Path(config.folder) / "input"
    more = any(folder.glob("part*.parquet")) or release(folder)
    while more:
        while run_once(session, config, send):
            pass  # until a run has nothing left to do
        more = release(folder)
    finish(session, config, send)


if __name__ == "__main__":
    log_everything()
    log_requests_if_asked()
    sys.exit(main(sys.argv[1:], work))
