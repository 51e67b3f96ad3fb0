"""The processor that most tests run, the plain model of it, and jobs with it."""

import contextlib
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Row, SparkSession
from tests.support.spark.streams import BatchSource, Job

from statelog.spark import StatefulProcessor, StatefulProcessorHandle


class Totals(StatefulProcessor):
    """Adds up amounts by key; an amount of *poison* raises."""

    def __init__(self, poison: int | None = None) -> None:
        self.poison = poison

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total bigint, rows bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        total, count = self.total.get() or (0, 0)
        for row in rows:
            if row.amount == self.poison:
                raise ArithmeticError(f"cannot take {row.amount}")
            total, count = total + row.amount, count + 1
        self.total.update((total, count))
        yield Row(key=key[0], total=total, rows=count)


TOTALS = "key bigint, total bigint, rows bigint"
INPUT = "key bigint, amount bigint"


class TotalsModel:
    """What `Totals` must yield."""

    def __init__(self) -> None:
        self.totals: dict[Any, tuple[int, int]] = defaultdict(lambda: (0, 0))

    def apply(self, rows: list[tuple[Any, int]]) -> list[tuple[Any, int, int]]:
        """Process one micro-batch and return its output, in order."""
        for key, amount in rows:
            total, count = self.totals[key]
            self.totals[key] = total + amount, count + 1
        return sorted(((key, *self.totals[key]) for key in {key for key, _ in rows}), key=repr)


def totals_of(batches: Iterable[list[tuple[Any, int]]]) -> list[list[tuple[Any, int, int]]]:
    """Return what `Totals` must yield for these micro-batches, from an empty state on."""
    model = TotalsModel()
    return [model.apply(rows) for rows in batches]


def totals_job(
    spark: SparkSession,
    folder: Path,
    processor: StatefulProcessor | None = None,
    *,
    kind: type[BatchSource] = BatchSource,
    **options: Any,
) -> Job:
    """Return a job that adds up amounts by key; its input is in the folder `in`."""
    source = kind(spark, folder / "in", INPUT)
    return Job(source, folder, ["key"], processor or Totals(), TOTALS, options)


class FrameTotals(Totals):
    """`Totals` of frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        amounts = (Row(amount=int(amount)) for frame in rows for amount in frame["amount"])
        for row in super().handleInputRows(key, amounts, timerValues):
            yield pd.DataFrame([row.asDict()])


class PromptTotals(Totals):
    """Yields how many of its worker's connections to Spark send and acknowledge at once, instead of rows."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(key=row.key, total=row.total, rows=len(prompt_connections()))


def prompt_connections() -> set[int]:
    """Return the connections of this process over TCP, by inode, that neither wait nor let wait."""
    inodes = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            options = socket.TCP_NODELAY, socket.TCP_QUICKACK
            if all(connection.getsockopt(socket.IPPROTO_TCP, option) for option in options):
                inodes.add(os.fstat(connection.fileno()).st_ino)
    return inodes


class SlowTotals(Totals):
    """Takes its time, so that something can happen meanwhile."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        time.sleep(0.2)
        yield from super().handleInputRows(key, rows, timerValues)
