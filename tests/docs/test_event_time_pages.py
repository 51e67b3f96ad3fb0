"""The processors of the pages on joins and duplicates, against models, over rows in any order."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import Row
from tests.house.sources import ROOT
from tests.support.project.snippets import blocks

from statelog.testing import ProcessorTester

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SEEDS = range(20)


def names_of(page: str) -> dict[str, Any]:
    """Run the programs of a page and return their names."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(ROOT / "docs" / "how-to" / page):
        if block.runs:
            exec(block.text, names)
    return names


def time(minute: int) -> datetime:
    return datetime.fromtimestamp((minute + 1000) * 60, UTC)


def in_batches(rows: list[Row], rng: random.Random) -> Iterator[list[Row]]:
    """Yield the rows in batches of random sizes."""
    rows = list(rows)
    while rows:
        size = rng.randint(1, 5)
        yield rows[:size]
        rows = rows[size:]


def arrivals(rows: list[Row], rng: random.Random, delay: int) -> list[Row]:
    """Return rows in an order of arrival, each at most *delay* minutes late."""
    return sorted(rows, key=lambda row: row.at.timestamp() + rng.uniform(0, delay * 60))


def run(tester: ProcessorTester, rows: list[Row], rng: random.Random, delay: int) -> list[Row]:
    """Return what a processor yields while the watermark follows the rows, and then passes all."""
    output: list[Row] = []
    newest = watermark = 0
    for batch in in_batches(arrivals(rows, rng, delay), rng):
        output += tester.test("key", batch)
        newest = max(newest, *(int(row.at.timestamp() * 1000) for row in batch))
        if newest - delay * MINUTE_MS - 1 > watermark:
            watermark = newest - delay * MINUTE_MS - 1
            output += tester.setWatermark(watermark)
    output += tester.setWatermark(newest + 3 * HOUR_MS)
    assert tester.stateOf("key").keys() <= {"quotes"}
    return output


@pytest.mark.parametrize("seed", SEEDS)
def test_the_join_finds_each_pair_once(seed):
    names, rng = names_of("join-streams.md"), random.Random(seed)
    orders = [(rng.randrange(300), float(number)) for number in range(8)]
    payments = [(rng.randrange(360), float(number)) for number in range(12)]
    rows = [names["order"](time(minute), amount) for minute, amount in orders]
    rows += [names["payment"](time(minute), paid) for minute, paid in payments]
    tester = ProcessorTester(
        names["PaidOrders"](), timeMode="EventTime", eventTimeExtractor=names["at_ms"],
        outputStructType="order_id string, amount double, paid double",
    )  # fmt: skip
    expected = Counter(
        (amount, paid)
        for order_minute, amount in orders
        for paid_minute, paid in payments
        if 0 <= paid_minute - order_minute <= 60
    )
    output = run(tester, rows, rng, delay=10)
    assert expected == Counter((row.amount, row.paid) for row in output)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_as_of_join_takes_the_newest_quote_before_each_trade(seed):
    names, rng = names_of("join-streams.md"), random.Random(seed)
    quotes = [(minute, float(minute)) for minute in rng.sample(range(5, 120), 10)]
    trades = [(rng.randrange(1, 130), number) for number in range(10)]
    rows = [names["quote"](time(minute), price) for minute, price in quotes]
    rows += [names["trade"](time(minute), quantity) for minute, quantity in trades]
    tester = ProcessorTester(
        names["AsOf"](), timeMode="EventTime", eventTimeExtractor=names["at_ms"],
        outputStructType=names["OUTPUT"],
    )  # fmt: skip
    expected = {
        quantity: max((price for at, price in quotes if at <= minute), default=None)
        for minute, quantity in trades
    }
    output = run(tester, rows, rng, delay=10)
    assert len(trades) == len(output)
    assert expected == {row.quantity: row.price for row in output}
    assert 1 == len(tester.stateOf("key")["quotes"])


@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_passes_twice_within_the_hour(seed):
    names, rng = names_of("deduplicate.md"), random.Random(seed)
    rows = [Row(id="key", at=time(rng.randrange(400)), number=number) for number in range(15)]
    tester = ProcessorTester(
        names["FirstWithinHour"](), timeMode="EventTime", eventTimeExtractor=names["at_ms"]
    )
    output = run(tester, rows, rng, delay=0)
    minutes = sorted(int(row.at.timestamp() / 60) for row in output)
    assert all(later - earlier >= 60 for earlier, later in pairwise(minutes))
    for row in rows:  # what did not pass was within an hour of a row that did
        assert any(0 <= row.at.timestamp() / 60 - minute < 60 for minute in minutes)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_newest_ids_are_remembered_up_to_the_limit(seed):
    names, rng = names_of("deduplicate.md"), random.Random(seed)
    ids = [rng.choice("abcdef") for _ in range(40)]
    tester = ProcessorTester(names["NewestIds"]())
    output: list[str] = []
    for batch in in_batches([Row(id=name) for name in ids], rng):
        output += [row.id for row in tester.test("sender", batch)]
        assert len(tester.peekListState("ids", "sender")) <= names["LIMIT"]
    assert set(ids) == set(output)
    assert len(output) < len(ids)
    for name in set(ids):
        assert output.count(name) <= times_forgotten(name, ids, names["LIMIT"])


def times_forgotten(name: str, ids: list[str], limit: int) -> int:
    """Count how often an id is sent first, or after *limit* others since it was sent."""
    places = [place for place, sent in enumerate(ids) if sent == name]
    between = (set(ids[first + 1 : second]) for first, second in pairwise(places))
    return 1 + sum(len(others) >= limit for others in between)
