"""
Estimate what a restart must read, and how long that takes.

Each task reads its own objects: the newest snapshots of its key groups and the log after them.  The
tasks read at the same time, so the largest decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from statelog.model import CompletedCheckpoint, HandleAndOffset, KeyGroupRange, MaterializedHandle
from statelog.model.checkpoint import file_parts
from statelog.store import PATHS

_MB: Final = 1_000_000
_DRIVER_REQUESTS: Final = 7
"""Listings, the newest checkpoint, the claim."""
_REQUESTS_PER_RETAINED: Final = 2
_KINDS: Final = {HandleAndOffset: "log", MaterializedHandle: "snapshots"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """
    The speeds used to estimate the duration of a restart.

    Args:
        latency_ms: Time of a request to the first byte.
        read_mb_s: Bandwidth of one task, in MB (10^6 bytes) per second.
        restore_mb_s: Stored bytes that one task turns into state, in MB per second.
    """

    latency_ms: float = 30.0
    read_mb_s: float = 80.0
    restore_mb_s: float = 35.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPart:
    """What a restart reads of one kind (commits, log or snapshots): number and total size."""

    kind: str
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """
    Everything that a restart from the newest checkpoint reads.

    Args:
        checkpoint_id: The checkpoint.
        tasks: Number of tasks, as in the newest micro-batch.
        parts: Objects by kind, each object once.
        change_sets: Change sets that are replayed.
        driver_requests: Requests of the driver before the tasks run.
        task_requests: Requests of all tasks; an object that two tasks need is read twice.
        slowest_requests, slowest_bytes: The same of the task that reads the most bytes.
        speeds: The stated speeds.
        seconds: The estimate.
    """

    checkpoint_id: int
    tasks: int
    parts: tuple[RestartPart, ...]
    change_sets: int
    driver_requests: int
    task_requests: int
    slowest_requests: int
    slowest_bytes: int
    speeds: Speeds
    seconds: float

    @property
    def objects(self) -> int:
        """The number of distinct objects."""
        return sum(part.objects for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """The total size of the objects."""
        return sum(part.size_bytes for part in self.parts)


def estimate_s(driver_requests: int, requests: int, size_bytes: int, speeds: Speeds) -> float:
    """Estimate the seconds of the driver, then of one task: requests, then transfer."""
    waits = (driver_requests + requests) * speeds.latency_ms / 1000
    megabytes = size_bytes / _MB
    return waits + megabytes / speeds.read_mb_s + megabytes / speeds.restore_mb_s


def restart_of(
    checkpoint: CompletedCheckpoint,
    sizes: Mapping[str, int],
    *,
    tasks: int,
    operators: int,
    speeds: Speeds,
) -> Restart:
    """Return what a restart from *checkpoint* reads."""
    metadata = PATHS.metadata(checkpoint.checkpoint_id)
    kinds: dict[str, str] = {metadata: "commits"}
    loads: list[tuple[int, int]] = []
    for key_groups in _ranges(checkpoint.max_parallelism, operators, tasks):
        needed = {metadata}
        state = checkpoint.for_range(key_groups)
        for file, piece in file_parts(state):
            is_commit = file.path.endswith("/_metadata")
            kinds[file.path] = "commits" if is_commit else _KINDS[type(piece)]
            needed.add(file.path)
        loads.append((sum(sizes.get(path, 0) for path in needed), len(needed)))
    slowest_bytes, slowest_requests = max(loads)
    older = max(len(checkpoint.retained) - 1, 0)
    driver = _DRIVER_REQUESTS + _REQUESTS_PER_RETAINED * older
    return Restart(
        checkpoint_id=checkpoint.checkpoint_id,
        tasks=tasks,
        parts=tuple(_part(kind, kinds, sizes) for kind in ("snapshots", "log", "commits")),
        change_sets=sum(len(handle.handles_and_offsets) for handle in checkpoint.log),
        driver_requests=driver,
        task_requests=sum(requests for _, requests in loads),
        slowest_requests=slowest_requests,
        slowest_bytes=slowest_bytes,
        speeds=speeds,
        seconds=estimate_s(driver, slowest_requests, slowest_bytes, speeds),
    )


def _ranges(key_groups: int, operators: int, tasks: int) -> list[KeyGroupRange]:
    groups_per_operator = key_groups // operators
    return [
        key_range
        for index in range(operators)
        for key_range in KeyGroupRange(
            index * groups_per_operator, (index + 1) * groups_per_operator - 1
        ).split(max(1, tasks // operators))
    ]


def _part(kind: str, kinds: Mapping[str, str], sizes: Mapping[str, int]) -> RestartPart:
    paths = [path for path, found_kind in kinds.items() if found_kind == kind]
    size_bytes = sum(sizes.get(path, 0) for path in paths)
    return RestartPart(kind=kind, objects=len(paths), size_bytes=size_bytes)
