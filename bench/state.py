"""
Compare storage engines for the state of a worker on local disk, on the same work.

Question: with 2.5 million keys (bigint) and a value of (long, double), how long do the bulk load, a
micro-batch of random reads and writes, and opening it again take, and what do they cost in memory?

Ways: `columnar` (statelog's runs: Arrow columns in a mapped file, looked up a batch at a time, with
a dict of what changed since), `dict` (everything in memory), and the key-value stores `rocksdict`,
`lmdb` and `sqlite3`, as far as they are installed.  The stores keep 8-byte keys and 16-byte values,
packed with `struct`: what any encoding would cost at least.

Method: each way in a process of its own.  A micro-batch reads and then writes `--batch` keys, nine
of ten of them existing; its time is the median of `--batches`.  Memory is what the process has more
than after its imports: anonymous (RssAnon) and mapped from files (RssFile).
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from statelog.model import ChangelogStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.runtime.clock import RandomIds
from statelog.state.columnar.run_files import opener
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import StateBackendConfig
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds import StateKind
from statelog.state.schema import OperatorStateSchema, StateDescriptor
from statelog.store import open_store

WAYS = ("columnar", "dict", "rocksdict", "lmdb", "sqlite3")
_KEY = struct.Struct(">q")
_VALUE = struct.Struct("<qd")
Values = tuple[int, float]


class DictTable:
    """Python's dict: state without a memory bound."""

    def __init__(self, folder: Path) -> None:
        self._table: dict[tuple[int], Values] = {}

    def load(self, keys: np.ndarray) -> None:
        for key in keys.tolist():
            self._table[(key,)] = (key, 0.5)

    def read(self, keys: list[int]) -> list[Values | None]:
        return [self._table.get((key,)) for key in keys]

    def write(self, keys: list[int], values: Iterable[Values]) -> None:
        self._table.update(zip([(key,) for key in keys], values, strict=True))

    def close(self) -> None:
        pass


class RocksTable:
    """RocksDB through rocksdict, in its raw mode."""

    def __init__(self, folder: Path) -> None:
        import rocksdict

        self._module = rocksdict
        self._db = rocksdict.Rdict(str(folder / "rocks"), rocksdict.Options(raw_mode=True))

    def load(self, keys: np.ndarray) -> None:
        for start in range(0, len(keys), 100_000):
            part = keys[start : start + 100_000].tolist()
            self.write(part, ((key, 0.5) for key in part))

    def read(self, keys: list[int]) -> list[Values | None]:
        found = self._db[[_KEY.pack(key) for key in keys]]
        return [None if value is None else _VALUE.unpack(value) for value in found]

    def write(self, keys: list[int], values: Iterable[Values]) -> None:
        batch = self._module.WriteBatch(raw_mode=True)
        for key, value in zip(keys, values, strict=True):
            batch.put(_KEY.pack(key), _VALUE.pack(*value))
        self._db.write(batch)

    def close(self) -> None:
        self._db.close()


class LmdbTable:
    """LMDB, without syncs."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        self._env = lmdb.open(str(folder / "lmdb"), map_size=1 << 32, sync=False, metasync=False)

    def load(self, keys: np.ndarray) -> None:
        part = np.sort(keys).tolist()
        self.write(part, ((key, 0.5) for key in part))

    def read(self, keys: list[int]) -> list[Values | None]:
        with self._env.begin() as transaction:
            found = [transaction.get(_KEY.pack(key)) for key in keys]
        return [None if value is None else _VALUE.unpack(value) for value in found]

    def write(self, keys: list[int], values: Iterable[Values]) -> None:
        pairs = zip(map(_KEY.pack, keys), (_VALUE.pack(*value) for value in values), strict=True)
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(list(pairs))

    def close(self) -> None:
        self._env.close()


class SqliteTable:
    """SQLite, journal and syncs off."""

    def __init__(self, folder: Path) -> None:
        import sqlite3

        self._db = sqlite3.connect(str(folder / "state.sqlite"), isolation_level=None)
        self._db.execute("pragma journal_mode=off")
        self._db.execute("pragma synchronous=off")
        self._db.execute("create table if not exists s(k integer primary key, n integer, t real)")

    def load(self, keys: np.ndarray) -> None:
        part = np.sort(keys).tolist()
        self.write(part, ((key, 0.5) for key in part))

    def read(self, keys: list[int]) -> list[Values | None]:
        found: dict[int, Values] = {}
        for start in range(0, len(keys), 10_000):
            part = keys[start : start + 10_000]
            marks = ",".join("?" * len(part))
            rows = self._db.execute(f"select k, n, t from s where k in ({marks})", part)
            found.update((key, (n, total)) for key, n, total in rows)
        return list(map(found.get, keys))

    def write(self, keys: list[int], values: Iterable[Values]) -> None:
        rows = ((key, *value) for key, value in zip(keys, values, strict=True))
        self._db.execute("begin")
        self._db.executemany("insert or replace into s values (?, ?, ?)", rows)
        self._db.execute("commit")

    def close(self) -> None:
        self._db.close()


class ColumnarTable:
    """statelog's own engine: the code of a task, without its log."""

    def __init__(self, folder: Path) -> None:
        value = pa.schema([("n", pa.int64()), ("total", pa.float64())])
        state = StateDescriptor("total", StateKind.VALUE, value)
        schema = OperatorStateSchema("bench", pa.schema([("key", pa.int64())]), (state,))
        self._range = KeyGroupRange(0, 127)
        backend = StateBackendConfig("auto", 512 << 20, str(folder))
        files = opener(backend, "bench", RandomIds())
        self._state = KeyedState(OperatorCodec(schema), backend.limits(), files)
        self._schema = schema.key_schema
        self._number = -1
        if any(folder.rglob("*.run")):  # opened again: the log below has this id
            self._number = NEWEST
            log = ChangelogStateHandle(
                self._range, (), 0, 0, state_handle_id="the log", checkpoint_id=NEWEST
            )
            handle = ChangelogStateBackendHandle(self._range, NEWEST, (), (log,))
            self._state.catch_up(
                self._range, NEWEST, (), lambda: (open_store("memory:///"), handle)
            )
        else:
            self._state.catch_up(self._range, -1, (), _nothing)

    def load(self, keys: np.ndarray) -> None:
        for start in range(0, len(keys), 100_000):
            part = self.arrange(keys[start : start + 100_000].tolist())
            self.write(part, ((key[0], 0.5) for keys in part.values() for key in keys))

    def arrange(self, keys: list[int]) -> dict[int, list[tuple[int]]]:
        hashes = hash_columns([pa.array(keys, pa.int64())], self._schema)
        grouped: dict[int, list[tuple[int]]] = {}
        for group, key in zip((hashes.view(np.int64) % 128).tolist(), keys, strict=True):
            grouped.setdefault(group, []).append((key,))
        return grouped

    def read(self, keys: dict[int, list[tuple[int]]]) -> list[Values | None]:
        self._state.prepare(keys)
        found: list[Values | None] = []
        for group, part in keys.items():
            found += map(self._state.groups[group].tables[0].get, part)
        return found

    def write(self, keys: dict[int, list[tuple[int]]], values: Iterable[Values]) -> None:
        # As everywhere, a key is read (prepared) before it is written, so here it is only folded.
        self._state.prepare(keys)
        rest = iter(values)
        overlays = {group: [dict(zip(part, rest, strict=False))] for group, part in keys.items()}
        base, self._number = self._number, self._number + 1
        self._state.stage(self._number, base, "the log", self._range, overlays)
        self._state.catch_up(self._range, self._number, ("the log",), _nothing)

    def close(self) -> None:
        pass


NEWEST = 1 << 40


def _nothing() -> Any:
    raise AssertionError("everything is at hand")


MAKERS: dict[str, Callable[[Path], Any]] = {
    "columnar": ColumnarTable,
    "dict": DictTable,
    "rocksdict": RocksTable,
    "lmdb": LmdbTable,
    "sqlite3": SqliteTable,
}


def resident() -> dict[str, float]:
    """Return this process's anonymous and file-backed resident memory in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return {name: int(sizes[name]) / 1024 for name in ("RssAnon", "RssFile")}


def measure(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the workload on one engine."""
    folder = Path(tempfile.mkdtemp(prefix=f"statelog-bench-{way}-"))
    gc.disable()  # as a task does
    rng = np.random.default_rng(7)
    keys = rng.permutation(arguments.keys).astype(np.int64) * 7919
    try:
        table = MAKERS[way](folder)
        before = resident()
        start, cpu = time.perf_counter(), time.process_time()
        table.load(keys)
        loaded, loaded_cpu = time.perf_counter() - start, time.process_time() - cpu
        times, cpus = [], []
        for _ in range(arguments.batches):
            chosen = rng.choice(len(keys), arguments.batch, replace=False)
            touched = keys[chosen] + (rng.random(arguments.batch) < 0.1)
            asked = touched.tolist()
            if hasattr(table, "arrange"):
                asked = table.arrange(asked)
            start, cpu = time.perf_counter(), time.process_time()
            found = table.read(asked)
            new = [(1, 0.5) if old is None else (old[0] + 1, old[1] + 0.5) for old in found]
            table.write(asked, new)
            times.append(time.perf_counter() - start)
            cpus.append(time.process_time() - cpu)
        after = resident()
        table.close()
        del table
        start = time.perf_counter()
        again = MAKERS[way](folder)
        asked = keys[:1].tolist()
        first = again.read(again.arrange(asked) if hasattr(again, "arrange") else asked)
        reopened = time.perf_counter() - start
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "load_s": round(loaded, 2),
        "load_cpu_s": round(loaded_cpu, 2),
        "batch_ms": round(1e3 * statistics.median(times), 1),
        "batch_cpu_ms": round(1e3 * statistics.median(cpus), 1),
        "batch_ms_worst": round(1e3 * max(times), 1),
        "anon_mib": round(after["RssAnon"] - before["RssAnon"]),
        "file_mib": round(after["RssFile"] - before["RssFile"]),
        "disk_mib": round(size / 2**20),
        "reopen_s": round(reopened, 3) if first[0] is not None else None,
    }


def main() -> int:
    """Run the engines one after another and print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--keys", type=int, default=2_500_000)
    parser.add_argument("--batch", type=int, default=25_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments)))
        return 0
    results: dict[str, Any] = {}
    print(
        f"{'way':10} {'load s (CPU)':>14} {'batch ms (CPU; worst)':>24} {'anon':>5} {'file':>5} "
        f"{'disk MiB':>8} {'reopen s':>9}"
    )
    for way in arguments.ways.split(","):
        sizes = [f"--{name}={getattr(arguments, name)}" for name in ("keys", "batch", "batches")]
        command = [sys.executable, __file__, "--one", way, *sizes]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{way:10} failed: {done.stderr.strip().splitlines()[-1:]}")
            continue
        row = results[way] = json.loads(done.stdout)
        load = f"{row['load_s']} ({row['load_cpu_s']})"
        batch = f"{row['batch_ms']} ({row['batch_cpu_ms']}; {row['batch_ms_worst']})"
        print(
            f"{way:10} {load:>14} {batch:>24} {row['anon_mib']:5} {row['file_mib']:5} "
            f"{row['disk_mib']:8} {row['reopen_s'] or '-':>9}"
        )
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
