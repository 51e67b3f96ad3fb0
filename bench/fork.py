"""
How long a fork of a location with millions of keys takes, the new checkpointLocation included.

Question: does the time of `statelog.fork` depend on the size of the state?  One location has `--keys` keys
in a snapshot and changes of 20 micro-batches after it, another has 1,000 keys.  They are forked in
turns, `--rounds` times, each time into a new folder on local disk with fsync.  The query of each has
a file source with `--files` listed files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from big_location import BigLocation
from pipeline import machine

import statelog

BATCHES = 20


def build(folder: Path, keys: int, files: int) -> None:
    """Write a location, and the checkpointLocation of its query."""
    location = BigLocation(folder / "state", retained=3)
    last = location.snapshot(np.arange(keys, dtype=np.int64))
    for at in range(BATCHES):
        touched = np.unique(np.random.default_rng(at).integers(0, keys, min(keys, 10_000)))
        last = location.change(touched)
    location.close()
    query = folder / "query"
    listed = [
        json.dumps({"path": f"file:///input/{at:08}.parquet", "timestamp": at, "batchId": at})
        for at in range(files)
    ]
    end = json.dumps({"logOffset": files - 1})
    for name, text in {
        "metadata": json.dumps({"id": "bench"}),
        f"offsets/{last - 1}": "v1\n{}\n" + end,
        f"offsets/{last}": "v1\n{}\n" + end,
        f"commits/{last}": "v1\n{}",
        f"sources/0/{files - 1}.compact": "\n".join(["v1", *listed]),
    }.items():
        path = query / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def fork(folder: Path, at: int) -> float:
    """Fork once and return the seconds."""
    new = folder / f"fork-{at}"
    begin = time.perf_counter()
    statelog.fork(
        folder / "state",
        new / "statelog",
        checkpoint_location=folder / "query",
        new_checkpoint_location=new,
    )
    seconds = time.perf_counter() - begin
    shutil.rmtree(new)
    return seconds


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="statelog-fork-") as scratch:
        sizes = {"small": 1_000, "large": arguments.keys}
        for name, keys in sizes.items():
            build(Path(scratch) / name, keys, arguments.files)
        stored = sum(
            one.stat().st_size
            for one in (Path(scratch) / "large/state").rglob("*")
            if one.is_file()
        )
        for at in range(arguments.rounds):
            for name in sizes:
                found.setdefault(name, []).append(fork(Path(scratch) / name, at) * 1000)
    print(f"{arguments.keys:,} keys, {stored / 2**20:.0f} MiB of state, {arguments.files:,} files")
    for name, times in found.items():
        quartiles = statistics.quantiles(times, n=4)
        print(
            f"{name:<6} {statistics.median(times):7.1f} ms (quartiles {quartiles[0]:.1f} to "
            f"{quartiles[2]:.1f}, most {max(times):.1f})"
        )
    if arguments.json:
        result = {
            "machine": machine(),
            "arguments": {**vars(arguments), "json": ""},
            "milliseconds": found,
        }
        arguments.json.write_text(json.dumps(result, indent=1, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
