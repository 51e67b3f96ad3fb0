"""
Measure the time and the memory of `verify` on a sound location of many objects, on local disk.

Question: how long does `statelog verify` take for 1,000 and for 10,000 objects, and does its memory
stay flat?  A location is one checkpoint that refers to that many objects: log files of 20 KB, and one
snapshot of 200 KB for every 50 of them.  Each round verifies in a new process; memory is the largest
resident size of the process beyond the one after its imports.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.checkpoint import CheckpointCoordinator, CheckpointOptions
from statelog.checkpoint.verify import verify_location
from statelog.format.buffers import checksum
from statelog.format.segment import SegmentWriter
from statelog.model import (
    ChangeBatch,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
)
from statelog.store import PATHS, open_store

GROUPS = 128
VALUES = 200
VALUE_BYTES = 100
SNAPSHOT_ROWS = 25_000
FILES_PER_SNAPSHOT = 50


def build(folder: Path, objects: int) -> int:
    """Write a location with so many objects below its metadata; return their bytes."""
    store = open_store(str(folder), storage_options={"fsync": False})
    one = CheckpointCoordinator(
        store,
        owner_id="bench",
        max_parallelism=GROUPS,
        options=CheckpointOptions(retained=1),
        clock_ms=lambda: int(time.time() * 1000),
    )
    one.claim()
    one.restore()
    random = np.random.default_rng(1)
    snapshots = min(objects // (FILES_PER_SNAPSHOT + 1), GROUPS)
    total = 0
    logs = []
    for number in range(objects - snapshots):
        group = number % GROUPS
        values = [random.bytes(VALUE_BYTES) for _ in range(VALUES)]
        batch = ChangeBatch(np.full(VALUES, group, np.int32), pa.array(values, pa.binary()))
        writer = SegmentWriter()
        entry = writer.add([batch])
        path = PATHS.changelog(f"{number:08x}")
        data = b"".join(map(bytes, writer.finish()))
        store.put(path, data)
        total += len(data)
        file = FileStateHandle(path, writer.payload_size)
        logs.append(HandleAndOffset(file, entry.offset, entry.size_bytes, entry.crc32c))
    whole = KeyGroupRange(0, GROUPS - 1)
    size = len(logs) * VALUES * VALUE_BYTES
    log = ChangelogStateHandle(whole, tuple(logs), size, size, "log", 2)
    handles = [snapshot(store, number % GROUPS, number) for number in range(snapshots)]
    total += sum(one.handle.size_bytes for one in handles)
    # One snapshot for each key group counts; those of checkpoint 1 do not make the log of 2 unneeded.
    for snapshots_now in (handles, ()):
        checkpoint_id = one.next_checkpoint_id
        ranges = [KeyGroupRange(group, group) for group in range(GROUPS)]
        if snapshots_now:
            one.trigger(checkpoint_id, ranges)
            by_group = {each.key_group_range.start: each for each in snapshots_now}
            for part in ranges:
                one.acknowledge(
                    checkpoint_id, TaskStateSnapshot(part, None, by_group.get(part.start))
                )
        else:
            one.trigger(checkpoint_id, [whole])
            one.acknowledge(checkpoint_id, TaskStateSnapshot(whole, log))
        one.complete(checkpoint_id, properties={})
    one.clean_up()
    return total


def snapshot(store: object, group: int, number: int) -> MaterializedHandle:
    """Put the snapshot of one key group."""
    table = pa.table(
        {
            "key_group": pa.array(np.full(SNAPSHOT_ROWS, group), pa.int32()),
            "key.k": np.random.default_rng(number).integers(0, 2**60, SNAPSHOT_ROWS),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = sink.getvalue().to_pybytes()
    path = PATHS.task_owned(f"{number:08x}")
    store.put(path, data)  # type: ignore[attr-defined]
    handle = FileStateHandle(path, len(data), checksum([data]))
    return MaterializedHandle(KeyGroupRange(group, group), 1, handle)


def peak_kib(*, reset: bool = False) -> int:
    """Return the largest resident size of this process so far; *reset* begins anew (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def verify(folder: str) -> dict[str, float]:
    """Verify a location in this process."""
    before = peak_kib(reset=True)
    begin = time.perf_counter()
    found = read = problems = 0
    for one in verify_location(open_store(folder)):
        found += 1
        read += one.size_bytes
        problems += bool(one.problem)
    seconds = time.perf_counter() - begin
    after = peak_kib()
    return {
        "objects": found,
        "bytes": read,
        "problems": problems,
        "seconds": seconds,
        "peak_mib": (after - before) / 1024,
    }


def main() -> int:
    """Measure each number of objects in so many rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verify", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.verify:
        print(json.dumps(verify(arguments.verify)))
        return 0
    results = []
    with tempfile.TemporaryDirectory(prefix="statelog-bench-") as work:
        for objects in arguments.objects:
            folder = Path(work) / str(objects)
            build(folder, objects)
            command = [sys.executable, __file__, "--verify", str(folder)]
            rounds = [
                json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                for _ in range(arguments.rounds)
            ]
            seconds = [one["seconds"] for one in rounds]
            peaks = [one["peak_mib"] for one in rounds]
            results.append(
                {
                    "objects": rounds[0]["objects"],
                    "mib": rounds[0]["bytes"] / 2**20,
                    "problems": max(one["problems"] for one in rounds),
                    "seconds": {
                        "median": statistics.median(seconds),
                        "min": min(seconds),
                        "max": max(seconds),
                    },
                    "peak_mib": {
                        "median": statistics.median(peaks),
                        "min": min(peaks),
                        "max": max(peaks),
                    },
                }
            )
            print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        facts = {"machine": platform.platform(), "python": platform.python_version()}
        arguments.json.write_text(json.dumps({**facts, "results": results}, indent=2) + "\n")
    return int(any(one["problems"] for one in results))


if __name__ == "__main__":
    sys.exit(main())
