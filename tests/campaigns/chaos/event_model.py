"""
The input of the job on event time, made from a seed, and in plain Python what must come of it.

The model knows the rules and nothing of the code: the watermark of a micro-batch is the latest
event time of those before less the delay, its rows are late by the watermark of the one before, and
a timer fires once, in the first micro-batch whose watermark has come to it.
"""

import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tests.campaigns.chaos.event_job import AGAIN_MS, DELAY_MS

CUSTOMERS = 90
ROWS = 70
PARTS = 6
FILES_OF_A_PART = 3
FILE_MS = 15_000
BEGIN_MS = 1_700_000_000_000
WAITS = (-60, -20, -5, 0, 5, 10, 25, 90, 100_000)
SCHEMA = pa.schema(
    [
        ("customer", pa.int32()),
        ("n", pa.int64()),
        ("at_ms", pa.int64()),
        ("wait_ms", pa.int64()),
        ("gives_up", pa.bool_()),
    ]
)


class Event(NamedTuple):
    """A row of the input: it sets a timer for *wait_ms* after its time."""

    customer: int
    n: int
    at_ms: int
    wait_ms: int
    gives_up: bool


Parts = list[list[list[Event]]]


class Told(NamedTuple):
    """A row of the output, without its token."""

    customer: int
    kind: str
    n: int
    time: int
    watermark: int


def make_events(seed: int) -> Parts:
    """Return rows by file, and files by part; times are out of order, some far too late."""
    chance = random.Random(seed)
    parts: Parts = []
    for number in range(PARTS * FILES_OF_A_PART):
        now = BEGIN_MS + number * FILE_MS
        if number % FILES_OF_A_PART == 0:
            parts.append([])
        parts[-1].append([_event(chance, number * ROWS + row, now) for row in range(ROWS)])
    return parts


def _event(chance: random.Random, n: int, now: int) -> Event:
    # Whole seconds, and one row of each file at its very end: many a time is a watermark's own.
    least, most = chance.choices([(0, 12), (12, 50), (30, 120)], [70, 15, 15])[0]
    ago = chance.randint(least, most) if n % ROWS else 0
    wait = chance.choice(WAITS) + chance.randint(-3, 3)
    return Event(
        chance.randrange(CUSTOMERS), n, now - ago * 1000, wait * 1000, chance.random() < 0.15
    )


def write_events(folder: Path, parts: Parts) -> None:
    """Write a file for each micro-batch, all hidden, which Spark will take in their order."""
    folder.mkdir(parents=True)
    for part, files in enumerate(parts):
        for number, events in enumerate(files):
            path = folder / f".part{part}-{number:03}.parquet"
            rows = [event._asdict() for event in events]
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
            os.utime(path, (1_600_000_000 + part * 1000 + number,) * 2)


@dataclass
class Account:
    """What the job keeps of one customer."""

    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    fired: list[tuple[int, int]] = field(default_factory=list)
    pending: dict[int, tuple[int, int]] = field(default_factory=dict)

    def register(self, time: int, n: int, again: int) -> None:
        if time not in self.pending:
            self.pending[time] = (n, again)
            self.counts[1] += 1

    def give_up(self) -> None:
        if self.pending:
            del self.pending[max(self.pending)]
            self.counts[2] += 1

    def read(self, event: Event) -> None:
        self.counts[0] += 1
        if event.gives_up:
            self.give_up()
        self.register(event.at_ms + event.wait_ms, event.n, 0)

    def fire_until(self, watermark: int) -> Iterator[tuple[int, int, int]]:
        """Fire what is due now, without what is registered by that; yield time, n and again."""
        for time in sorted(time for time in self.pending if time <= watermark):
            if time in self.pending:
                n, again = self.pending.pop(time)
                self.counts[3] += 1
                self.fired.append((time, watermark))
                if n % 4 == 0 and again < 2:
                    self.register(watermark if again else time - 1000, n, again + 1)
                elif n % 4 == 1 and again < 1:
                    self.register(time + AGAIN_MS, n, again + 1)
                elif n % 4 == 2:
                    self.give_up()
                yield time, n, again


@dataclass
class Batch:
    """A micro-batch that puts something out; in a tick no rows come in."""

    is_tick: bool
    rows: list[Told]


@dataclass
class Expected:
    """Everything that must come of the input."""

    batches: list[Batch] = field(default_factory=list)
    accounts: dict[int, Account] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)


def expect(parts: Parts) -> Expected:
    """Work through the input: each part file by file, then a tick if the watermark moved."""
    expected = Expected()
    newest = watermark = 0
    for files in parts:
        for events in files:
            late, watermark = watermark, max(watermark, newest - DELAY_MS)
            in_time = [event for event in events if event.at_ms > late]
            expected.late.update({event.n for event in events} - {event.n for event in in_time})
            expected.batches.append(Batch(False, _batch(expected, in_time, watermark)))
            newest = max(newest, *(event.at_ms for event in events))
        if newest - DELAY_MS > watermark:
            watermark = newest - DELAY_MS
            if rows := _batch(expected, (), watermark):
                expected.batches.append(Batch(True, rows))
    return expected


def _batch(expected: Expected, events: Iterable[Event], watermark: int) -> list[Told]:
    accounts = expected.accounts
    rows = []
    for event in sorted(events, key=lambda event: event.n):
        accounts.setdefault(event.customer, Account()).read(event)
        rows.append(Told(event.customer, "row", event.n, event.at_ms, watermark))
    for customer, account in accounts.items():
        for time, n, again in account.fire_until(watermark):
            rows.append(Told(customer, f"timer {again}", n, time, watermark))
    return sorted(rows, key=lambda row: row.customer)
