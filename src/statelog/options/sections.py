"""
Options as typed values, with units in their names or types.

There is one class for each component that takes options.  Each field declares an option, once: see
`declaration.py`; a new field needs no other place.  The defaults are Flink 2.3.0's unless a comment
says otherwise.  Source of Flink's keys: Flink 2.3.0, FsStateChangelogOptions,
StateChangelogOptions, CheckpointingOptions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from statelog import arguments
from statelog.errors import InvalidOptionsError
from statelog.options.declaration import (
    ForeignKey,
    Names,
    Option,
    build,
    check_fields,
    describe_values,
    option,
    options_of,
    read,
)
from statelog.options.kinds import (
    COUNT,
    DURATION,
    KIB,
    MIB,
    PATH,
    PATHS,
    RATIO,
    SIZE,
    SWITCH,
    TEXT,
    choice,
)

RETAINED_MAX: Final = 1 << 16
"""Maximum checkpoints that a location retains; each record lists them."""

_CHANGELOG: Final = ("state.changelog.", "state.backend.changelog.")
_DFS: Final = (*(f"{prefix}dstl.dfs." for prefix in _CHANGELOG), "dstl.dfs.")
_EXECUTION: Final = "execution.checkpointing."
_NO_STREAM: Final = "a task writes each snapshot in one piece"
_NO_DOWNLOADS: Final = (
    "a task reads the log through a cache in memory, and keeps its state on the host "
    "(state.local-directory)"
)
_NO_COPIES: Final = (
    "a worker keeps its state in memory and on the host's disk (state.local-directory), and a "
    "restart begins from there"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogOptions:
    """
    How to batch, upload, retry and throttle changes.

    Args:
        base_path: Root of the changelog files, where it is not given in code.
        compression_enabled: Snappy-frame the files.
        preemptive_persist_threshold_bytes: Bytes of changes (cut or not) that a writer holds before
            it uploads them ahead of a checkpoint; 0 uploads every append.
        batch_persist_delay: Longest time an upload waits for others to share its file.
        batch_persist_size_threshold_bytes: Waiting bytes, of all writers, that are uploaded at
            once; at most `changelog.upload.max-in-flight`.
        batch_fixed_delay: Wait for the delay even if no upload is running, as Flink does.
        upload_num_threads: Concurrent uploads.
        discard_num_threads: Concurrent deletions.
        upload_max_in_flight_bytes: Bytes queued or uploading, of all writers, at which callers
            wait; the task that reaches it is taken whole.
        upload_retry_policy: How a failed attempt is repeated; `exponential` is not in Flink.
        upload_timeout: Age of an attempt at which a hedged attempt starts; 0 for never.
        upload_max_attempts: Attempts of one upload, the first included.
        upload_next_attempt_delay: Delay after an error; for `exponential` the first one.
        backpressure_timeout: Longest wait of a caller for upload capacity.
        download_local_cache_idle_timeout: Time after its last use at which a downloaded file is
            deleted from local disk.
        download_local_cache_max_bytes: Bound of the downloaded files on local disk: the least
            recently used are deleted first, larger files are not kept, and 0 keeps none.

    Raises:
        InvalidOptionsError: A value is out of its range, or two contradict each other.
    """

    base_path: str | None = option(
        None,
        "base-path",
        PATH,
        also=_DFS,
        not_in_query="the changelog is stored in the state location; set stateLocation",
    )
    compression_enabled: bool = option(False, "compression.enabled", SWITCH, also=_DFS)
    preemptive_persist_threshold_bytes: int = option(
        5 * MIB, "preemptive-persist-threshold", SIZE, also=_DFS
    )
    batch_persist_delay: dt.timedelta = option(
        dt.timedelta(milliseconds=10), "batch.persist-delay", DURATION, also=_DFS
    )
    batch_persist_size_threshold_bytes: int = option(
        10 * MIB, "batch.persist-size-threshold", SIZE, also=_DFS
    )
    batch_fixed_delay: bool = option(False, "batch.fixed-delay", SWITCH)
    upload_num_threads: int = option(5, "upload.num-threads", COUNT, also=_DFS, least=1)
    discard_num_threads: int = option(1, "discard.num-threads", COUNT, also=_DFS, least=1)
    upload_max_in_flight_bytes: int = option(
        100 * MIB, "upload.max-in-flight", SIZE, also=_DFS, least=1
    )
    upload_retry_policy: str = option(
        "fixed", "upload.retry-policy", choice("none", "fixed", "exponential"), also=_DFS
    )
    upload_timeout: dt.timedelta = option(
        dt.timedelta(seconds=1), "upload.timeout", DURATION, also=_DFS
    )
    upload_max_attempts: int = option(3, "upload.max-attempts", COUNT, also=_DFS, least=1)
    upload_next_attempt_delay: dt.timedelta = option(
        dt.timedelta(milliseconds=500), "upload.next-attempt-delay", DURATION, also=_DFS
    )
    backpressure_timeout: dt.timedelta = option(
        dt.timedelta(minutes=10), "backpressure-timeout", DURATION
    )
    download_local_cache_idle_timeout: dt.timedelta = option(
        dt.timedelta(minutes=10),
        "download.local-cache.idle-timeout",
        DURATION,
        also=tuple(f"{prefix}download.local-cache.idle-timeout-ms" for prefix in _DFS),
        not_in_query=_NO_DOWNLOADS,
    )
    download_local_cache_max_bytes: int = option(
        1024 * MIB, "download.local-cache.max-size", SIZE, not_in_query=_NO_DOWNLOADS
    )

    def __post_init__(self) -> None:
        check_fields(self)
        threshold = self.batch_persist_size_threshold_bytes
        limit = self.upload_max_in_flight_bytes
        if threshold > limit:
            raise InvalidOptionsError(
                f"batch_persist_size_threshold_bytes ({threshold}) exceeds "
                f"upload_max_in_flight_bytes ({limit}), so the queue could never reach it; lower "
                "the first or raise the second",
                fields=("batch_persist_size_threshold_bytes", "upload_max_in_flight_bytes"),
            )

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object]) -> ChangelogOptions:
        """
        Create options from settings that are text.

        Keys may be ours ("changelog.batch.persist-delay", with or without the section), Flink's
        (deprecated ones too) or the field names.  Sizes may be numbers of bytes or text such as
        "5 mb" (binary units); durations `timedelta`, or text such as "10 ms" or "PT0.01S", a bare
        number meaning milliseconds.

        Raises:
            InvalidOptionsError: A key is unknown, of another section (`load_options` takes all), or
                given twice, or a value is invalid.
        """
        form = "a mapping of keys to values"
        arguments.instance(settings, "settings", Mapping, form, error=InvalidOptionsError)
        entries = ((key, value, f"{key!r} in the code") for key, value in settings.items())
        return build(cls, read(entries, _find_of_changelog), "changelog")


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """
    The settings of a `CheckpointCoordinator`.

    Args:
        retained: Completed checkpoints that can be restored.
        compress_metadata: Snappy-frame the change sets inside `_metadata`; the file is written
            plain if the record and the staged output exceed 16 MiB.
        min_age_of_orphans: Garbage collection keeps younger objects; must exceed the time from an
            upload to the commit of its checkpoint.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    retained: int = option(
        3,
        "retained",
        COUNT,
        also=(f"{_EXECUTION}num-retained", "state.checkpoints.num-retained"),
        least=1,
        most=RETAINED_MAX,
        advice="A tag keeps a single checkpoint for as long as you need it.",
        setting="retainedCheckpoints",
    )
    compress_metadata: bool = option(True, "compress-metadata", SWITCH)
    min_age_of_orphans: dt.timedelta = option(dt.timedelta(hours=1), "min-age-of-orphans", DURATION)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """
    The settings of an `FsCheckpointStreamFactory`; its `from_options` reads them.

    Args:
        data_inline_threshold_bytes: State up to this size stays in its handle.  In a query: changes
            and rows of one task up to this size are stored in the one object of the micro-batch,
            larger ones in files.
        write_buffer_size_bytes: Small writes to a checkpoint stream are collected in pieces of this
            size; raised to the threshold.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    data_inline_threshold_bytes: int = option(
        20 * KIB,
        "data-inline-threshold",
        SIZE,
        also=(
            _EXECUTION,
            "state.storage.fs.memory-threshold",
            "state.backend.fs.memory-threshold",
        ),
    )
    write_buffer_size_bytes: int = option(
        4096,
        "write-buffer-size",
        SIZE,
        also=(_EXECUTION, "state.storage.fs.", "state.backend.fs."),
        not_in_query=_NO_STREAM,
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """
    Limits on the log, and on the snapshots that a micro-batch writes.

    Args:
        log_to_snapshot_ratio: The log may grow to this many times the size of the state before
            snapshots have covered it; above 0.
        min_log_bytes: A smaller log never makes a snapshot due by its size.
        max_log_handles: Checkpoints whose log one key group may have to replay, whatever its size.
        slice_bytes: Size of the snapshot that one micro-batch writes; see `snapshot.max-slices`.
        max_slices: Slices of a state at most; a state too large for that is cut into larger slices.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    log_to_snapshot_ratio: float = option(2.0, "log-to-snapshot-ratio", RATIO)
    min_log_bytes: int = option(16 * MIB, "min-log-size", SIZE)
    max_log_handles: int = option(250, "max-log-handles", COUNT, least=1)
    slice_bytes: int = option(4 * MIB, "slice-size", SIZE, least=1)
    max_slices: int = option(64, "max-slices", COUNT, least=1)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class StateOptions:
    """
    Where the workers of a query store its state.

    Args:
        backend: auto: in memory while it fits into `memoryBudget`, else on the host's disk. memory:
            never on disk. disk: on disk after every restart, however small.
        local_directory: Folder on each host for state on its disk; by default a folder of the user
            in the system's temporary directory.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    backend: str = option("auto", "backend", choice("auto", "memory", "disk"))
    local_directory: str | None = option(
        None, "local-directory", PATH, also=("state.backend.rocksdb.localdir",)
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class LocalRecoveryOptions:
    """
    Whether and where to copy files to local disk.

    `FsStateChangelogStorage.from_options` and `LocalRecoveryConfig.of` read them.

    Args:
        backup: Write local copies of uploaded files; by default the value of
            `local-recovery.recovery`.
        recovery: Read local copies where they exist.
        directories: Directories of this host for local copies.

    Raises:
        InvalidOptionsError: Copies are wanted and there is no directory for them.
    """

    backup: bool | None = option(
        None,
        "backup",
        SWITCH,
        also=(f"{_EXECUTION}local-backup.enabled",),
        not_in_query=_NO_COPIES,
    )
    recovery: bool = option(
        False,
        "recovery",
        SWITCH,
        also=("execution.state-recovery.from-local", "state.backend.local-recovery"),
        not_in_query=_NO_COPIES,
    )
    directories: tuple[str, ...] = option(
        (),
        "directories",
        PATHS,
        also=(f"{_EXECUTION}local-backup.dirs", "taskmanager.state.local.root-dirs"),
        not_in_query=_NO_COPIES,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.backup is None:
            object.__setattr__(self, "backup", self.recovery)
        if (self.backup or self.recovery) and not self.directories:
            raise InvalidOptionsError(
                "local copies need a directory: set local-recovery.directories",
                fields=("backup", "recovery"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options by section, as loaded by `load_options`."""

    changelog: ChangelogOptions = field(default_factory=ChangelogOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    stream: StreamOptions = field(default_factory=StreamOptions)
    snapshot: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    state: StateOptions = field(default_factory=StateOptions)
    local_recovery: LocalRecoveryOptions = field(default_factory=LocalRecoveryOptions)

    def __post_init__(self) -> None:
        for kind, name in SECTIONS.items():
            section = getattr(self, name.replace("-", "_"))
            arguments.instance(section, name, kind, kind.__name__, error=InvalidOptionsError)


# --- keys -----------------------------------------------------------------------------------------

SECTIONS: Final = {
    ChangelogOptions: "changelog",
    CheckpointOptions: "checkpoint",
    StreamOptions: "stream",
    SnapshotPolicy: "snapshot",
    StateOptions: "state",
    LocalRecoveryOptions: "local-recovery",
}
"""The sections of keys by their classes."""
OPTIONS: Final = tuple(
    declared for kind, name in SECTIONS.items() for declared in options_of(kind, name)
)
"""Every option of the sections."""
for _kind in SECTIONS:
    describe_values(_kind, {declared.field: declared for declared in options_of(_kind)})


def _of_changelog(name: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}" for prefix in _CHANGELOG)


FOREIGN: Final = (
    ForeignKey(_of_changelog("enabled"), SWITCH, True, "statelog is the changelog"),
    ForeignKey(
        _of_changelog("storage"),
        TEXT,
        "filesystem",
        "for tests in memory, open a location such as memory://test",
    ),
    ForeignKey(
        _of_changelog("periodic-materialize.enabled"),
        SWITCH,
        True,
        "without snapshots the log grows without bound; raise the bounds in the section `snapshot` "
        "instead",
    ),
    ForeignKey(
        _of_changelog("periodic-materialize.interval"),
        DURATION,
        None,
        "snapshots are written when the log has grown, not at fixed times",
    ),
    ForeignKey(
        _of_changelog("max-failures-allowed"),
        COUNT,
        None,
        "a failed snapshot does not fail the micro-batch and is retried later",
    ),
    ForeignKey(
        tuple(f"{prefix}upload.buffer-size" for prefix in (*_DFS, "changelog.", "")),
        SIZE,
        None,
        "a file is written in one piece, so no stream is buffered",
    ),
    ForeignKey(
        (f"{_EXECUTION}max-concurrent-checkpoints",),
        COUNT,
        1,
        "micro-batches commit one after another",
    ),
    ForeignKey(
        (f"{_EXECUTION}file-merging.enabled",),
        SWITCH,
        None,
        "tasks of a batch always share one file",
    ),
)
"""Flink's keys that are accepted without being options."""
_FOREIGN_KEYS: Final = {key: foreign for foreign in FOREIGN for key in foreign.keys}


def plain_key(key: str) -> str:
    """Convert a key to lower case, with "_" in place of each separator."""
    return key.strip().lower().replace(".", "_").replace("-", "_")


def variable_of(key: str) -> str:
    """Return the environment variable that sets a statelog key."""
    return "STATELOG_" + plain_key(key).upper()


def _by_name() -> dict[str, Option]:
    """Return the options by all plain names; without a section, a name means the first match."""
    by_name = {
        plain_key(key): declared
        for declared in OPTIONS
        for key in (declared.key, *declared.other_keys)
    }
    for declared in OPTIONS:
        for name in (declared.name, declared.field, declared.field.removesuffix("_bytes")):
            for prefix in ("", *_DFS):
                by_name.setdefault(plain_key(f"{prefix}{name}"), declared)
    return by_name


_NAMES: Final = Names(plain_key, _by_name(), "docs/reference/options.md lists all keys")


def find_option(key: str) -> Option | ForeignKey:
    """Find the option for *key*: statelog's key, Flink's, or a name without its section."""
    return _FOREIGN_KEYS.get(key) or _NAMES.find(key)


def _find_of_changelog(key: str) -> Option | ForeignKey:
    declared = find_option(key)
    if isinstance(declared, Option) and declared.section != "changelog":
        raise InvalidOptionsError(
            f"option {key!r} is in the section {declared.section}, not in this one; use `load_options`, "
            "which accepts the keys of all sections"
        )
    return declared
