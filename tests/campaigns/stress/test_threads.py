"""
Many real threads on one storage, under faults: nothing hangs, leaks or gets lost.

The simulation tries every order of events; this tries what it pretends: locks, pools, timers.
`STATELOG_STRESS_SECONDS=180 pytest -m slow tests/campaigns/stress` runs the long form for three minutes.
"""

import datetime as dt
import gc
import logging
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.campaigns.stress.chaos_store import ChaosStore
from tests.campaigns.stress.turmoil import CheckpointSide, Producer
from tests.support.project import evidence

from statelog import changelog as cl
from statelog.store import ObjectInfo, open_store
from statelog.testing.faulty_store import FaultPlan

LONG_S = float(os.environ.get("STATELOG_STRESS_SECONDS", "600"))
PRODUCERS, WRITERS = 8, 16
OPTIONS = cl.ChangelogOptions(
    preemptive_persist_threshold_bytes=6_000,
    batch_persist_delay=dt.timedelta(milliseconds=5),
    batch_persist_size_threshold_bytes=8_000,
    upload_max_in_flight_bytes=64_000,
    upload_timeout=dt.timedelta(milliseconds=50),
    upload_next_attempt_delay=dt.timedelta(milliseconds=10),
    upload_max_attempts=4,
    backpressure_timeout=dt.timedelta(seconds=30),
)
PLAN = FaultPlan(error_rate=0.05, slow_rate=0.05, latency_ns=2_000_000)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of injected faults are told otherwise; the levels come back afterwards."""
    caplog.set_level(logging.CRITICAL, "statelog")


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def eventually(
    condition: Callable[[], bool], what: str | Callable[[], str], timeout_s: float = 20
) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, f"never: {what() if callable(what) else what}"
        time.sleep(0.02)


def turmoil(
    location: str,
    seconds: float,
    *,
    harm_deletes: bool,
    seed: int,
    record: evidence.Record | None = None,
) -> Counter[str]:
    store = ChaosStore(
        open_store(location, storage_options={"fsync": False}),
        seed,
        PLAN,
        harm_deletes=harm_deletes,
    )
    storage = cl.FsStateChangelogStorage(store, options=OPTIONS, job_id="job")
    side = CheckpointSide(store, storage.registry)
    producers = [
        Producer(storage, side, seed + number, WRITERS // PRODUCERS) for number in range(PRODUCERS)
    ]
    samples = drive(producers, seconds)
    store.heal()
    for producer in producers:
        producer.settle()
    check_quiet(storage)
    side.sweep()
    check_owners(store, storage, side)
    storage.close()
    for producer in producers:
        producer.end()
    left = {info.path for info in store.list()}
    assert set() == left - set(side.files) - store.refused, "nobody owns these after the close"
    check_memory(samples, seconds)
    counts = sum((producer.counts for producer in producers), Counter[str]())
    counts.update(puts=store.puts, faults=store.faults)
    if record is not None:
        record.store_faults.update(store.faults_by_kind)
    sys.stdout.write(f"{location.split(':')[0]}, {seconds:g} s: {dict(counts)}\n")
    return counts


def drive(producers: list[Producer], seconds: float) -> list[int]:
    """Let every producer run on a thread of its own, and sample the memory meanwhile."""
    until_s = time.monotonic() + seconds
    threads = [threading.Thread(target=producer.run, args=[until_s]) for producer in producers]
    for thread in threads:
        thread.start()
    samples = []
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(1.0, seconds / 20))
        gc.collect()
        samples.append(rss_bytes())
        assert time.monotonic() < until_s + 120, "a producer hangs"
    for producer in producers:
        if producer.error is not None:
            raise producer.error
    return samples


def check_quiet(storage: cl.FsStateChangelogStorage) -> None:
    """Everything that was under way has ended, and left nothing in the books."""
    scheduler = storage.scheduler
    assert isinstance(scheduler, cl.BatchingStateChangeUploadScheduler)
    eventually(lambda: scheduler.in_flight_bytes == 0, "no bytes in flight")
    eventually(lambda: not scheduler._uploads._running, "no upload runs")
    pool = storage._runtime.upload_pool
    eventually(lambda: pool._limit == OPTIONS.upload_num_threads, "no thread is stuck")
    eventually(lambda: storage.registry._deleting == 0, "no deletion runs")
    assert ({}, {}) == (scheduler._offers, scheduler._batches)
    assert scheduler.availability.is_available
    assert 0 == storage.metrics.snapshot()["upload_queue_size"]
    for writer in storage._writers.values():
        assert 0 == len(writer._persists)


def check_owners(
    store: ChaosStore, storage: cl.FsStateChangelogStorage, side: CheckpointSide
) -> None:
    """Each file has an owner; a late attempt may delete its file a moment after all is quiet."""

    def orphans() -> list[ObjectInfo]:
        known = side.files.keys() | store.refused
        return [
            info
            for info in store.list()
            if info.path not in known
            and storage.registry.owner(cl.FileStateHandle(info.path, info.size_bytes)) is None
        ]

    eventually(
        lambda: not orphans(), lambda: f"an owner for {orphans()}, at {dt.datetime.now(dt.UTC)}"
    )


def check_memory(samples: list[int], seconds: float) -> None:
    """The last third needs no more than the second: the first one warms up."""
    if seconds < 30:
        return  # too short to tell growth from warmth
    third = len(samples) // 3
    before = statistics.median(samples[third : 2 * third])
    after = statistics.median(samples[2 * third :])
    sys.stdout.write(f"memory: {before / 1e6:.1f} MB, later {after / 1e6:.1f} MB\n")
    assert after < before * 1.05 + 4e6, f"memory grew from {before} to {after} bytes"


def test_five_seconds_of_turmoil_lose_and_leave_nothing() -> None:
    counts = turmoil("memory://stress-short", 5, harm_deletes=False, seed=1)
    assert counts["acknowledged"] > 100
    assert counts["faults"] > 0


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_long_turmoil_leaves_memory_flat(kind: str, tmp_path: Path) -> None:
    location = "memory://stress-long" if kind == "memory" else str(tmp_path)
    with evidence.campaign("threads under faults", kind, seeds=[2]) as record:
        harm_deletes = kind == "local"
        counts = turmoil(location, LONG_S, harm_deletes=harm_deletes, seed=2, record=record)
        assert counts["acknowledged"] > 10 * LONG_S
        record.runs = 1
        record.counts["persists"] += counts["acknowledged"]
