"""
Host-local copies of changelog files: written during uploads, read before the store.

A copy is optional.  Any fault of the disk (no directory, no space, a disk that fails or hangs)
means "no local copy" and never fails the upload, which waits for the copy a quarter of a second at
most.
Source: Flink, LocalRecoveryConfig, LocalSnapshotDirectoryProviderImpl and DuplicatingOutputStream.
Deviations: no local fault fails an upload (H8); a copy is renamed to its name when it is complete;
it is verified when it is read.
"""

from __future__ import annotations

import enum
import logging
import os
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from statelog import arguments
from statelog.arguments import Seconds, instance, path, seconds, switch, whole_number
from statelog.changelog.local_registry import LocalDisk, LocalFiles, remove_quietly
from statelog.errors import ClosedError, InvalidOptionsError
from statelog.metrics import Metrics
from statelog.model import ChangelogStateHandle, FileStateHandle
from statelog.model.state_change import INT32_MAX
from statelog.options import LocalRecoveryOptions
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.pool import Pool, ThreadPool
from statelog.runtime.runtime import Runtime, system_runtime
from statelog.store.api import Buffers

_log = logging.getLogger("statelog")

BACKUP_KEY: Final = "execution.checkpointing.local-backup.enabled"
RECOVERY_KEY: Final = "execution.state-recovery.from-local"
DIRECTORIES_KEY: Final = "execution.checkpointing.local-backup.dirs"
_OLD_SWITCH: Final = "state.backend.local-recovery"
_OLD_DIRECTORIES: Final = "taskmanager.state.local.root-dirs"

_PATIENCE_S: Final = 0.25
"""Longest wait for a copy after its upload; then the copy is given up.  Far below the time-out of
an attempt, so that a slow disk causes no hedged attempts."""

_CLOSE_TIMEOUT_S: Final = 1.0

_WAITING_MAX: Final = 16
"""Limit of unfinished copies: beyond it the disk is too slow, and the copies would fill memory."""


@dataclass(frozen=True, slots=True)
class LocalRecoveryConfig:
    """
    The directories for local copies, and whether to write and read such copies.

    Args:
        directories: Absolute or relative directories of this host, made absolute; a job uses one
            of them.
        backup: Write local copies.
        recovery: Read local copies where they exist.

    Raises:
        InvalidOptionsError: A switch is on and there is no directory.
    """

    directories: tuple[str, ...]
    backup: bool = True
    recovery: bool = True

    def __post_init__(self) -> None:
        arguments.paths(self.directories, "directories", error=InvalidOptionsError)
        switch(self.backup, "backup", error=InvalidOptionsError)
        switch(self.recovery, "recovery", error=InvalidOptionsError)
        if not self.directories and (self.backup or self.recovery):
            raise InvalidOptionsError(f"local recovery needs a directory: set {DIRECTORIES_KEY}")
        absolute = tuple(os.path.abspath(os.fspath(directory)) for directory in self.directories)
        object.__setattr__(self, "directories", absolute)

    @classmethod
    def of(cls, options: LocalRecoveryOptions) -> LocalRecoveryConfig | None:
        """Return the configuration in *options*, or None if writing and reading are both off."""
        if not options.backup and not options.recovery:
            return None
        return cls(options.directories, bool(options.backup), options.recovery)

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object]) -> LocalRecoveryConfig:
        """
        Build the configuration from Flink's keys, ignoring all other keys.

        Both switches are off by default, and `local-backup.enabled` defaults to `from-local`, as
        in Flink.  Directories are separated by commas or by the system's path separator.

        Raises:
            InvalidOptionsError: A switch is neither true nor false, or there is no directory.
        """
        recovery = _switch(settings, (RECOVERY_KEY, _OLD_SWITCH), False)
        backup = _switch(settings, (BACKUP_KEY, _OLD_SWITCH), recovery)
        text = str(settings.get(DIRECTORIES_KEY, settings.get(_OLD_DIRECTORIES, "")))
        parts = text.replace(os.pathsep, ",").split(",")
        return cls(tuple(part.strip() for part in parts if part.strip()), backup, recovery)

    def folder_of(self, job_id: str) -> str:
        """
        Return the directory for a job's copies: `<dir>/jid_<job>/taskowned`.

        A job has the same directory in every process.
        """
        chosen = self.directories[_hash_of(job_id) % len(self.directories)]
        name = urllib.parse.quote(job_id, safe="")
        return os.path.join(chosen, f"jid_{name}", "taskowned")


def discard_local_copies(
    config: LocalRecoveryConfig, job_id: str, keep: Iterable[ChangelogStateHandle] = ()
) -> int:
    """
    Remove the local copies of a job.

    Call it after the end of the job or, with *keep*, before its restart.  Copies that another
    process of the job is writing are removed too; that process then restores from the store.

    Args:
        config: Their directories.
        job_id: The job.
        keep: Local handles whose files are kept.

    Returns:
        The number of files removed.

    Blocks: For the disk.   Thread: any.
    Source: Flink, TaskLocalStateStore.dispose.
    """
    instance(config, "config", LocalRecoveryConfig, "a LocalRecoveryConfig")
    disk = LocalFiles()
    needed = {
        entry.handle.path
        for handle in keep
        for entry in handle.handles_and_offsets
        if isinstance(entry.handle, FileStateHandle)
    }
    folder = config.folder_of(job_id)
    removed = 0
    try:
        paths = [entry.path for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        return 0  # no folder, no copies
    for copy in paths:
        removed += copy not in needed and remove_quietly(disk, copy)
    return removed


def _switch(settings: Mapping[str, object], keys: tuple[str, ...], default: bool) -> bool:
    for key in keys:
        if key in settings:
            text = str(settings[key]).strip().lower()
            if text not in ("true", "false"):
                raise InvalidOptionsError(
                    f"option {key!r} is {settings[key]!r}; it must be true or false", key=key
                )
            return text == "true"
    return default


def _hash_of(job_id: str) -> int:
    """Hash a job id in the same way as Flink, as a `JobID` or as text."""
    try:
        # Flink's job ids are 32 hex digits; any other text is hashed as a Java string.
        number = int(job_id, 16) if len(job_id) == 32 else None
    except ValueError:
        number = None
    value = 0
    if number is not None:
        for shift in (0, 32, 64, 96):
            value ^= (number >> shift) & 0xFFFFFFFF
    else:
        units = job_id.encode("utf-16-be", "surrogatepass")  # Java hashes UTF-16
        for high, low in zip(units[::2], units[1::2], strict=True):
            value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value & INT32_MAX


class _State(enum.Enum):
    WRITING = "writing"
    COMPLETE = "complete"
    FAILED = "failed"
    GIVEN_UP = "given up"


class LocalCopy:
    """A copy that is being written. Call `take` or `give_up` at the end."""

    __slots__ = ("_backup", "path", "state")

    def __init__(self, backup: LocalBackup, path: str) -> None:
        self._backup = backup
        self.path = path
        self.state = _State.WRITING

    def take(self) -> str | None:
        """Return the path of the complete copy, or None if it is not complete."""
        return self.path if self._backup.settle(self, wanted=True) else None

    def give_up(self) -> None:
        """Remove the copy, either now or once it is complete."""
        self._backup.settle(self, wanted=False)


class LocalBackup(ClosesAtExit):
    """
    Writes the local copies of one job.

    Args:
        folder: Directory of the copies, such as `LocalRecoveryConfig.folder_of(job_id)`; created
            when needed.
        patience_s: Longest wait for a copy after its upload.
        num_threads: Copies written concurrently, >= 1; ignored with a *pool*.
        disk: Stores the files; None for this host's.
        metrics: Counts copies and their errors; None disables it.
        runtime: Lock, and unique names of unfinished files; None for real ones.
        pool: Writes the files; its threads may hang with the disk.  None for one that `close`
            stops.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        patience_s: Seconds = _PATIENCE_S,
        num_threads: int = 5,
        disk: LocalDisk | None = None,
        metrics: Metrics | None = None,
        runtime: Runtime | None = None,
        pool: Pool | None = None,
    ) -> None:
        whole_number(num_threads, "num_threads", low=1)
        self._folder = path(folder, "folder")
        self._runtime = system_runtime() if runtime is None else runtime
        self._owns_pool = pool is None
        self._pool = ThreadPool(num_threads, "statelog-local") if pool is None else pool
        self._patience_s = seconds(patience_s, "patience_s", low=0)
        self._disk = disk if disk is not None else LocalFiles()
        self._metrics = metrics if metrics is not None else Metrics()
        self._writing = 0
        self._warned = False

    @property
    def folder(self) -> str:
        """Directory of the copies."""
        return self._folder

    def close(self) -> None:
        """
        Stop the threads that write copies, unless the thread pool belongs to the caller.

        Unfinished copies have a second to complete; later ones are not written.

        Blocks: At most a second.   Thread: any.
        """
        if self._owns_pool:
            self._pool.close(_CLOSE_TIMEOUT_S)

    def start(self, name: str, content: Buffers) -> LocalCopy:
        """
        Start writing a copy in the background.

        Args:
            name: File name of the remote object, unique.
            content: Its bytes, referenced until they are written.

        Thread: any.
        """
        copy = LocalCopy(self, os.path.join(self._folder, name))
        with self._runtime.lock:
            # Every waiting copy holds its bytes in memory.
            crowded = self._writing >= _WAITING_MAX
            if crowded:
                copy.state = _State.FAILED
            else:
                self._writing += 1
        if crowded:
            self._warn(copy, "the disk is slower than the store")
        else:
            self._pool.submit(
                lambda: self._write(copy, content),
                lambda _, error: self._written(copy, error),
            )
        return copy

    def settle(self, copy: LocalCopy, *, wanted: bool) -> bool:
        """
        Finish a copy; return whether it is complete and still needed, otherwise remove it.

        Blocks: For the patience, if it is wanted and not complete.
        """
        lock = self._runtime.lock
        with lock:
            if wanted:
                try:
                    lock.wait_for(lambda: copy.state is not _State.WRITING, self._patience_s)
                except BaseException:  # of a signal handler, which ends the upload
                    copy.state = _State.GIVEN_UP
                    raise
            # Read under the lock: `_written` may set it at the same moment.
            state = copy.state
            slow = copy.state is _State.WRITING
            # From here on `_written` removes the file, since no caller will.
            if slow or not wanted:
                copy.state = _State.GIVEN_UP
        if state is _State.COMPLETE and not wanted:
            remove_quietly(self._disk, copy.path)
        if slow and wanted:
            self._warn(copy, f"not written {self._patience_s} s after its upload")
        taken = wanted and state is _State.COMPLETE
        if taken:
            self._metrics.count("local_copies_written")
        return taken

    def _write(self, copy: LocalCopy, content: Buffers) -> None:
        # Given up while it waited for a thread: nothing to write.
        if copy.state is not _State.WRITING:
            return
        temporary = f"{copy.path}.{self._runtime.ids.new_id()}.tmp"
        self._disk.put(copy.path, content, temporary)

    def _written(self, copy: LocalCopy, error: BaseException | None) -> None:
        with self._runtime.lock:
            self._writing -= 1
            given_up = copy.state is _State.GIVEN_UP
            if not given_up:
                copy.state = _State.COMPLETE if error is None else _State.FAILED
            self._runtime.lock.notify_all()
        if given_up:
            remove_quietly(self._disk, copy.path)
        elif error is not None and not isinstance(error, ClosedError):
            self._warn(copy, str(error))

    def _warn(self, copy: LocalCopy, reason: str) -> None:
        self._metrics.count("local_copy_errors")
        level = logging.DEBUG if self._warned else logging.WARNING  # once: a full disk stays so
        self._warned = True
        _log.log(
            level,
            "local copy %s is not available (%s); a restore will read from the store",
            copy.path,
            reason,
        )
