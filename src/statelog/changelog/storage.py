"""
The changelog storage: the entry point of a job, which assembles all parts.

Source: Flink, FsStateChangelogStorage.  Deviations: it closes its writers; its construction starts
no thread and sends no request to the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from statelog import arguments
from statelog.changelog.local_registry import LocalChangelogRegistry
from statelog.changelog.reader import ReadReport, read_change_batches, read_changes
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.retrying import ObjectUploads
from statelog.changelog.upload.scheduler import (
    InlineStateChangeUploadScheduler,
    StateChangeUploadScheduler,
)
from statelog.changelog.upload.uploader import (
    checked_job_id,
    checked_options,
    retry_policy,
    store_of,
)
from statelog.changelog.writer import FsStateChangelogWriter, WriterContext, interrupted_text
from statelog.errors import ClosedError, InvalidOptionsError, UsageError
from statelog.metrics import Metrics
from statelog.model import ChangelogStateHandle, KeyGroupRange, StateChange
from statelog.model.key_group import MAX_PARALLELISM_LIMIT
from statelog.options import ChangelogOptions, LocalRecoveryOptions, Options
from statelog.runtime.closing import ClosesAtExit, close_all
from statelog.runtime.lock import OwningProcess
from statelog.runtime.runtime import Runtime, system_runtime
from statelog.store.api import ObjectStore

if TYPE_CHECKING:
    from statelog.changelog.download_cache import DownloadCache
    from statelog.changelog.local_recovery import LocalRecoveryConfig
    from statelog.runtime.mailbox import MailboxExecutor

# Check the parts that a storage is given, and make those that it is not.


def download_cache(
    store: ObjectStore,
    directories: Sequence[str | os.PathLike[str]],
    options: ChangelogOptions,
    runtime: Runtime,
    metrics: Metrics,
) -> DownloadCache | None:
    """Return the download cache; None without directories, or for local disk."""
    if not directories or store.url.startswith("file:"):
        return None
    # Imported here: only a storage with directories for it has a cache.
    from statelog.changelog.download_cache import DownloadCache

    return DownloadCache(
        store,
        directories,
        runtime=runtime,
        max_bytes=options.download_local_cache_max_bytes,
        idle_timeout=options.download_local_cache_idle_timeout,
        metrics=metrics,
    )


def local_copies(options: LocalRecoveryOptions) -> LocalRecoveryConfig | None:
    """Return where to store local copies; None if they are neither written nor read."""
    if not options.backup and not options.recovery:
        return None
    # Imported here: only a storage with local copies needs it.
    from statelog.changelog.local_recovery import LocalRecoveryConfig

    return LocalRecoveryConfig.of(options)


def check_handle(handle: object) -> None:
    """Raise `UsageError` for an object that is not a changelog handle."""
    expected = "a ChangelogStateHandle, such as SnapshotResult.job_manager_owned"
    arguments.instance(handle, "handle", ChangelogStateHandle, expected)


def check_parts(metrics: object, scheduler: object, registry: object) -> None:
    """Raise `UsageError` for a part that is not of the expected class."""
    if metrics is not None:
        arguments.instance(metrics, "metrics", Metrics, "a Metrics")
    if scheduler is not None:
        methods = ("upload", "close")
        expected = "a StateChangeUploadScheduler"
        arguments.acting(scheduler, "scheduler", methods, expected)
    if registry is not None:
        expected = "a TaskChangelogRegistry"
        arguments.instance(registry, "registry", TaskChangelogRegistry, expected)


def check_places(local_recovery: object, cache_directories: object) -> None:
    """Raise `InvalidOptionsError` if the local directories are of the wrong type."""
    if local_recovery is not None:
        from statelog.changelog.local_recovery import LocalRecoveryConfig

        arguments.instance(
            local_recovery,
            "local_recovery",
            LocalRecoveryConfig,
            "a LocalRecoveryConfig",
            error=InvalidOptionsError,
        )
    arguments.paths(cache_directories, "cache_directories", error=InvalidOptionsError)


_CLOSE_TIMEOUT_S = 1.0


def _new_runtime(options: ChangelogOptions) -> Runtime:
    return system_runtime(
        upload_threads=options.upload_num_threads, discard_threads=options.discard_num_threads
    )


class FsStateChangelogStorage(ClosesAtExit):
    """
    The changelogs of one job in one process, stored in an object store.

    Args:
        base_path: Path, URL or store; None to take `options.base_path`.
        options: Batching, retries and back-pressure.
        job_id: Folder of the job below the root: files are stored in `<job_id>/dstl/`.  One name,
            without slashes; "" for no such folder, None for a new unique one.
        metrics: Registry of the values; None for a new one.
        scheduler: Uploads, instead of the batching scheduler of the options; closed with the
            storage.  Its files are tracked only if its uploader has *registry*.  A batching one
            shares *runtime*, so that its threads stop with the storage.
        registry: Tracks files; None for a new one.
        local_recovery: Write host-local copies, and read from them; None for neither.  With your
            own *scheduler*, give its uploader the `LocalBackup` and *registry* the
            `LocalChangelogRegistry`.
        cache_directories: Directories for downloaded files, bounded by
            `options.download_local_cache_idle_timeout` and
            `options.download_local_cache_max_bytes`; none for no cache.  Ignored for a store on
            local disk.
        runtime: Clock, threads and ids; None for the real ones.
        inline_bytes: Changes of one upload up to this size stay in their handles, without a thread
            and without a request; None for files only.

    Raises:
        InvalidOptionsError: No location, or an invalid one; a job id that is not the name of one
            folder; an argument of the wrong type.
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str] | ObjectStore | None = None,
        *,
        options: ChangelogOptions | None = None,
        job_id: str | None = None,
        metrics: Metrics | None = None,
        scheduler: StateChangeUploadScheduler | None = None,
        registry: TaskChangelogRegistry | None = None,
        runtime: Runtime | None = None,
        local_recovery: LocalRecoveryConfig | None = None,
        cache_directories: Sequence[str | os.PathLike[str]] = (),
        inline_bytes: int | None = None,
    ) -> None:
        self._options = checked_options(options)
        check_places(local_recovery, cache_directories)
        check_parts(metrics, scheduler, registry)
        self._store = store_of(base_path, self._options)
        self._metrics = metrics if metrics is not None else Metrics()
        self._process = OwningProcess("the changelog storage")
        self._runtime = runtime if runtime is not None else _new_runtime(self._options)
        ids = self._runtime.ids
        self._job_id = ids.new_id().replace("-", "") if job_id is None else checked_job_id(job_id)
        self._local_recovery = local_recovery
        # From the bottom up: who owns the files, what uploads them, and who appends to the logs.
        self._registry = registry if registry is not None else self._new_registry()
        to_files = scheduler if scheduler is not None else self._new_scheduler()
        self._inline: InlineStateChangeUploadScheduler | None = None
        if inline_bytes is not None:
            self._inline = InlineStateChangeUploadScheduler(inline_bytes, to_files, ids)
        self._scheduler = to_files if self._inline is None else self._inline
        self._objects = ObjectUploads(
            self._store,
            retry_policy(self._options),
            self._runtime,
            self._metrics,
            self._registry,
        )
        self._cache = download_cache(
            self._store, cache_directories, self._options, self._runtime, self._metrics
        )
        self._writer_context = self._new_writer_context()
        self._writers: dict[int, FsStateChangelogWriter] = {}
        self._next_log_id = 0
        self._closed = False
        self._interrupt: BaseException | None = None
        self._has_ended = False

    def _new_registry(self) -> TaskChangelogRegistry:
        """Return a registry that also tracks host-local copies, if there are any."""
        copies = None
        if self._local_recovery is not None and self._local_recovery.backup:
            copies = LocalChangelogRegistry(runtime=self._runtime)
        return TaskChangelogRegistry(self._store, copies=copies, runtime=self._runtime)

    def _new_scheduler(self) -> StateChangeUploadScheduler:
        """Return the scheduler that the options describe; the registry tracks its files."""
        return StateChangeUploadScheduler.from_config(
            self._options,
            self._store,
            job_id=self._job_id,
            metrics=self._metrics,
            registry=self._registry,
            local_recovery=self._local_recovery,
            runtime=self._runtime,
        )

    def _new_writer_context(self) -> WriterContext:
        """Return the parts that all writers have in common."""
        return WriterContext(
            scheduler=self._scheduler,
            registry=self._registry,
            runtime=self._runtime,
            metrics=self._metrics,
            preemptive_threshold_bytes=self._options.preemptive_persist_threshold_bytes,
            on_interrupt=self._interrupted,
        )

    @classmethod
    def from_options(
        cls,
        options: Options,
        base_path: str | os.PathLike[str] | ObjectStore | None = None,
        *,
        job_id: str | None = None,
        metrics: Metrics | None = None,
        cache_directories: Sequence[str | os.PathLike[str]] = (),
        inline_bytes: int | None = None,
    ) -> Self:
        """
        Return the storage described by all sections of *options*.

        Args:
            options: The result of `load_options`; its sections `changelog` and `local-recovery`
                are read.
            base_path: Path, URL or store; None to take the option `changelog.base-path`.
            job_id: As for the class.
            metrics: As for the class.
            cache_directories: As for the class.
            inline_bytes: As for the class.

        Raises:
            InvalidOptionsError: As for the class, or *options* is of another class.
        """
        arguments.instance(
            options, "options", Options, "Options, from load_options", error=InvalidOptionsError
        )
        return cls(
            base_path,
            options=options.changelog,
            job_id=job_id,
            metrics=metrics,
            local_recovery=local_copies(options.local_recovery),
            cache_directories=cache_directories,
            inline_bytes=inline_bytes,
        )

    @property
    def store(self) -> ObjectStore:
        """The store to which the paths in all handles are relative."""
        return self._store

    @property
    def job_id(self) -> str:
        """The folder of this job below the store's root."""
        return self._job_id

    @property
    def metrics(self) -> Metrics:
        """The values of this storage's metrics."""
        return self._metrics

    @property
    def registry(self) -> TaskChangelogRegistry:
        """The registry of who owns the uploaded files."""
        return self._registry

    @property
    def scheduler(self) -> StateChangeUploadScheduler:
        """Uploads for all writers; its `availability` reports whether a persist would wait."""
        return self._scheduler

    @property
    def objects(self) -> ObjectUploads:
        """Uploads whole objects, such as snapshots, with the retry policy in the options."""
        return self._objects

    @property
    def interrupted(self) -> bool:
        """
        Whether a call of any writer was interrupted.

        The storage must be closed and opened again.
        """
        return self._interrupt is not None

    @property
    def inline_bytes(self) -> int:
        """Uploads of at most this many bytes are stored in their handles; can be changed."""
        return 0 if self._inline is None else self._inline.threshold_bytes

    @inline_bytes.setter
    def inline_bytes(self, size: int) -> None:
        if self._inline is None:
            raise UsageError(
                "this storage writes all uploads to files; to store small uploads in their handles, "
                "pass inline_bytes when you create the storage"
            )
        self._inline.threshold_bytes = arguments.whole_number(size, "inline_bytes", low=0)

    def create_writer(
        self,
        operator_id: str,
        key_group_range: KeyGroupRange,
        mailbox: MailboxExecutor | None = None,
    ) -> FsStateChangelogWriter:
        """
        Return a new, empty writer.

        Args:
            operator_id: Name of the operator, for messages.
            key_group_range: The key groups it accepts, within 0..32767.
            mailbox: Runs the callbacks of the writer's persists on its owner's thread, such as a
                `TaskMailbox`; None for the storage's callback threads.

        Raises:
            ClosedError: The storage is closed, or a call of one of its writers was interrupted.
            UsageError: The range is empty or too high.
            StoreError: This process inherited the storage over a fork.

        Thread: any.
        """
        self._process.check()
        arguments.text(operator_id, "operator_id")
        arguments.instance(key_group_range, "key_group_range", KeyGroupRange, "a KeyGroupRange")
        if mailbox is not None:
            arguments.acting(mailbox, "mailbox", ("execute",), "a MailboxExecutor")
        if not len(key_group_range) or key_group_range.end >= MAX_PARALLELISM_LIMIT:
            raise UsageError(
                f"a writer needs key groups within 0..{MAX_PARALLELISM_LIMIT - 1}, not "
                f"{key_group_range}"
            )
        with self._runtime.lock:
            if self._closed:
                raise ClosedError("the changelog storage is closed; open a new one")
            if self._interrupt is not None:
                raise ClosedError(interrupted_text("the changelog storage", self._interrupt))
            log_id = self._next_log_id
            self._next_log_id = self._next_log_id + 1
            writer = self._writers[log_id] = FsStateChangelogWriter(
                log_id,
                operator_id,
                key_group_range,
                self._writer_context,
                self._forget,
                mailbox,
            )
        return writer

    def read(
        self,
        handle: ChangelogStateHandle,
        *,
        local: ChangelogStateHandle | None = None,
        report: ReadReport | None = None,
    ) -> Iterator[StateChange]:
        """
        Yield the changes of *handle* one by one; see `read_changes`.

        Args:
            handle: The handle to read.
            local: Its host-local copy (`SnapshotResult.task_local`); used where it is intact, if
                local recovery is on.
            report: Counts the sources.

        Raises:
            ObjectNotFoundError: A file is missing.
            CorruptionError: A file is damaged.

        Blocks: For the store.   Thread: any.
        """
        self._process.check()
        check_handle(handle)
        source = self._store if self._cache is None else self._cache
        return read_changes(
            source, handle, local=self._readable(local), report=report, metrics=self._metrics
        )

    def read_batches(
        self,
        handle: ChangelogStateHandle,
        key_group_range: KeyGroupRange | None = None,
        *,
        local: ChangelogStateHandle | None = None,
        report: ReadReport | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield the changes of *handle* in columns `key_group` and `value`.

        Args:
            handle: The handle to read.
            key_group_range: Drop changes of other key groups; metadata is always kept.
            local: As for `read`.
            report: As for `read`.

        Raises:
            ObjectNotFoundError: A file is missing.
            CorruptionError: A file is damaged.

        Blocks: For the store.   Thread: any.
        """
        self._process.check()
        check_handle(handle)
        if key_group_range is not None:
            arguments.instance(key_group_range, "key_group_range", KeyGroupRange, "a KeyGroupRange")
        source = self._store if self._cache is None else self._cache
        return read_change_batches(
            source,
            handle,
            key_group_range,
            local=self._readable(local),
            report=report,
            metrics=self._metrics,
        )

    def close(self) -> None:
        """
        Close the storage and its writers; running uploads fail with `ClosedError`.

        Every part is closed, even if one of them raises or a signal handler interrupts its wait.
        May be called more than once; a later call does nothing, except after an interrupt: it
        closes what is open.

        Raises:
            Exception: The first error of a part, such as a scheduler or an uploader of the caller.

        Blocks: At most a few seconds, for deletions and uploads that are running.   Thread: any.
        """
        self._process.check()
        with self._runtime.lock:
            ended = self._has_ended
            self._has_ended = True
            self._closed = True
            writers = list(self._writers.values())
        if ended:
            return
        copies = self._registry.copies
        cache = self._cache
        try:
            close_all(
                *(writer.close for writer in writers),
                self._scheduler.close,
                self._objects.close,
                self._registry.close,
                *((copies.close,) if copies is not None else ()),
                *((cache.close,) if cache is not None else ()),
                lambda: self._runtime.close(_CLOSE_TIMEOUT_S),
            )
        except BaseException as error:
            if not isinstance(error, Exception):
                self._has_ended = False
                self._interrupted(error)
            raise

    def _readable(self, local: ChangelogStateHandle | None) -> ChangelogStateHandle | None:
        """Return *local* if this storage is configured to read local copies."""
        config = self._local_recovery
        return local if config is not None and config.recovery else None

    def _interrupted(self, error: BaseException) -> None:
        """
        Reject all later calls of all writers, and fail their pending persists.

        All, because what was interrupted may have been a step of the scheduler that they share.
        """
        self._interrupt = error
        for writer in list(self._writers.values()):
            writer.refuse_calls(error)

    def _forget(self, log_id: int) -> None:
        with self._runtime.lock:
            self._writers.pop(log_id, None)
