"""
Upserts into a Delta table: by deletion vectors and keyed state, beside delta-rs's merge.

Question: how long does a micro-batch of upserts take, what does it write, and what do reads of the table cost
afterwards, if keyed state remembers the file and row of each key, so that nothing is searched or
rewritten?

Ways: `vectors` (statelog's keyed state, heap tables: one Parquet file, deletion vectors, one commit;
and the commit of the state, with its changes inline) and `merge` (`DeltaTable.merge` of delta-rs).

Method: both ways get the same rows, in processes of their own, ways in turn.  The table has `--keys` rows in
ten files.  Each micro-batch upserts `--batch` different keys: `uniform` of all, or `recent` nine of ten
out of the last twentieth.  After the last one delta-rs reads the table of either way and it is compared
with the rows that were sent; a scan sums a column, the median of five.  Then `vectors` compacts its table
into ten files, and the state gets the new places of all keys.  Besides the time there is the processor time
of all threads, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.delta_log import DeltaLog

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.inline import InlineStateChangeUploader
from statelog.changelog.upload.scheduler import DirectStateChangeUploadScheduler
from statelog.changelog.upload.uploader import StateChangeFsUploader
from statelog.checkpoint import CheckpointCoordinator, CheckpointOptions
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.runtime.ids import RandomIds
from statelog.state import objects
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds import StateKind
from statelog.state.schema.descriptors import OperatorStateSchema, StateDescriptor
from statelog.store import LocationPaths, open_store

FILES = 10
GROUPS = KeyGroupRange(0, 127)
KEY = pa.schema([("key", pa.int64())])
PLACE = pa.schema([("file", pa.int64()), ("row", pa.int64())])
SCHEMA = pa.schema(
    [("key", pa.int64()), ("n", pa.int64()), ("amount", pa.float64()), ("note", pa.string())]
)
INLINE_BYTES = 16 << 20


class Places:
    """The file and row of each key, in statelog's keyed state; one commit for each call."""

    def __init__(self, folder: Path) -> None:
        self._store, paths, ids = open_store(str(folder)), LocationPaths(), RandomIds()
        place = StateDescriptor("place", StateKind.VALUE, PLACE, None, None)
        self._codec = OperatorCodec(OperatorStateSchema("op", KEY, (place,)))
        uploader = StateChangeFsUploader(self._store, paths=paths, ids=ids)
        inline = InlineStateChangeUploader(INLINE_BYTES, uploader, ids=ids)
        self._storage = FsStateChangelogStorage(
            self._store, job_id="", scheduler=DirectStateChangeUploadScheduler(inline)
        )
        self._coordinator = CheckpointCoordinator(
            self._store,
            paths,
            owner_id="bench",
            max_parallelism=len(GROUPS),
            options=CheckpointOptions(retained=2),
            clock_ms=lambda: time.time_ns() // 1_000_000,
        )
        self._coordinator.claim()
        self._coordinator.restore()
        self._state = KeyedState(self._codec)
        self._base, self._committed = -1, ""

    def move(self, keys: np.ndarray, files: np.ndarray, rows: np.ndarray) -> tuple[Any, Any]:
        """Set the places of *keys*, commit them, and return those before; file -1 for none."""
        self._state.catch_up(GROUPS, self._base, (self._committed,), self._nothing)
        cursor, overlays = objects.Cursor(0), {}
        value = objects.ValueState(cursor, 0, self._codec.states[0].value)
        hashes = hash_columns([pa.array(keys)], KEY).astype(np.int64) % len(GROUPS)
        before = []
        places = zip(keys.tolist(), hashes.tolist(), files.tolist(), rows.tolist(), strict=True)
        for key, group, file, row in places:
            overlay = overlays.get(group)
            if overlay is None:
                overlay = overlays[group] = [{}]
            cursor.enter(self._state.groups[group], overlay)
            cursor.key = (key,)
            before.append(value.get() or (-1, -1))
            value.update((file, row))
        self._commit(overlays)
        found = np.array(before, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _nothing(self) -> Any:
        return self._store, None

    def _commit(self, overlays: dict[int, Any]) -> None:
        encoded = self._codec.encode(overlays)
        checkpoint_id = self._coordinator.next_checkpoint_id
        with self._storage.create_writer("op", GROUPS) as writer:
            writer.append_meta(self._codec.metadata_change())
            writer.append_batch(encoded.key_groups, encoded.values)
            start = writer.initial_sequence_number()
            log = writer.persist(start, checkpoint_id).result().job_manager_owned
        self._coordinator.trigger(checkpoint_id, [GROUPS])
        self._coordinator.acknowledge(checkpoint_id, TaskStateSnapshot(GROUPS, log))
        self._coordinator.complete(checkpoint_id, properties={})
        self._coordinator.clean_up()
        handle_id = log.state_handle_id
        self._state.stage(checkpoint_id, self._base, handle_id, GROUPS, overlays)
        self._base, self._committed = checkpoint_id, handle_id


class Vectors:
    """Upserts by keyed state and deletion vectors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "table"
        self._store = open_store(str(self._folder))
        self._log = DeltaLog(self._store, "bench")
        self._places = Places(folder / "state")
        self.phases: list[dict[str, float]] = []

    def load(self, parts: Iterator[pa.Table]) -> None:
        self._log.create(SCHEMA)
        for part in parts:
            self.upsert(part)
        self.phases.clear()

    def upsert(self, rows: pa.Table) -> None:
        begin = time.perf_counter()
        keys = rows["key"].to_numpy()
        number = np.full(len(keys), self._log.version + 1)
        files, positions = self._places.move(keys, number, np.arange(len(keys)))
        moved = time.perf_counter()
        deleted = {
            int(file): np.sort(positions[files == file]) for file in np.unique(files[files >= 0])
        }
        self._log.commit(rows, deleted, self._log.version)
        done = time.perf_counter()
        self.phases.append({"state": moved - begin, "table": done - moved})

    def compact(self) -> dict[str, float]:
        """Rewrite the live rows into ten files, and move their keys."""
        begin = time.perf_counter()
        live = []
        for one in self._log.files.values():
            keep = np.ones(one.rows, bool)
            keep[one.deleted] = False
            table = pq.read_table(pa.BufferReader(self._store.get(one.path)))
            live.append(table.filter(pa.array(keep)))
        rows = pa.concat_tables(live).combine_chunks()
        part = -(-rows.num_rows // FILES)
        parts = [rows.slice(at, part) for at in range(0, rows.num_rows, part)]
        written = self._log.replace(parts, list(self._log.files))
        wrote = time.perf_counter()
        for number, one in zip(written, parts, strict=True):
            keys = one["key"].to_numpy()
            self._places.move(keys, np.full(len(keys), number), np.arange(len(keys)))
        return {"table_s": wrote - begin, "state_s": time.perf_counter() - wrote}


class Merge:
    """Upserts by delta-rs's merge."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "table"
        self.phases: list[dict[str, float]] = []

    def load(self, parts: Iterator[pa.Table]) -> None:
        for part in parts:
            write_deltalake(str(self._folder), part, mode="append")

    def upsert(self, rows: pa.Table) -> None:
        merge = DeltaTable(str(self._folder)).merge(
            rows, "t.key = s.key", source_alias="s", target_alias="t"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()


def rows_of(keys: np.ndarray, n: int, rng: np.random.Generator) -> pa.Table:
    """Return rows of these keys; the text of 32 letters hardly compresses."""
    letters = rng.integers(97, 123, len(keys) * 32, np.uint8).tobytes().decode()
    notes = [letters[at : at + 32] for at in range(0, len(letters), 32)]
    numbers = np.full(len(keys), n)
    return pa.table([keys, numbers, rng.random(len(keys)) * 100, notes], schema=SCHEMA)


def batches(arguments: argparse.Namespace, rng: np.random.Generator) -> Iterator[np.ndarray]:
    total, size = arguments.keys, arguments.batch
    for _ in range(arguments.batches):
        if arguments.load == "uniform":
            yield rng.choice(total, size, replace=False)
        else:
            recent = total - total // 20 + rng.choice(total // 20, size * 9 // 10, replace=False)
            older = rng.choice(total - total // 20, size - len(recent), replace=False)
            yield np.concatenate([recent, older])


def scan(folder: Path, query: str) -> pa.Table:
    found = QueryBuilder().register("t", DeltaTable(str(folder))).execute(query)
    return pa.table(found.read_all())


def scan_seconds(folder: Path) -> float:
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        scan(folder, "select sum(amount) from t")
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def stored(folder: Path) -> tuple[int, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def check(folder: Path, amounts: np.ndarray, seen: np.ndarray) -> None:
    """Compare the table, as delta-rs reads it, with the rows that were sent."""
    table = scan(folder, "select key, n, amount from t").sort_by("key")
    if not np.array_equal(table["key"].to_numpy(), np.arange(len(seen))):
        raise SystemExit("the table has other keys")
    if not np.array_equal(table["n"].to_numpy(), seen):
        raise SystemExit("the table has older rows")
    if not np.array_equal(table["amount"].to_numpy(), amounts):
        raise SystemExit("the table has other values")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one way, and return its figures."""
    rng = np.random.default_rng(arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="delta-upserts-"))
    way = Vectors(folder) if arguments.way == "vectors" else Merge(folder)
    try:
        seen = np.zeros(arguments.keys, np.int64)
        first = rows_of(np.arange(arguments.keys), 0, rng)
        amounts = first["amount"].to_numpy().copy()
        part = -(-arguments.keys // FILES)
        way.load(first.slice(at, part) for at in range(0, arguments.keys, part))
        loaded = stored(folder)
        before_s, seconds = scan_seconds(folder / "table"), []
        cpu: list[float] = []
        for n, keys in enumerate(batches(arguments, rng), 1):
            rows = rows_of(keys, n, rng)
            begin, begin_cpu = time.perf_counter(), time.process_time()
            way.upsert(rows)
            seconds.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - begin_cpu)
            seen[keys], amounts[keys] = n, rows["amount"].to_numpy()
        after = stored(folder)
        check(folder / "table", amounts, seen)
        figures = {
            "seconds": seconds,
            "cpu": cpu,
            "phases": way.phases,
            "scan_before_s": before_s,
            "scan_after_s": scan_seconds(folder / "table"),
            "objects_per_batch": (after[0] - loaded[0]) / arguments.batches,
            "bytes_per_batch": (after[1] - loaded[1]) / arguments.batches,
        }
        if isinstance(way, Vectors):
            figures["compaction"] = way.compact()
            check(folder / "table", amounts, seen)
            figures["scan_compacted_s"] = scan_seconds(folder / "table")
        return figures
    finally:
        shutil.rmtree(folder)


def quartiles(values: list[float]) -> list[float]:
    return [round(one, 4) for one in np.percentile(values, [25, 50, 75]).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", choices=["uniform", "recent"], default="uniform")
    parser.add_argument("--way", choices=["vectors", "merge"], help="Run one way, for itself.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments)))
        return
    results: dict[str, list[dict[str, Any]]] = {"vectors": [], "merge": []}
    facts = ("keys", "batch", "batches", "load")
    asked = [text for name in facts for text in (f"--{name}", str(getattr(arguments, name)))]
    for seed in range(arguments.rounds):
        for way, rounds in results.items():
            command = [sys.executable, __file__, *asked, "--way", way, "--seed", str(seed)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rounds.append(json.loads(done.stdout))
            print(f"{way}, round {seed}: {quartiles(rounds[-1]['seconds'])} s", file=sys.stderr)
    report: dict[str, Any] = {name: getattr(arguments, name) for name in facts}
    report["cores"] = os.cpu_count()
    for way, rounds in results.items():
        every = [one for single in rounds for one in single["seconds"]]
        report[way] = {"batch_s": quartiles(every)}
        rounds_s = [round(statistics.median(single["seconds"]), 3) for single in rounds]
        report[way]["medians_of_rounds_s"] = rounds_s
        every = [one for single in rounds for one in single["cpu"]]
        report[way]["batch_cpu_s"] = quartiles(every)
        for name in ("state", "table"):
            parts = [phase[name] for single in rounds for phase in single["phases"]]
            if parts:
                report[way][f"{name}_s"] = quartiles(parts)
        last = [one for single in rounds for one in single["seconds"][-10:]]
        report[way]["last_ten_s"] = quartiles(last)
        for name in (
            "scan_before_s", "scan_after_s", "scan_compacted_s", "objects_per_batch", "bytes_per_batch",
        ):  # fmt: skip
            if name in rounds[0]:
                report[way][name] = quartiles([single[name] for single in rounds])
        for name in ("table_s", "state_s") if way == "vectors" else ():
            parts = [single["compaction"][name] for single in rounds]
            report[way][f"compaction_{name}"] = quartiles(parts)
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
