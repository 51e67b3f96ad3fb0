"""
The demonstration's job with rows that differ whenever they are computed, and with every state twice.

Run as a program, as `python -m statelog.demo.program` is.  A batch that is computed again instead of
being redelivered shows by its tokens.  What the demonstration keeps is kept again in states of every
kind, with and without a time to live, and as timers; where they disagree the job fails.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from tests.campaigns.chaos.batch_files import BatchFiles, log_everything
from tests.campaigns.chaos.request_log import log_requests_if_asked

from statelog.demo.job import OUTPUT, CustomerTotals, JobConfig, read_lines
from statelog.demo.program import Send, finish, main, open_session
from statelog.spark import (
    ExpiredTimerInfo,
    StatefulProcessorHandle,
    TimerValues,
    transform_with_state,
)

SNAPSHOTS = {"snapshot.max-log-handles": 9}
"""So that there are many snapshots."""

DAY_MS = 86_400_000
SOON_MS = 40
LATER_MS = 3_600_000


class RestlessTotals(CustomerTotals):
    """Customer totals with a token in each row that no two computations share."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.handle = handle
        self.value = handle.getValueState("lines_value", "lines bigint", DAY_MS)
        self.list = handle.getListState("lines_list", "invoice string", DAY_MS)
        self.map = handle.getMapState("lines_map", "invoice string", "lines bigint", DAY_MS)
        self.dead = handle.getValueState("dead", "lines bigint", 1)
        self.pending = handle.getMapState("pending", "time bigint", "lines bigint")
        self.timers = handle.getValueState("timers", "registered bigint, fired bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        lines = list(rows)
        self.audit(key)
        if self.dead.exists():
            raise AssertionError(f"{key}: a value came back after its time")
        for row in super().handleInputRows(key, iter(lines), timerValues):
            yield Row(**row.asDict(), token=os.urandom(8).hex())
        before = (self.value.get() or (0,))[0]
        self.value.update((before + len(lines),))
        self.list.appendList([(line.invoice,) for line in lines])
        for line in lines:
            times = (self.map.getValue((line.invoice,)) or (0,))[0]
            self.map.updateValue((line.invoice,), (times + 1,))
        self.dead.update((before,))
        now = timerValues.getCurrentProcessingTimeInMs()
        for time in (now, now + SOON_MS, now + LATER_MS + before):
            self.register(time)
        self.audit(key)

    def register(self, time: int) -> None:
        if not self.pending.containsKey((time,)):
            registered, fired = self.timers.get() or (0, 0)
            self.timers.update((registered + 1, fired))
            self.pending.updateValue((time,), (1,))
            self.handle.registerTimer(time)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        if not self.pending.containsKey((time,)):
            raise AssertionError(f"{key}: the timer at {time} fired twice")
        self.pending.removeKey((time,))
        registered, fired = self.timers.get()
        self.timers.update((registered, fired + 1))
        return iter(())

    def audit(self, key: Any) -> None:
        """Compare everything that says the same."""
        account = self._account.get()
        lines = 0 if account is None else account[1]
        registered, fired = self.timers.get() or (0, 0)
        pending = sorted(time for (time,), _ in self.pending.iterator())
        by_state = {
            "value": (self.value.get() or (0,))[0],
            "list": len(list(self.list.get())),
            "map": sum(times for _, (times,) in self.map.iterator()),
        }
        if account is not None and by_state != dict.fromkeys(by_state, lines):
            raise AssertionError(f"{key}: {lines} lines, but {by_state}")
        if len(pending) != registered - fired or pending != list(self.handle.listTimers()):
            raise AssertionError(f"{key}: {registered} timers, {fired} fired, pending {pending}")


def work(config: JobConfig, send: Send) -> None:
    session = open_session(config)
    send("session")
    lines = read_lines(session.readStream.option("maxFilesPerTrigger", 1), config)
    totals = transform_with_state(
        lines.groupBy("customer"),
        RestlessTotals(),
        f"{OUTPUT}, token string",
        stateLocation=config.location,
        operator="customer-totals",
        **SNAPSHOTS,
        on_progress=lambda progress: send("batch", progress=progress.to_json()),
        **config.operator,
    )
    query = (
        totals.writeStream.foreachBatch(BatchFiles(Path(config.folder) / "output"))
        .option("checkpointLocation", f"{config.folder}/spark")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    finish(session, config, send)


if __name__ == "__main__":
    log_everything()
    log_requests_if_asked()
    sys.exit(main(sys.argv[1:], work))
