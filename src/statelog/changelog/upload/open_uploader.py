"""The uploader of changelog files that options describe, and its local copies."""

from __future__ import annotations

import os

from statelog.changelog.from_options import checked_job_id, store_of
from statelog.changelog.local.recovery import LocalBackup, LocalRecoveryConfig
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.uploader import StateChangeFsUploader
from statelog.metrics import Metrics
from statelog.options import ChangelogOptions
from statelog.runtime.driver import Runtime
from statelog.store.api import ObjectStore


def open_uploader(
    options: ChangelogOptions,
    base_path: str | os.PathLike[str] | ObjectStore | None,
    *,
    job_id: str,
    metrics: Metrics | None,
    registry: TaskChangelogRegistry | None,
    local_recovery: LocalRecoveryConfig | None,
    runtime: Runtime,
) -> tuple[StateChangeFsUploader, LocalBackup | None]:
    """
    Return an uploader, and what writes its local copies, which the caller closes.

    Args:
        options: Compression, threads, and the base path where none is given.
        base_path: Path, URL or store; None to take `options.base_path`.
        job_id: Folder of the job below it; "" for none.
        metrics: Records durations and local copies; None disables it.
        registry: Tracks the files; None if the clean-up alone deletes files.
        local_recovery: Where to write local copies; None for none.
        runtime: Clock, threads and ids.

    Raises:
        InvalidOptionsError: No location, or a job id that is not the name of one folder.
    """
    backup = None
    if local_recovery is not None and local_recovery.backup:
        backup = LocalBackup(
            local_recovery.folder_of(checked_job_id(job_id)),
            num_threads=options.upload_num_threads,
            metrics=metrics,
            runtime=runtime,
        )
    uploader = StateChangeFsUploader(
        store_of(base_path, options),
        job_id=job_id,
        ids=runtime.ids,
        compress=options.compression_enabled,
        registry=registry,
        backup=backup,
        metrics=metrics,
        clock=runtime.clock,
    )
    return uploader, backup
