"""
Measure the cost of appends, persists and reads, and the limits of the machine.

    python bench/changelog.py [--quick] [--directory DIR] [--json FILE] [--only TEXT]

The cases are those of the measured Flink baseline: one writer, key groups 0..127 at random, values
half random and half repetitive, a checkpoint every so many changes (persist, wait, confirm,
truncate).  Values are generated before the measurement.  Each case runs once to warm up and then
several times; the table shows the median and the range.  MB are 10^6 bytes of values.

The table also lists what the time includes, and the case's peak memory: the highest resident size of
this process during its runs, reset before them (Linux only, else 0).  It includes the resident size
before the case, which is listed too: `before..peak MB`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import mmap
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import cramjam
import google_crc32c
import numpy as np
import pyarrow as pa

import statelog as sl
from statelog import changelog as cl
from statelog.store import open_store

ALL = sl.KeyGroupRange(0, 127)


@dataclass(frozen=True)
class Result:
    """
    One case: the median and the range of its runs, and what is counted.

    Args:
        case: Its name.
        unit: Of the figures.
        median, lowest, highest: Over the runs.
        inside: What happens while the clock runs.
        resident_bytes: Resident size of the process before the runs; 0 if unknown.
        peak_bytes: The highest one during the runs.
        note: Further information.
    """

    case: str
    unit: str
    median: float
    lowest: float
    highest: float
    inside: str
    resident_bytes: int
    peak_bytes: int
    note: str = ""


SETTLE_S = 40
"""Until ext4 takes the inodes of deleted files for free again; see `persist_latencies`."""
PERSISTED = "append_batch, cut, encode, put, persist's result, confirm, truncate"
"""Of writing in batches; making the values is outside."""


def reset_peak() -> None:
    """Let the highest resident size be counted from here on; does nothing where that cannot be."""
    gc.collect()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory_bytes(field: str) -> int:
    """Return `VmHWM` (peak) or `VmRSS` (now) of this process; 0 if unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def values_of(rng: np.random.Generator, count: int, length: int) -> pa.Array:
    """Return *count* values: the first half random, the rest words of a small dictionary."""
    words = rng.integers(0, 256, (256, 8), dtype=np.uint8)
    data = rng.integers(0, 256, (count, length), dtype=np.uint8)
    tail = length - length // 2
    picks = words[rng.integers(0, 256, (count, tail // 8 + 1))].reshape(count, -1)
    data[:, length // 2 :] = picks[:, :tail]
    offsets = np.arange(count + 1, dtype=np.int32) * length
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))]
    )


class Bench:
    """The cases, and the place they write to."""

    def __init__(self, directory: Path, *, quick: bool, only: str) -> None:
        self._directory = directory
        self._scale = 10 if quick else 1
        self._runs = 3 if quick else 5
        self._only = only
        self._rng = np.random.default_rng(42)
        self._runs_made = 0
        self._resident_bytes = 0
        self.results: list[Result] = []

    def measure(
        self, case: str, unit: str, run: Callable[[], float], *, inside: str, note: str = ""
    ) -> None:
        """Run a case, warm, several times, and print its line."""
        if self._only and self._only not in case:
            return
        run()
        reset_peak()
        self._resident_bytes = memory_bytes("VmRSS")
        values = [run() for _ in range(self._runs)]
        self.note(case, unit, values, inside=inside, note=note)

    def note(
        self, case: str, unit: str, values: Sequence[float], *, inside: str, note: str = ""
    ) -> None:
        """Keep and print the figures of a case that has just run."""
        resident, peak = self._resident_bytes, memory_bytes("VmHWM")
        median = statistics.median(values)
        result = Result(case, unit, median, min(values), max(values), inside, resident, peak, note)
        self.results.append(result)
        print(
            f"{case:56} {result.median:9.3f} {unit:6} ({result.lowest:.3f}-{result.highest:.3f})"
            f"  {resident / 1e6:.0f}..{peak / 1e6:.0f} MB  [{inside}] {note}".rstrip(),
            flush=True,
        )

    def storage(self, *, fsync: bool = False, **options: object) -> cl.FsStateChangelogStorage:
        """Return a storage in a fresh folder."""
        self._runs_made += 1
        store = open_store(
            str(self._directory / str(self._runs_made)), storage_options={"fsync": fsync}
        )
        return cl.FsStateChangelogStorage(
            store,
            job_id="bench",
            options=cl.ChangelogOptions(**options),  # type: ignore[arg-type]
        )

    def clean(self) -> None:
        """Delete what the last run wrote."""
        shutil.rmtree(self._directory / str(self._runs_made), ignore_errors=True)

    # --- writing ----------------------------------------------------------------------------------

    def write_batches(
        self, length: int, total: int, every: int, fsync: bool, snappy: bool
    ) -> float:
        """Append in batches of a tenth of a checkpoint; return millions of changes per second."""
        batch = every // 10
        total //= self._scale
        values = values_of(self._rng, batch, length)
        key_groups = self._rng.integers(0, 128, batch, dtype=np.int32)
        with self.storage(fsync=fsync, compression_enabled=snappy) as storage:
            writer = storage.create_writer("bench", ALL)
            started = time.perf_counter()
            from_sqn = writer.initial_sequence_number()
            for checkpoint_id in range(total // every):
                for _ in range(10):
                    writer.append_batch(key_groups, values)
                from_sqn = checkpoint(writer, from_sqn, checkpoint_id)
            elapsed = time.perf_counter() - started
        self.clean()
        return total / elapsed / 1e6

    def write_singly(self, persist: bool) -> float:
        """Append 100-byte values one by one; return millions of changes per second."""
        total, every = 2_000_000 // self._scale, 100_000
        values = values_of(self._rng, every, 100).to_pylist()
        key_groups = self._rng.integers(0, 128, every).tolist()
        options = {} if persist else {"preemptive_persist_threshold_bytes": 2**40}
        with self.storage(**options) as storage:
            writer = storage.create_writer("bench", ALL)
            started = time.perf_counter()
            from_sqn = writer.initial_sequence_number()
            append = writer.append
            for checkpoint_id in range(total // every):
                for key_group, value in zip(key_groups, values, strict=True):
                    append(key_group, value)
                if persist:
                    from_sqn = checkpoint(writer, from_sqn, checkpoint_id)
            elapsed = time.perf_counter() - started
        self.clean()
        return total / elapsed / 1e6

    def persist_latencies(self, fsync: bool, fixed_delay: bool) -> tuple[list[float], list[float]]:
        """
        Return the milliseconds of 300 persists of 1000 changes of 100 bytes, sorted.

        And, in turns with them, of bare files with as many bytes.  All of them stay to the end: for
        half a minute after many files went, ext4 looks at each of their inodes before it makes a
        new one, and a bare file takes 0.9 ms in place of 0.04.
        """
        values = values_of(self._rng, 1000, 100)
        key_groups = self._rng.integers(0, 128, 1000, dtype=np.int32)
        latencies, bare = [], []
        content = self._rng.bytes(105_000)
        with self.storage(fsync=fsync, batch_fixed_delay=fixed_delay) as storage:
            writer = storage.create_writer("bench", ALL)
            from_sqn = writer.initial_sequence_number()
            for checkpoint_id in range(300 // self._scale * 2):
                writer.append_batch(key_groups, values)
                started = time.perf_counter()
                writer.persist(from_sqn, checkpoint_id).result()
                latencies.append((time.perf_counter() - started) * 1e3)
                path = self._directory / f"bare-{self._runs_made}-{checkpoint_id}"
                started = time.perf_counter()
                with open(path, "wb", buffering=0) as file:
                    file.write(content)
                    if fsync:
                        os.fsync(file.fileno())
                bare.append((time.perf_counter() - started) * 1e3)
                to_sqn = writer.next_sequence_number()
                writer.confirm(from_sqn, to_sqn, checkpoint_id)
                writer.truncate(to_sqn)
                from_sqn = to_sqn
        warm = len(latencies) // 3
        return sorted(latencies[warm:]), sorted(bare[warm:])

    def sixteen_writers(self, files: bool, fsync: bool = False) -> float:
        """Return milliseconds until 16 writers have persisted, or files per checkpoint."""
        values = values_of(self._rng, 100, 100)
        key_groups = self._rng.integers(0, 128, 100, dtype=np.int32)
        times = []
        with self.storage(fsync=fsync) as storage:
            writers = [storage.create_writer(f"bench {index}", ALL) for index in range(16)]
            for checkpoint_id in range(30):
                for writer in writers:
                    writer.append_batch(key_groups, values)
                starts = [cl.SequenceNumber(checkpoint_id) for _ in writers]
                started = time.perf_counter()
                futures = [
                    writer.persist(start, checkpoint_id)
                    for writer, start in zip(writers, starts, strict=True)
                ]
                for future in futures:
                    future.result()
                times.append((time.perf_counter() - started) * 1e3)
            count = sum(1 for _ in storage.store.list())
        self.clean()
        return count / 30 if files else statistics.median(times)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, length: int, total: int, snappy: bool, singly: bool) -> Iterator[float]:
        """Write once, then yield millions of changes read per second, run by run."""
        total //= self._scale
        batch = 50_000 if length <= 100 else 5_000
        values = values_of(self._rng, batch, length)
        key_groups = self._rng.integers(0, 128, batch, dtype=np.int32)
        with self.storage(compression_enabled=snappy) as storage:
            writer = storage.create_writer("bench", ALL)
            for _ in range(total // batch):
                writer.append_batch(key_groups, values)
                writer.next_sequence_number()
            handle = writer.persist(writer.initial_sequence_number()).result().job_manager_owned
            assert handle is not None
            while True:
                started = time.perf_counter()
                if singly:
                    count = sum(1 for _ in storage.read(handle))
                else:
                    count = sum(len(each) for each in storage.read_batches(handle))
                assert count == total // batch * batch
                yield count / (time.perf_counter() - started) / 1e6


def checkpoint(
    writer: cl.FsStateChangelogWriter, from_sqn: cl.SequenceNumber, checkpoint_id: int
) -> cl.SequenceNumber:
    """Do one checkpoint as Flink's baseline does and return where the next one starts."""
    to_sqn = writer.next_sequence_number()
    writer.persist(from_sqn, checkpoint_id).result()
    writer.confirm(from_sqn, to_sqn, checkpoint_id)
    writer.truncate(to_sqn)
    return to_sqn


def limits(bench: Bench, directory: Path) -> None:
    """Measure the limits of the machine: memory, disk, checksum, codec."""
    block = os.urandom(64 << 20)
    half = values_of(np.random.default_rng(1), 100_000, 100).buffers()[2].to_pybytes()
    target = bytearray(len(block))

    def timed(amount_bytes: int, work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        return amount_bytes / (time.perf_counter() - started) / 1e9

    def copy() -> None:
        target[:] = block

    def write(fsync: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "limit", "wb", buffering=0) as file:
            for start in range(0, len(block), 1 << 20):
                file.write(memoryview(block)[start : start + (1 << 20)])
            if fsync:
                os.fsync(file.fileno())
        os.unlink(directory / "limit")

    def small(fsync: bool) -> float:
        times = []
        for index in range(50):
            started = time.perf_counter()
            with open(directory / f"small-{index}", "wb", buffering=0) as file:
                file.write(block[:104_000])
                if fsync:
                    os.fsync(file.fileno())
            times.append((time.perf_counter() - started) * 1e3)
            os.unlink(directory / f"small-{index}")
        return statistics.median(times)

    def fresh() -> None:
        # The system gives pages away one by one, each filled with zeros first.
        with mmap.mmap(-1, len(block)) as pages:
            pages[:] = block

    directory.mkdir(parents=True, exist_ok=True)
    framed = bytes(cramjam.snappy.compress_raw(half))
    cases: list[tuple[str, str, Callable[[], float], str]] = [
        ("memcpy 64 MiB, warm pages", "GB/s", lambda: timed(len(block), copy), "copy"),
        ("memcpy 64 MiB, fresh pages", "GB/s", lambda: timed(len(block), fresh), "mmap, copy"),
        (
            "write 64 MiB, no fsync",
            "GB/s",
            lambda: timed(len(block), lambda: write(False)),
            "open, 1 MiB writes, close, unlink",
        ),
        (
            "write 64 MiB, fsync",
            "GB/s",
            lambda: timed(len(block), lambda: write(True)),
            "open, 1 MiB writes, fsync, close, unlink",
        ),
        ("create 104 kB file, no fsync", "ms", lambda: small(False), "open, write, close"),
        ("create 104 kB file, fsync", "ms", lambda: small(True), "open, write, fsync, close"),
        (
            "crc32c",
            "GB/s",
            lambda: timed(len(block), lambda: google_crc32c.value(block)),
            "checksum of 64 MiB",
        ),
        (
            f"snappy compress, ratio {len(framed) / len(half):.2f}",
            "GB/s",
            lambda: timed(len(half), lambda: cramjam.snappy.compress_raw(half)),
            "10 MB of the values below, no checksum",
        ),
        (
            "snappy decompress",
            "GB/s",
            lambda: timed(len(half), lambda: cramjam.snappy.decompress_raw(framed)),
            "the same back",
        ),
    ]
    for case, unit, once, inside in cases:
        bench.measure(f"limit: {case}", unit, once, inside=inside)


def write_cases(bench: Bench) -> None:
    """Append and persist, in batches and one by one."""
    for fsync in (False, True):
        word = "fsync" if fsync else "no fsync"
        for snappy in (False, True):
            kind = "snappy" if snappy else "plain"
            for name, length, total, every in (
                ("100 B / 100k", 100, 5_000_000, 100_000),
                ("1 KiB / 50k", 1024, 500_000, 50_000),
            ):
                bench.measure(
                    f"append_batch+persist {name}, {kind}, {word}",
                    "M/s",
                    partial(bench.write_batches, length, total, every, fsync, snappy),
                    inside=PERSISTED,
                )
    bench.measure(
        "append one by one, inline",
        "M/s",
        lambda: bench.write_singly(False),
        inside="append; values are bytes already",
    )
    bench.measure(
        "append one by one+persist 100 B / 100k",
        "M/s",
        lambda: bench.write_singly(True),
        inside=PERSISTED.replace("append_batch", "append"),
    )


def latency_cases(bench: Bench) -> None:
    """How long one small persist takes, and sixteen at once."""
    inside = "persist until its result; append, confirm and truncate outside"
    for fsync, fixed in ((False, False), (True, False), (False, True), (True, True)):
        name = f"persist 1000 x 100 B, {'fsync' if fsync else 'no fsync'}"
        name += ", Flink's fixed delay" if fixed else ""
        others: list[tuple[float, float, float]] = []

        def once(
            fsync: bool = fsync,
            fixed: bool = fixed,
            into: list[tuple[float, float, float]] = others,
        ) -> float:
            latencies, bare = bench.persist_latencies(fsync, fixed)
            half, late = len(latencies) // 2, int(len(latencies) * 0.99)
            into.append((latencies[late], bare[half], bare[late]))
            return latencies[half]

        bench.measure(f"{name}, p50", "ms", once, inside=inside)
        if others:
            p99, bare_p50, bare_p99 = zip(*others[1:], strict=True)
            bench.note(f"{name}, p99", "ms", p99, inside=inside)
            if not fixed:
                word = name.rpartition(", ")[2]
                limit = f"limit: bare file of 105 kB in turns with these, {word}"
                bench.note(f"{limit}, p50", "ms", bare_p50, inside="open, write, close")
                bench.note(f"{limit}, p99", "ms", bare_p99, inside="open, write, close")
    for fsync in (False, True):
        word = "fsync" if fsync else "no fsync"
        bench.measure(
            f"16 writers persist at once, {word}, p50",
            "ms",
            partial(bench.sixteen_writers, False, fsync),
            inside="16 persists from one thread until the last result",
        )
    bench.measure(
        "16 writers persist at once",
        "files",
        lambda: bench.sixteen_writers(True),
        inside="files for each checkpoint; no time",
    )


def read_cases(bench: Bench) -> None:
    """Read back what is in the page cache."""
    for singly in (False, True):
        for length, total in ((100, 2_000_000), (1024, 200_000)):
            for snappy in (False, True):
                how = "one by one" if singly else "in batches"
                kind = "snappy" if snappy else "plain"
                runs = bench.read(length, total, snappy, singly)
                bench.measure(
                    f"read {how} {length} B, {kind}",
                    "M/s",
                    partial(next, runs),
                    inside="open, read, verify, decode" + (", one tuple each" if singly else ""),
                )
                runs.close()
                bench.clean()


def machine() -> dict[str, str]:
    """Return what the figures were measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        model = platform.processor()
    return {
        "cpu": model,
        "cpus": str(os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "load": " ".join(f"{each:.2f}" for each in os.getloadavg()),
    }


def main() -> int:
    """Parse the command line, run, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, fewer runs")
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        bench = Bench(Path(folder) / "run", quick=options.quick, only=options.only)
        description = machine()
        print(json.dumps(description))
        if not options.quick and (not options.only or "persist" in options.only):
            time.sleep(SETTLE_S)
        latency_cases(bench)  # first: what the others delete would slow it down
        limits(bench, Path(folder) / "limits")
        write_cases(bench)
        read_cases(bench)
    document = {"machine": description, "results": [asdict(each) for each in bench.results]}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    else:
        print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
