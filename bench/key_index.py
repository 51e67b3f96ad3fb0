"""
Measure ways from keys to row numbers, a batch at a time.

Question: what finds the rows of state columns for the keys of a micro-batch, and takes new keys in,
with the least processor time and memory?

Ways: `slots` is `statelog.state.keys.slot_index.SlotIndex`.  `pandas` is `Index.get_indexer`, whose table is
made anew after the index has grown; `polars` a left join; `arrow` `pyarrow.compute.index_in`;
`duckdb` a left join with a table; `dict` a Python dict.  All get Arrow columns and return numpy.

Workload: distinct keys in random order, int64 or text of 9 to 17 bytes.  Of a batch none or half of
the keys are new.  A batch of known keys has at most as many keys as are held.

Method: a process for each way, type and number of keys held.  Each batch is timed as a whole: find
the rows of known keys and give rows to new ones.  The first batch of each sort is not counted.  Shown
is the median with the least and the most, by processor time of all threads of the process, which
other work on the machine changes less than time on the clock.  The hash that `slots` needs is not
in it, for columnar state has it anyway; its time is shown below the tables.  Memory is what the process
grew by while the keys were added, a million at a time, as the
system counts it.  Every result is compared.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pipeline import machine

from statelog.state.keys.key_hash import Hashes, hash_columns
from statelog.state.keys.slot_index import SlotIndex

Numbers = npt.NDArray[np.int64]
TYPES = {"int64": pa.int64(), "text": pa.string()}
BUILD = 1_000_000
BATCHES = ("25000 known", "170000 known", "25000 half new", "170000 half new")


class Way(Protocol):
    def add(self, keys: pa.Array, hashes: Hashes) -> Numbers:
        """Return the row of each key; new keys get the next rows."""


class Slots:
    def __init__(self, kind: pa.DataType) -> None:
        self.index = SlotIndex(pa.schema([("key", kind)]))

    def add(self, keys: pa.Array, hashes: Hashes) -> Numbers:
        return self.index.add([keys], hashes, np.zeros(len(keys), np.int32))


class Pandas:
    def __init__(self, kind: pa.DataType) -> None:
        self.index = pd.Index(self.values(pa.array([], kind)))

    def values(self, keys: pa.Array) -> npt.NDArray[Any]:
        return keys.to_numpy(zero_copy_only=False)

    def add(self, keys: pa.Array, _hashes: Hashes) -> Numbers:
        values = self.values(keys)
        rows = self.index.get_indexer(values).astype(np.int64)
        return numbered(rows, len(self.index), lambda new: self.grow(values[new]))

    def grow(self, values: npt.NDArray[Any]) -> None:
        self.index = self.index.append(pd.Index(values))
        self.index.get_indexer(values[:1])  # the table is made at the next look-up


class Polars:
    def __init__(self, kind: pa.DataType) -> None:
        self.held = self.frame(pa.array([], kind), 0)

    def frame(self, keys: pa.Array, start: int) -> pl.DataFrame:
        rows = pa.array(np.arange(start, start + len(keys)))
        return pl.from_arrow(pa.table({"key": keys, "row": rows}))

    def add(self, keys: pa.Array, _hashes: Hashes) -> Numbers:
        asked = self.frame(keys, 0).select("key")
        joined = asked.join(self.held, on="key", how="left", maintain_order="left")
        rows = joined["row"].fill_null(-1).to_numpy(writable=True)
        count = len(self.held)

        def grow(new: Numbers) -> None:
            self.held.extend(self.frame(keys.take(pa.array(new)), count))

        return numbered(rows, count, grow)


class Arrow:
    def __init__(self, kind: pa.DataType) -> None:
        self.held = pa.chunked_array([], kind)

    def add(self, keys: pa.Array, _hashes: Hashes) -> Numbers:
        found = pc.index_in(keys, value_set=self.held)
        rows = found.fill_null(-1).to_numpy().astype(np.int64)

        def grow(new: Numbers) -> None:
            chunks = [*self.held.chunks, keys.take(pa.array(new))]
            self.held = pa.chunked_array(chunks)

        return numbered(rows, len(self.held), grow)


class DuckDB:
    def __init__(self, kind: pa.DataType) -> None:
        self.connection = duckdb.connect()
        self.count = 0
        sql_type = "BIGINT" if pa.types.is_int64(kind) else "VARCHAR"
        self.connection.execute(f"CREATE TABLE held (key {sql_type}, row BIGINT)")

    def add(self, keys: pa.Array, _hashes: Hashes) -> Numbers:
        asked = pa.table({"key": keys, "at": np.arange(len(keys))})
        self.connection.register("asked", asked)
        found = self.connection.execute(
            "SELECT asked.at AS at, held.row AS row FROM asked JOIN held ON asked.key = held.key"
        ).fetchnumpy()
        rows = np.full(len(keys), -1)
        rows[found["at"]] = found["row"]
        return numbered(rows, self.count, lambda new: self.grow(keys, new))

    def grow(self, keys: pa.Array, new: Numbers) -> None:
        rows = np.arange(self.count, self.count + len(new))
        self.connection.register("new", pa.table({"key": keys.take(pa.array(new)), "row": rows}))
        self.connection.execute("INSERT INTO held SELECT key, row FROM new")
        self.count += len(new)


class Dict:
    def __init__(self, _kind: pa.DataType) -> None:
        self.rows: dict[Any, int] = {}

    def add(self, keys: pa.Array, _hashes: Hashes) -> Numbers:
        rows = self.rows
        found = [rows.setdefault(key, len(rows)) for key in keys.to_pylist()]
        return np.array(found, np.int64)


WAYS: dict[str, Callable[[pa.DataType], Way]] = {
    "slots": Slots,
    "pandas": Pandas,
    "polars": Polars,
    "arrow": Arrow,
    "duckdb": DuckDB,
    "dict": Dict,
}


def numbered(rows: Numbers, count: int, grow: Callable[[Numbers], None]) -> Numbers:
    """Give the next rows to the keys without one."""
    new = np.flatnonzero(rows < 0)
    if len(new):
        rows[new] = np.arange(count, count + len(new))
        grow(new)
    return rows


def keys_of(numbers: Numbers, kind: str) -> tuple[pa.Array, Hashes]:
    """Return keys made of *numbers*, and their hashes."""
    keys = pa.array(numbers)
    if kind == "text":
        keys = pc.binary_join_element_wise("customer", keys.cast(pa.string()), "-")
    return keys, hash_columns([keys], pa.schema([("key", keys.type)]))


def resident() -> int:
    """Return the memory of the process that is in use, in bytes."""
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure(way: str, kind: str, held: int, rounds: int) -> dict[str, Any]:
    """Measure one way in this process."""
    rng = np.random.default_rng(held)
    pool = rng.permutation(np.int64(held + (rounds + 1) * 100_000))
    row_of = np.empty(len(pool), np.int64)
    row_of[pool] = np.arange(len(pool))  # keys are added in the order of the pool
    index = WAYS[way](TYPES[kind])
    starts = range(0, held, BUILD)
    parts = [keys_of(pool[start : min(start + BUILD, held)], kind) for start in starts]
    before, start = resident(), time.process_time()
    for keys, hashes in parts:
        index.add(keys, hashes)
    result: dict[str, Any] = {"build_s": time.process_time() - start}
    # After a look at one key, for a table that is made late.
    index.add(*(part[:1] for part in parts[0]))
    result["bytes_per_key"] = (resident() - before) / held
    del parts
    for name in BATCHES:
        size, share = int(name.split()[0]), 0.5 if name.endswith("new") else 0.0
        times = []
        for _ in range(rounds + 1):
            new = int(size * share)
            known = rng.choice(held, min(size - new, held), replace=False)
            numbers = np.concatenate([pool[known], pool[held : held + new]])
            rng.shuffle(numbers)
            if new:  # they are added in the order of the batch
                added = numbers[row_of[numbers] >= held]
                pool[held : held + new] = added
                row_of[added] = np.arange(held, held + new)
            keys, hashes = keys_of(numbers, kind)
            start = time.process_time()
            rows = index.add(keys, hashes)
            times.append((time.process_time() - start) * 1000)
            if not np.array_equal(rows, row_of[numbers]):
                raise SystemExit(f"{way} returned wrong rows")
            held += new
        result[name] = spread(times[1:])
    return result


def spread(values: list[float]) -> dict[str, float]:
    """Return median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def hashing(kind: str) -> dict[str, float]:
    """Return the milliseconds to hash 170,000 keys."""
    keys, _ = keys_of(np.random.default_rng(1).permutation(np.int64(170_000)), kind)
    times = []
    for _ in range(9):
        start = time.process_time()
        hash_columns([keys], pa.schema([("key", keys.type)]))
        times.append((time.process_time() - start) * 1000)
    return spread(times)


def main() -> int:
    """Run all ways, each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--held", default="100000,1000000,5000000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, metavar=("WAY", "TYPE", "HELD"), help="this process only")
    arguments = parser.parse_args()
    if arguments.one:
        way, kind, held = arguments.one
        print(json.dumps(measure(way, kind, int(held), arguments.rounds)))
        return 0
    found: dict[str, Any] = {"machine": machine(), "rounds": arguments.rounds, "milliseconds": {}}
    found["hash_170000_ms"] = {kind: hashing(kind) for kind in TYPES}
    for held, kind in itertools.product(map(int, arguments.held.split(",")), TYPES):
        print(f"\n{kind}, {held:,} keys held: ms per batch, bytes per key, s to build", flush=True)
        for way in arguments.ways.split(","):
            command = [sys.executable, __file__, "--rounds", str(arguments.rounds)]
            one = json.loads(subprocess.check_output([*command, "--one", way, kind, str(held)]))
            found["milliseconds"][f"{kind} {held} {way}"] = one
            cells = [
                f"{one[name]['median']:7.1f} ({one[name]['min']:.1f}-{one[name]['max']:.1f})"
                for name in BATCHES
            ]
            ends = f"{one['bytes_per_key']:6.0f} B {one['build_s']:7.2f} s"
            print(f"{way:<7}", *(f"{cell:>25}" for cell in cells), ends, flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\nhash of 170,000 keys:", found["hash_170000_ms"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
