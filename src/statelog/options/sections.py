"""
Options as values: plain, typed, with their units in the name or the type.

There is one class for each component that takes options.  Each field declares an option, once:
`declaration.py` makes keys, parsers and documentation from it, and a new field needs no other
place.  The defaults are Flink 2.3.0's unless a comment says otherwise.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from statelog import arguments
from statelog.errors import InvalidOptionsError
from statelog.options.declaration import (
    DFS,
    EXECUTION,
    ForeignKey,
    OptionKind,
    OptionSpec,
    OptionValue,
    check_fields,
    check_foreign,
    declared_options,
    documented,
    find_declared,
    option,
)
from statelog.options.units import KIB, MIB

RETRY_POLICIES: Final = ("none", "fixed", "exponential")
INLINE_THRESHOLD_MAX_BYTES: Final = MIB
RETAINED_MAX: Final = 1 << 16
"""Checkpoints that one location retains: the record of each lists them."""

_NO_STREAM: Final = "a task writes each snapshot in one piece"
_NO_DOWNLOADS: Final = (
    "a task reads the log through a cache in memory, and keeps its state on the host "
    "(stateBackend, localDirectory)"
)
_NO_COPIES: Final = (
    "a worker keeps its state in memory and on the host's disk (stateBackend, localDirectory), "
    "and a restart begins from there"
)


def _dfs(name: str) -> tuple[str, ...]:
    """Return Flink's keys of an option of its changelog storage."""
    return tuple(prefix + name for prefix in DFS)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogOptions:
    """
    How changes are batched, uploaded, retried and held back.

    Raises:
        InvalidOptionsError: A value is out of its range, or two contradict each other.
    """

    base_path: str | None = option(
        None,
        "base-path",
        OptionKind.TEXT,
        "Root of the changelog files, where it is not given in code.",
        flink_keys=_dfs("base-path"),
        not_in_query="the changelog is stored in the state location; set stateLocation",
    )
    compression_enabled: bool = option(
        False,
        "compression.enabled",
        OptionKind.SWITCH,
        "Snappy-frame the files.",
        flink_keys=_dfs("compression.enabled"),
    )
    preemptive_persist_threshold_bytes: int = option(
        5 * MIB,
        "preemptive-persist-threshold",
        OptionKind.SIZE,
        "Bytes of changes (cut or not) that a writer holds before it uploads them ahead of a "
        "checkpoint; 0 uploads every append.",
        flink_keys=_dfs("preemptive-persist-threshold"),
    )
    batch_persist_delay: dt.timedelta = option(
        dt.timedelta(milliseconds=10),
        "batch.persist-delay",
        OptionKind.DURATION,
        "Longest time an upload waits for others to share its file.",
        flink_keys=_dfs("batch.persist-delay"),
    )
    batch_persist_size_threshold_bytes: int = option(
        10 * MIB,
        "batch.persist-size-threshold",
        OptionKind.SIZE,
        "Waiting bytes, of all writers, that are uploaded at once; at most "
        "`changelog.upload.max-in-flight`.",
        flink_keys=_dfs("batch.persist-size-threshold"),
    )
    batch_fixed_delay: bool = option(
        False,
        "batch.fixed-delay",
        OptionKind.SWITCH,
        "Wait for the delay even if no upload is running, as Flink does.",
    )
    upload_num_threads: int = option(
        5,
        "upload.num-threads",
        OptionKind.COUNT,
        "Concurrent uploads.",
        flink_keys=_dfs("upload.num-threads"),
        least=1,
    )
    discard_num_threads: int = option(
        1,
        "discard.num-threads",
        OptionKind.COUNT,
        "Concurrent deletions.",
        flink_keys=_dfs("discard.num-threads"),
        least=1,
    )
    upload_max_in_flight_bytes: int = option(
        100 * MIB,
        "upload.max-in-flight",
        OptionKind.SIZE,
        "Bytes queued or uploading, of all writers, at which callers wait; the task that reaches it "
        "is taken whole.",
        flink_keys=_dfs("upload.max-in-flight"),
        least=1,
    )
    upload_retry_policy: str = option(
        "fixed",
        "upload.retry-policy",
        OptionKind.TEXT,
        "`fixed`, `none`, or (not in Flink) `exponential`.",
        flink_keys=_dfs("upload.retry-policy"),
        choices=RETRY_POLICIES,
    )
    upload_timeout: dt.timedelta = option(
        dt.timedelta(seconds=1),
        "upload.timeout",
        OptionKind.DURATION,
        "Age of an attempt at which a hedged attempt starts; 0 for never.",
        flink_keys=_dfs("upload.timeout"),
    )
    upload_max_attempts: int = option(
        3,
        "upload.max-attempts",
        OptionKind.COUNT,
        "Attempts of one upload, the first included.",
        flink_keys=_dfs("upload.max-attempts"),
        least=1,
    )
    upload_next_attempt_delay: dt.timedelta = option(
        dt.timedelta(milliseconds=500),
        "upload.next-attempt-delay",
        OptionKind.DURATION,
        "Delay after an error; for `exponential` the first one.",
        flink_keys=_dfs("upload.next-attempt-delay"),
    )
    backpressure_timeout: dt.timedelta = option(
        dt.timedelta(minutes=10),
        "backpressure-timeout",
        OptionKind.DURATION,
        "Longest wait of a caller for upload capacity.",
    )
    download_local_cache_idle_timeout: dt.timedelta = option(
        dt.timedelta(minutes=10),
        "download.local-cache.idle-timeout",
        OptionKind.DURATION,
        "Time after its last use at which a downloaded file is deleted from local disk.",
        flink_keys=_dfs("download.local-cache.idle-timeout-ms"),
        not_in_query=_NO_DOWNLOADS,
    )
    download_local_cache_max_bytes: int = option(
        1024 * MIB,
        "download.local-cache.max-size",
        OptionKind.SIZE,
        "Bound of the downloaded files on local disk: the least recently used are deleted "
        "first, larger files are not kept, and 0 keeps none.",
        not_in_query=_NO_DOWNLOADS,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        threshold, limit = self.batch_persist_size_threshold_bytes, self.upload_max_in_flight_bytes
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
        Build options from text settings.

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
        specs = tuple(declared_options("changelog", cls))
        values: dict[str, Any] = {}  # by field; each class checks its own
        for key, value in settings.items():
            spec = find_declared(key, specs, OPTIONS)
            if isinstance(spec, ForeignKey):
                check_foreign(spec, key, value)
                continue
            if spec.field in values:
                raise InvalidOptionsError(
                    f"option {key!r} sets {spec.key} a second time; leave one out", key=key
                )
            values[spec.field] = spec.kind.parse(value, key)
        return cls(**values)


@documented
@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """
    Settings of a `CheckpointCoordinator`.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    retained: int = option(
        3,
        "retained",
        OptionKind.COUNT,
        "Completed checkpoints that can be restored.",
        flink_keys=(f"{EXECUTION}num-retained", "state.checkpoints.num-retained"),
        least=1,
        most=RETAINED_MAX,
        advice="A tag keeps a single checkpoint for as long as you need it",
    )
    compress_metadata: bool = option(
        True,
        "compress-metadata",
        OptionKind.SWITCH,
        "Snappy-frame the change sets inside `_metadata`; the file is written plain if the "
        "record and the staged output exceed 16 MiB.",
    )
    min_age_of_orphans: dt.timedelta = option(
        dt.timedelta(hours=1),
        "min-age-of-orphans",
        OptionKind.DURATION,
        "Garbage collection keeps younger objects; must exceed the time from an upload to the"
        " commit of its checkpoint.",
    )

    def __post_init__(self) -> None:
        check_fields(self)


@documented
@dataclass(frozen=True, slots=True)
class StreamOptions:
    """
    Settings of an `FsCheckpointStreamFactory`; its `from_options` reads them.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    data_inline_threshold_bytes: int = option(
        20 * KIB,
        "data-inline-threshold",
        OptionKind.SIZE,
        "State up to this size stays in its handle.",
        flink_keys=(
            f"{EXECUTION}data-inline-threshold",
            "state.storage.fs.memory-threshold",
            "state.backend.fs.memory-threshold",
        ),
        not_in_query=(
            "changes and rows of a task up to inlineBytes are stored in the object of the "
            "micro-batch, and a snapshot is always a file; set inlineBytes"
        ),
        most=INLINE_THRESHOLD_MAX_BYTES,
    )
    write_buffer_size_bytes: int = option(
        4096,
        "write-buffer-size",
        OptionKind.SIZE,
        "Small writes to a checkpoint stream are collected in pieces of this size; raised to "
        "the threshold.",
        flink_keys=(
            f"{EXECUTION}write-buffer-size",
            "state.storage.fs.write-buffer-size",
            "state.backend.fs.write-buffer-size",
        ),
        not_in_query=_NO_STREAM,
    )

    def __post_init__(self) -> None:
        check_fields(self)


@documented
@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """
    Bounds of the log, and of what one micro-batch writes in snapshots.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    log_to_snapshot_ratio: float = option(
        2.0,
        "log-to-snapshot-ratio",
        OptionKind.RATIO,
        "The log may grow to this many times the size of the state before snapshots have "
        "covered it; above 0.",
    )
    min_log_bytes: int = option(
        16 * MIB,
        "min-log-size",
        OptionKind.SIZE,
        "A smaller log never makes a snapshot due by its size.",
    )
    max_log_handles: int = option(
        250,
        "max-log-handles",
        OptionKind.COUNT,
        "Checkpoints whose log one key group may have to replay, whatever its size.",
        least=1,
    )
    slice_bytes: int = option(
        4 * MIB,
        "slice-size",
        OptionKind.SIZE,
        "Size of the snapshot that one micro-batch writes; see `snapshot.max-slices`.",
        least=1,
    )
    max_slices: int = option(
        64,
        "max-slices",
        OptionKind.COUNT,
        "Slices of a state at most; a state too large for that is cut into larger slices.",
        least=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.log_to_snapshot_ratio > 0:
            raise InvalidOptionsError(
                f"log_to_snapshot_ratio is {self.log_to_snapshot_ratio}; it must be above 0",
                fields=("log_to_snapshot_ratio",),
            )


@documented
@dataclass(frozen=True, slots=True)
class LocalRecoveryOptions:
    """
    Whether files are copied to local disk, and where.

    `FsStateChangelogStorage.from_options` and `LocalRecoveryConfig.of` read them.

    Raises:
        InvalidOptionsError: Copies are wanted and there is no directory for them.
    """

    backup: bool | None = option(
        None,
        "backup",
        OptionKind.SWITCH,
        "Write local copies of uploaded files; by default the value of `local-recovery.recovery`.",
        flink_keys=(f"{EXECUTION}local-backup.enabled",),
        not_in_query=_NO_COPIES,
    )
    recovery: bool = option(
        False,
        "recovery",
        OptionKind.SWITCH,
        "Read local copies where they exist.",
        flink_keys=("execution.state-recovery.from-local", "state.backend.local-recovery"),
        not_in_query=_NO_COPIES,
    )
    directories: tuple[str, ...] = option(
        (),
        "directories",
        OptionKind.PATHS,
        "Directories of this host for local copies.",
        flink_keys=(f"{EXECUTION}local-backup.dirs", "taskmanager.state.local.root-dirs"),
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


_SECTION_CLASSES: Final = {
    "changelog": ChangelogOptions,
    "checkpoint": CheckpointOptions,
    "stream": StreamOptions,
    "snapshot": SnapshotPolicy,
    "local_recovery": LocalRecoveryOptions,
}
OPTIONS: Final = tuple(
    spec
    for name, kind in _SECTION_CLASSES.items()
    for spec in declared_options(name.replace("_", "-"), kind)
)
"""Every option."""
SECTIONS: Final = tuple(dict.fromkeys(spec.section for spec in OPTIONS))


def find_option(key: str) -> OptionSpec | ForeignKey:
    """
    Return the option that *key* names, in any of its spellings.

    Raises:
        InvalidOptionsError: There is no such key; the message names the nearest one.
    """
    return find_declared(key, OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options, section by section; made by `load_options`."""

    changelog: ChangelogOptions = field(default_factory=ChangelogOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    stream: StreamOptions = field(default_factory=StreamOptions)
    snapshot: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    local_recovery: LocalRecoveryOptions = field(default_factory=LocalRecoveryOptions)

    def __post_init__(self) -> None:
        for name, kind in _SECTION_CLASSES.items():
            section, class_name = getattr(self, name), kind.__name__
            arguments.instance(section, name, kind, class_name, error=InvalidOptionsError)


def default_of(spec: OptionSpec) -> OptionValue | None:
    """Return the default of an option."""
    section = getattr(Options(), spec.section.replace("-", "_"))
    default: OptionValue | None = getattr(section, spec.field)
    return default
