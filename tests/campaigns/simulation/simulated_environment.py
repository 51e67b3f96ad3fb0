"""
Build the store, the disk, the rules and the storage of a simulation from a seed.

Only threads, time, the store and the disk are simulated.  This is also an example of how to
assemble a storage from its parts.
"""

from __future__ import annotations

import random

from tests.campaigns.simulation.faulty_disk import FaultyDisk
from tests.campaigns.simulation.policy_checkers import BatchPolicy
from tests.support.simulated_runtime import (
    EventQueue,
    SimulatedLock,
    SimulatedPool,
    simulated_runtime,
)

from statelog.changelog.local_recovery import LocalBackup
from statelog.changelog.local_registry import LocalChangelogRegistry
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.batching import BatchingStateChangeUploadScheduler
from statelog.changelog.upload.uploader import StateChangeFsUploader
from statelog.core.retry_policy import NS_PER_S, RetryPolicy
from statelog.model import FileStateHandle
from statelog.options import ChangelogOptions
from statelog.store.paths import LocationPaths
from statelog.testing.faulty_store import FaultPlan, FaultyStore

MS = 1_000_000
_PATIENCE_S = 0.005
"""Far below the time-outs drawn here, as in production."""


class SimulatedEnvironment:
    """The storage of a simulated history, and all that it uses."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.queue = EventQueue()
        self.store = FaultyStore()
        self.plan = FaultPlan(
            error_rate=rng.choice([0.0, 0.1, 0.5]),
            slow_rate=rng.choice([0.0, 0.2]),
            hangs=rng.random() < 0.5,
        )
        self.faulty = self.plan.error_rate > 0
        self.runtime = simulated_runtime(
            self.queue, self.store, rng, lambda: self.plan, upload_threads=rng.randrange(1, 4)
        )
        self.disk = FaultyDisk(rng)
        self.disk_plan = FaultPlan(
            error_rate=rng.choice([0.0, 0.0, 0.3]), slow_rate=rng.choice([0.0, 0.3]), latency_ns=MS
        )
        self.disk_faulty = self.disk_plan.error_rate > 0
        self.disk.refusal_rate = 0.1 if self.disk_faulty else 0.0
        self._local_pool = SimulatedPool(self.queue, self.disk, rng, lambda: self.disk_plan, 2)
        self.copies = (
            LocalChangelogRegistry(disk=self.disk, runtime=self.runtime)
            if rng.random() < 0.5
            else None
        )
        self.policy = self._draw_policy()
        self.batching = self._draw_batching()
        self.storage = self._open()

    @property
    def waits(self) -> int:
        lock = self.runtime.lock
        return lock.waits if isinstance(lock, SimulatedLock) else 0

    @property
    def holds_up_work(self) -> bool:
        """Whether a wait inside another one delays the work of the outer one."""
        lock = self.runtime.lock
        return isinstance(lock, SimulatedLock) and lock.depth > 1

    @property
    def lock_is_held(self) -> bool:
        lock = self.runtime.lock
        return isinstance(lock, SimulatedLock) and lock.held

    def known_copies(self) -> list[str]:
        copies = self.copies
        return [
            path
            for path in self.disk.files
            if copies is not None and FileStateHandle(path, 0) in copies
        ]

    def heal(self) -> None:
        self.plan, self.disk_plan = FaultPlan(), FaultPlan(latency_ns=MS)

    def release(self) -> None:
        for pool in (self.runtime.upload_pool, self.runtime.discard_pool, self._local_pool):
            if isinstance(pool, SimulatedPool):
                pool.release()

    def close(self) -> None:
        self.storage.close()
        self._local_pool.close(0.0)

    def _draw_policy(self) -> RetryPolicy:
        rng = self._rng
        timeout_s = rng.choice([0.02, 0.1])
        match rng.randrange(4):
            case 0 if not self.plan.hangs:
                return RetryPolicy.none()
            case 1:
                return RetryPolicy.exponential(4, timeout_s, 0.01, 0.05)
            case _:
                return RetryPolicy.fixed(
                    rng.randrange(1, 4), timeout_s, rng.choice([0.0, 0.01, 0.3])
                )

    def _draw_batching(self) -> BatchPolicy:
        rng = self._rng
        limit_bytes = rng.choice([200, 1000, 10_000])
        return BatchPolicy(
            delay_ns=rng.choice([0, 1, 10, 50]) * MS,
            threshold_bytes=rng.randrange(1, limit_bytes),
            limit_bytes=limit_bytes,
            fixed_delay=rng.random() < 0.3,
        )

    def _open(self) -> FsStateChangelogStorage:
        registry = TaskChangelogRegistry(self.store, copies=self.copies, runtime=self.runtime)
        backup = None
        if self.copies is not None:
            backup = LocalBackup(
                "/local",
                patience_s=_PATIENCE_S,
                disk=self.disk,
                runtime=self.runtime,
                pool=self._local_pool,
            )
        uploader = StateChangeFsUploader(
            self.store,
            paths=LocationPaths("job"),
            ids=self.runtime.ids,
            compress=self._rng.random() < 0.3,
            registry=registry,
            backup=backup,
        )
        scheduler = BatchingStateChangeUploadScheduler(
            uploader,
            runtime=self.runtime,
            policy=self.policy,
            batch_delay_s=self.batching.delay_ns / NS_PER_S,
            batch_threshold_bytes=self.batching.threshold_bytes,
            max_in_flight_bytes=self.batching.limit_bytes,
            fixed_delay=self.batching.fixed_delay,
            backpressure_timeout_s=self._rng.choice([0.05, 5.0]),
        )
        threshold = self._rng.choice([0, 50, 500, 10**9])
        return FsStateChangelogStorage(
            self.store,
            options=ChangelogOptions(preemptive_persist_threshold_bytes=threshold),
            job_id="job",
            scheduler=scheduler,
            registry=registry,
            runtime=self.runtime,
        )
