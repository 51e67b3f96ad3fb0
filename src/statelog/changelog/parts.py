"""Check the parts that a storage is given, and make those that it is not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from statelog import arguments
from statelog.changelog.local.download_cache import DownloadCache
from statelog.changelog.local.recovery import LocalRecoveryConfig
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.errors import InvalidOptionsError
from statelog.metrics import Metrics
from statelog.model import ChangelogStateHandle
from statelog.options import ChangelogOptions
from statelog.runtime.driver import Runtime
from statelog.store.api import ObjectStore

_LOW_LATENCY_SCHEMES: Final = ("file:", "memory:")


def answers_at_once(store: ObjectStore) -> bool:
    """Return whether a store answers faster than a thread wakes up."""
    return store.url.startswith(_LOW_LATENCY_SCHEMES)


def download_cache(
    store: ObjectStore,
    directories: Sequence[str | os.PathLike[str]],
    options: ChangelogOptions,
    runtime: Runtime,
    metrics: Metrics,
) -> DownloadCache | None:
    """Return the cache of downloaded files; None without directories and for local disk."""
    if not directories or store.url.startswith("file:"):
        return None
    return DownloadCache(
        store,
        directories,
        runtime=runtime,
        max_bytes=options.download_local_cache_max_bytes,
        idle_timeout=options.download_local_cache_idle_timeout,
        metrics=metrics,
    )


def check_handle(handle: object) -> None:
    """Raise `UsageError` for an object that is not a changelog handle."""
    wanted = "a ChangelogStateHandle, such as SnapshotResult.job_manager_owned"
    arguments.instance(handle, "handle", ChangelogStateHandle, wanted)


def check_parts(metrics: object, scheduler: object, registry: object) -> None:
    """Raise `UsageError` for a part of the wrong class."""
    if metrics is not None:
        arguments.instance(metrics, "metrics", Metrics, "a Metrics")
    if scheduler is not None:
        methods, wanted = ("upload", "close"), "a StateChangeUploadScheduler"
        arguments.acting(scheduler, "scheduler", methods, wanted)
    if registry is not None:
        wanted = "a TaskChangelogRegistry"
        arguments.instance(registry, "registry", TaskChangelogRegistry, wanted)


def check_places(local_recovery: object, cache_directories: object) -> None:
    """Raise `InvalidOptionsError` for local directories of the wrong type."""
    if local_recovery is not None:
        arguments.instance(
            local_recovery,
            "local_recovery",
            LocalRecoveryConfig,
            "a LocalRecoveryConfig",
            error=InvalidOptionsError,
        )
    arguments.paths(cache_directories, "cache_directories", error=InvalidOptionsError)
