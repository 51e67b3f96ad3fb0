"""Processors that several tests run, and the plain models that say what is right."""

import contextlib
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row

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
        """Take in one micro-batch and return its output, in order."""
        for key, amount in rows:
            total, count = self.totals[key]
            self.totals[key] = total + amount, count + 1
        return sorted(((key, *self.totals[key]) for key in {key for key, _ in rows}), key=repr)


class PromptTotals(Totals):
    """Yields how many of its worker's connections to Spark send and acknowledge at once, instead of rows."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(key=row.key, total=row.total, rows=len(prompt_connections()))


def prompt_connections() -> set[int]:
    """Return the connections of this process over TCP, by inode, that neither wait nor let wait."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            options = socket.TCP_NODELAY, socket.TCP_QUICKACK
            if all(one.getsockopt(socket.IPPROTO_TCP, option) for option in options):
                found.add(os.fstat(one.fileno()).st_ino)
    return found


class SlowTotals(Totals):
    """Takes its time, so that something can happen meanwhile."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        time.sleep(0.2)
        yield from super().handleInputRows(key, rows, timerValues)
