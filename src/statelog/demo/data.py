"""
Generate order lines from a seed.

There is one CSV file per day, with lines in the order of time: customers with very different numbers
of orders, several countries, returns with negative quantities, lines without a customer, prices of up
to three decimals, descriptions with quotes and commas.  A seed gives the same bytes on every machine.
"""

from __future__ import annotations

import csv
import datetime as dt
import math
import os
import random
import shutil
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from statelog.errors import UsageError

COLUMNS: Final = (
    "InvoiceNo",
    "StockCode",
    "Description",
    "Quantity",
    "InvoiceDate",
    "UnitPrice",
    "CustomerID",
    "Country",
)
DAYS: Final = 72

_FIRST_DAY: Final = dt.datetime(2024, 3, 1)
_COUNTRIES: Final = (
    ("United Kingdom", 70),
    ("Germany", 8),
    ("France", 8),
    ("Ireland", 6),
    ("Spain", 4),
    ("Netherlands", 3),
    ("Japan", 1),
)
_WHAT: Final = ("LANTERN", "CUSHION", "TEA TOWEL", "MUG", "CARD", 'RULER 12" WOOD', "BAG, LARGE")
_KINDS: Final = ("WHITE", "RED SPOTTY", "VINTAGE", "RETRO", "PINK", "BLUE PAISLEY", "SET OF 4")
_WITHOUT_CUSTOMER: Final = 0.15
_RETURNS: Final = 0.07
_SOON_AGAIN: Final = 0.2
_ABROAD: Final = 0.03
_EXTRA_LINES: Final = 8.0
_DAY_SECONDS: Final = 10 * 3600


@dataclass(frozen=True, slots=True)
class _Order:
    at: dt.datetime
    customer: int | None
    country: str
    is_return: bool


def write_orders(folder: Path, *, orders: int, seed: int, days: int = DAYS) -> int:
    """
    Write daily CSV files of order lines.

    Args:
        folder: Target folder; created.
        orders: Number of orders, >= 1; an order has about nine lines.
        seed: The same seed gives the same files.
        days: Number of files.

    Returns:
        The number of lines written.
    """
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    customers = max(orders // 8, 3)
    busy = list(accumulate(1 / (rank + 2) for rank in range(customers)))
    homes = [_weighted(chance) for _ in range(customers)]
    invoice = 500_000
    lines = 0
    for day in range(days):
        start = _FIRST_DAY + dt.timedelta(days=day)
        count = (day + 1) * orders // days - day * orders // days
        with open(folder / f"{start:%Y-%m-%d}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for order in _day(chance, start, count, busy, homes):
                invoice += 1
                for row in _lines(chance, invoice, order):
                    writer.writerow(row)
                    lines += 1
    return lines


def _weighted(chance: random.Random) -> str:
    at = chance.random() * sum(weight for _, weight in _COUNTRIES)
    for name, weight in _COUNTRIES:
        at -= weight
        if at < 0:
            return name
    return _COUNTRIES[0][0]


def _day(
    chance: random.Random,
    start: dt.datetime,
    count: int,
    busy: Sequence[float],
    homes: Sequence[str],
) -> list[_Order]:
    """Return the orders of one day in the order of time."""
    orders: list[_Order] = []
    for _ in range(count):
        customer: int | None = None
        if chance.random() >= _WITHOUT_CUSTOMER:
            customer = bisect(busy, chance.random() * busy[-1])
        second = int(8 * 3600 + chance.random() * _DAY_SECONDS)
        # Some customers order again within the hour, so that sessions have several orders.
        if orders and chance.random() < _SOON_AGAIN:
            customer = orders[-1].customer
            second = int((orders[-1].at - start).total_seconds() + chance.random() * 3000)
        at = start + dt.timedelta(seconds=second - second % 60)
        abroad = customer is None or chance.random() < _ABROAD
        country = _weighted(chance) if customer is None or abroad else homes[customer]
        orders.append(_Order(at, customer, country, chance.random() < _RETURNS))
    return sorted(orders, key=lambda order: order.at)


def _lines(chance: random.Random, invoice: int, order: _Order) -> Iterator[tuple[object, ...]]:
    number = f"C{invoice}" if order.is_return else str(invoice)
    customer = "" if order.customer is None else f"{12_346 + order.customer}.0"
    for _ in range(1 + int(-math.log(1 - chance.random()) * _EXTRA_LINES)):
        stock = int(chance.random() * 900)
        quantity = 1 + int(-math.log(1 - chance.random()) * 6)
        price = (35 + stock * 37 % 1400) / 100
        yield (
            number,
            20_000 + stock,
            f"{_KINDS[stock % len(_KINDS)]} {_WHAT[stock // 7 % len(_WHAT)]}",
            -quantity if order.is_return else quantity,
            order.at,
            f"{price + 0.005:.3f}" if stock % 23 == 0 else f"{price:.2f}",
            customer,
            order.country,
        )


def lay_out(source: Path, target: Path) -> int:
    """
    Copy CSV files so that Spark reads them in name order.

    Spark's file stream orders files by modification time, so the copies get times a second apart.

    Args:
        source: Folder of CSV files with the columns of order lines.
        target: New folder for the copies.

    Returns:
        The number of files.

    Raises:
        UsageError: There are no CSV files, or one has other columns.
    """
    files = sorted(source.glob("*.csv")) if source.is_dir() else []
    if not files:
        raise UsageError(f"{source} has no CSV files; give a folder of daily order lines")
    target.mkdir(parents=True)
    begin = files[-1].stat().st_mtime_ns // 10**9 - len(files)
    for position, file in enumerate(files):
        with open(file, encoding="utf-8", newline="") as opened:
            header = tuple(next(csv.reader(opened), ()))
        if header != COLUMNS:
            raise UsageError(
                f"{file} has the columns {', '.join(header)}; needed: {', '.join(COLUMNS)}"
            )
        copy = target / file.name
        shutil.copyfile(file, copy)
        os.utime(copy, (begin + position, begin + position))
    return len(files)
