"""
The input of the benchmarks: events by seed, in Parquet files, two for each micro-batch.

`w1zipf` draws keys from 200,000 by a Zipf law (exponent 0.9: about 39,000 distinct keys in 100,000
events).  The bids of `queries.py` and `variety.py` have the shape of Nexmark's: auctions by a Zipf law, bidders at
random, event times that grow by file and are out of order by up to two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench.harness.query_run import set_age
from bench.pipeline import with_more_columns

KEYS = 200_000
ZIPF_EXPONENT = 0.9
CHANNELS = ("web", "app", "phone", "partner")
CATEGORIES = 20
SECONDS_PER_FILE = 30
OUT_OF_ORDER_MS = 2_000
EPOCH_MS = 1_700_000_000_000

Numbers = np.ndarray
TableOf = Callable[[np.random.Generator, int, int], pa.Table]
"""Makes the rows of a file, of a generator, the number of rows, and the number of the file."""


class ZipfKeys:
    """
    Draws keys by a Zipf law.

    Args:
        keys: How many there are.
        seed: Which of them are frequent.
    """

    def __init__(self, keys: int, seed: int = 42) -> None:
        weights = 1 / np.arange(1, keys + 1) ** ZIPF_EXPONENT
        self._cumulative = np.cumsum(weights / weights.sum())
        self._identity = np.random.default_rng(seed).permutation(keys).astype(np.int64)

    def draw(self, rng: np.random.Generator, size: int) -> Numbers:
        """Return so many keys."""
        ranks = np.searchsorted(self._cumulative, rng.random(size), side="right")
        return self._identity[np.minimum(ranks, len(self._identity) - 1)]


def zipf_events(keys: int = KEYS) -> TableOf:
    """Return the maker of `w1zipf`: a key and a value."""
    law = ZipfKeys(keys)

    def table(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
        return pa.table({"key": law.draw(rng, rows), "value": rng.random(rows)})

    return table


def seven_columns(keys: int = KEYS) -> TableOf:
    """Return the maker of `w7cols`: the events of `w1zipf` with five more columns, three of them text."""
    of_two = zipf_events(keys)

    def table(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
        return with_more_columns(of_two(rng, rows, number), rng)

    return table


def bids(auctions: int = 20_000, bidders: int = 20_000) -> TableOf:
    """Return the maker of bids: auction, bidder, price, channel, time."""
    law = ZipfKeys(auctions)

    def table(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
        return pa.table(
            {
                "auction": law.draw(rng, rows),
                "bidder": rng.integers(0, bidders, rows),
                "price": rng.integers(100, 1_000_000, rows),
                "channel": pa.array(np.take(CHANNELS, rng.integers(0, len(CHANNELS), rows))),
                "at": pa.array(event_times(rng, rows, number), pa.timestamp("ms", tz="UTC")),
            }
        )

    return table


def event_times(rng: np.random.Generator, rows: int, number: int) -> Numbers:
    """Return event times of a file in milliseconds: ascending, but for some disorder."""
    start = EPOCH_MS + number * SECONDS_PER_FILE * 1000
    steps = np.linspace(0, SECONDS_PER_FILE * 1000, rows, endpoint=False)
    late = rng.integers(0, OUT_OF_ORDER_MS, rows)
    return (start + steps - late).astype(np.int64)


def bids_and_auctions(auctions: int = 20_000) -> TableOf:
    """Return the maker of one stream of bids and of the auctions that enrich them."""
    bids_of = bids(auctions)

    def table(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
        opened = rows // 10
        made = bids_of(rng, rows - opened, number).select(["auction", "bidder", "price"])
        made = made.append_column("category", pa.nulls(len(made), pa.int64()))
        fresh = pa.table(
            {
                "auction": rng.integers(0, auctions, opened),
                "bidder": pa.nulls(opened, pa.int64()),
                "price": pa.nulls(opened, pa.int64()),
                "category": rng.integers(0, CATEGORIES, opened),
            }
        )
        return pa.concat_tables([fresh, made])

    return table


def wide_rows(columns: int = 50) -> TableOf:
    """Return the maker of rows with many columns: a fifth of them text, half of them numbers."""
    law = ZipfKeys(20_000)

    def table(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
        made = {"key": law.draw(rng, rows), "value": rng.random(rows)}
        for index in range(columns - 2):
            name = f"c{index:02d}"
            if index % 5 == 0:
                made[name] = texts(rng.integers(0, 1_000_000, rows))
            elif index % 5 < 3:
                made[name] = rng.random(rows)
            else:
                made[name] = rng.integers(0, 1 << 40, rows)
        return pa.table(made)

    return table


def string_keys(keys: int = 20_000) -> TableOf:
    """Return the maker of events whose key is a text of 36 characters."""
    law = ZipfKeys(keys)
    names = np.array(
        [f"{n:08x}-0000-4000-8000-{n * 2654435761 % (1 << 48):012x}" for n in range(keys)]
    )

    def table(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
        return pa.table({"key": pa.array(names[law.draw(rng, rows)]), "value": rng.random(rows)})

    return table


def texts(numbers: Numbers) -> pa.Array:
    """Return numbers as text of some length."""
    return pa.array([f"customer-{one:07d}" for one in numbers.tolist()])


def write_files(folder: Path, table: TableOf, files: int, rows: int, seed: int = 7) -> None:
    """
    Write the files of an input, unless the folder has them.

    Args:
        folder: Where; made if it does not exist.
        table: Makes the rows of one file.
        files: Their number.
        rows: Rows of each.
        seed: File *n* depends on the seed and on *n* only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        path = folder / f"part-{number:05d}.parquet"
        if not path.exists():
            pq.write_table(table(np.random.default_rng([seed, number]), rows, number), path)
            set_age(path, number)
