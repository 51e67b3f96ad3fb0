"""
How long a publication of a location with millions of keys takes.

Question: how long does a publication take when the changed keys are in all key groups?  The location has
`--keys` keys in 64 snapshots, as a job of that size has them, on local disk; the table is an Iceberg table
in a catalog of SQLite, or a Delta table.  Measured are the first publication, `--rounds` checkpoints that change `--changed` keys each, a
call of a new process at the end of them (a restart), and a call that has nothing to do.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from big_location import BigLocation
from pipeline import machine

from statelog.extensions.publish.publisher import TablePublisher, publisher

SLICES = 64


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--changed", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--table", choices=["iceberg", "delta"], default="iceberg")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="statelog-publish-") as scratch:
        location = BigLocation(Path(scratch) / "state", tasks=SLICES, retained=3)
        location.snapshot(np.arange(arguments.keys, dtype=np.int64))

        def opened() -> TablePublisher:
            if arguments.table == "delta":
                return publisher(Path(scratch) / "state", delta=Path(scratch) / "table")
            return publisher(
                Path(scratch) / "state",
                iceberg="bench.jobs.totals",
                catalog_options={
                    "type": "sql",
                    "uri": f"sqlite:///{scratch}/catalog.db",
                    "warehouse": f"file://{scratch}/warehouse",
                },
            )

        following = opened()
        seconds = {"first": [timed(following.refresh)]}
        written = []
        for at in range(arguments.rounds):
            generator = np.random.default_rng(at)
            touched = generator.integers(0, arguments.keys, arguments.changed)
            location.change(np.unique(touched))
            begin = time.perf_counter()
            report = following.refresh()
            seconds.setdefault("next", []).append(time.perf_counter() - begin)
            written.append(0 if report is None else report.written_rows)
        seconds["nothing"] = [timed(following.refresh) for _ in range(5)]
        seconds["again"] = [timed(opened().publish)]
        location.change(np.arange(arguments.changed, dtype=np.int64))
        seconds["restart"] = [timed(opened().publish)]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        location.close()
    print(f"{arguments.keys:,} keys; {arguments.changed:,} changed by each of {arguments.rounds}")
    for name, times in seconds.items():
        print(f"{name:<8} {statistics.median(times):7.3f} s (most {max(times):.3f})")
    print(f"written  {statistics.median(written):,.0f} rows; memory {memory / 2**20:.0f} MiB")
    if arguments.json:
        result = {
            "machine": machine(),
            "arguments": {name: value for name, value in vars(arguments).items() if name != "json"},
            "seconds": seconds,
            "written_rows": written,
            "memory_bytes": memory,
        }
        arguments.json.write_text(json.dumps(result, indent=1, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
