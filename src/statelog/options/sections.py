"""
Options as values: plain, typed, with their units in the name or the type.

There is one class for each component that takes options.  Their keys are in `table.py`.  The
defaults are those of Flink 2.3.0 unless a field says otherwise.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from statelog import arguments
from statelog.errors import InvalidOptionsError
from statelog.options.table import ForeignKey, OptionSpec, OptionValue, find_option
from statelog.options.units import KIB, MIB

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RETRY_POLICIES: Final = ("none", "fixed", "exponential")
INLINE_THRESHOLD_MAX_BYTES: Final = MIB
RETAINED_MAX: Final = 1 << 16
"""Checkpoints that one location retains: the record of each lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogOptions:
    """
    How changes are batched, uploaded, retried and held back.

    Args:
        base_path: Root of the changelog files, where it is not given in code.
        compression_enabled: Snappy-frame the files.
        preemptive_persist_threshold_bytes: Bytes of changes (cut or not) at which a writer uploads
            them before a checkpoint requests it; 0 uploads every append.
        batch_persist_delay: Longest time an upload waits for others to share its file.
        batch_persist_size_threshold_bytes: Waiting bytes, of all writers, that are uploaded at
            once.
        batch_fixed_delay: Wait for the delay even if no upload is running, as Flink does.
        upload_num_threads: Concurrent uploads.
        discard_num_threads: Concurrent deletions.
        upload_max_in_flight_bytes: Bytes queued or uploading, of all writers; above it callers
            wait.
        upload_retry_policy: "fixed", "exponential" or "none".
        upload_timeout: Age of an attempt at which a hedged attempt starts; zero for never.
        upload_max_attempts: Attempts of one upload, the first included.
        upload_next_attempt_delay: Delay after an error; for "exponential" the first one.
        backpressure_timeout: Longest wait for upload capacity.
        download_local_cache_idle_timeout: Time after its last use at which a downloaded file is
            deleted, where a storage has cache directories.
        download_local_cache_max_bytes: Bound of those files together; the least recently used are
            deleted first, and 0 keeps none.

    Raises:
        InvalidOptionsError: A value is out of its range, or two contradict each other.
    """

    base_path: str | None = None
    compression_enabled: bool = False
    preemptive_persist_threshold_bytes: int = 5 * MIB
    batch_persist_delay: dt.timedelta = dt.timedelta(milliseconds=10)
    batch_persist_size_threshold_bytes: int = 10 * MIB
    batch_fixed_delay: bool = False
    upload_num_threads: int = 5
    discard_num_threads: int = 1
    upload_max_in_flight_bytes: int = 100 * MIB
    upload_retry_policy: str = "fixed"
    upload_timeout: dt.timedelta = dt.timedelta(seconds=1)
    upload_max_attempts: int = 3
    upload_next_attempt_delay: dt.timedelta = dt.timedelta(milliseconds=500)
    backpressure_timeout: dt.timedelta = dt.timedelta(minutes=10)
    download_local_cache_idle_timeout: dt.timedelta = dt.timedelta(minutes=10)
    download_local_cache_max_bytes: int = 1024 * MIB

    def __post_init__(self) -> None:
        _check_types(self)
        _check_signs(self)
        _check_at_least_one(
            self,
            "upload_num_threads",
            "discard_num_threads",
            "upload_max_attempts",
            "upload_max_in_flight_bytes",
        )
        threshold, limit = self.batch_persist_size_threshold_bytes, self.upload_max_in_flight_bytes
        if threshold > limit:
            raise InvalidOptionsError(
                f"batch_persist_size_threshold_bytes ({threshold}) exceeds "
                f"upload_max_in_flight_bytes ({limit}), so the queue could never reach it; lower "
                "the first or raise the second",
                fields=("batch_persist_size_threshold_bytes", "upload_max_in_flight_bytes"),
            )
        policy = self.upload_retry_policy
        object.__setattr__(self, "upload_retry_policy", policy.lower())
        if self.upload_retry_policy not in RETRY_POLICIES:
            raise InvalidOptionsError(
                f"unknown retry policy {policy!r}; use one of {', '.join(RETRY_POLICIES)}",
                fields=("upload_retry_policy",),
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
            InvalidOptionsError: A key is unknown or given twice, or a value is invalid.
        """
        wanted = "a mapping of keys to values"
        arguments.instance(settings, "settings", Mapping, wanted, error=InvalidOptionsError)
        values: dict[str, Any] = {}  # by field; each class checks its own
        for key, value in settings.items():
            spec = find_option(key, "changelog")
            if isinstance(spec, ForeignKey):
                check_foreign(spec, key, value)
                continue
            if spec.field in values:
                raise InvalidOptionsError(
                    f"option {key!r} sets {spec.key} a second time; leave one out", key=key
                )
            values[spec.field] = spec.kind.parse(value, key)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """
    Settings of a `CheckpointCoordinator`.

    Args:
        retained: Number of newest checkpoints that can be restored; 1 to 65,536.
        compress_metadata: Snappy-frame the change sets inside `_metadata`.  If the record and the
            staged output exceed 16 MiB, the file is written plain.
        min_age_of_orphans: Garbage collection keeps younger objects, because a checkpoint under way
            may need them.  Must exceed the longest time from the upload of a change set to the
            commit of its checkpoint.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    retained: int = 3
    compress_metadata: bool = True
    min_age_of_orphans: dt.timedelta = dt.timedelta(hours=1)

    def __post_init__(self) -> None:
        _check_types(self)
        _check_signs(self)
        _check_at_least_one(self, "retained")
        if self.retained > RETAINED_MAX:
            raise InvalidOptionsError(
                f"retained is {self.retained}; it must be at most {RETAINED_MAX}. A tag keeps a single "
                "checkpoint for as long as you need it",
                fields=("retained",),
            )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """
    Settings of an `FsCheckpointStreamFactory`; its `from_options` reads them.

    Args:
        data_inline_threshold_bytes: State up to this size stays in its handle; 0 to 1 MiB.
        write_buffer_size_bytes: Small writes to a stream are collected in pieces of this size;
            raised to the threshold.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    data_inline_threshold_bytes: int = 20 * KIB
    write_buffer_size_bytes: int = 4096

    def __post_init__(self) -> None:
        _check_types(self)
        _check_signs(self)
        if self.data_inline_threshold_bytes > INLINE_THRESHOLD_MAX_BYTES:
            raise InvalidOptionsError(
                f"data_inline_threshold_bytes is {self.data_inline_threshold_bytes}; it must be at "
                f"most {INLINE_THRESHOLD_MAX_BYTES}",
                fields=("data_inline_threshold_bytes",),
            )


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """
    Bounds of the log, and of what one micro-batch writes in snapshots.

    Args:
        log_to_snapshot_ratio: The log may grow to this many times the size of the state; > 0.
        min_log_bytes: A smaller log never makes a snapshot due by its size.
        max_log_handles: Checkpoints whose log one key group may have to replay; >= 1.
        slice_bytes: Size of the snapshot that one micro-batch writes; >= 1.
        max_slices: A state larger than this many slices is cut into larger slices, so that the
            log is covered in time; >= 1.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    log_to_snapshot_ratio: float = 2.0
    min_log_bytes: int = 16 * MIB
    max_log_handles: int = 250
    slice_bytes: int = 4 * MIB
    max_slices: int = 64

    def __post_init__(self) -> None:
        _check_types(self)
        _check_signs(self)
        _check_at_least_one(self, "max_log_handles", "slice_bytes", "max_slices")
        if not self.log_to_snapshot_ratio > 0:
            raise InvalidOptionsError(
                f"log_to_snapshot_ratio is {self.log_to_snapshot_ratio}; it must be above 0",
                fields=("log_to_snapshot_ratio",),
            )


@dataclass(frozen=True, slots=True)
class LocalRecoveryOptions:
    """
    Whether files are copied to local disk, and where.

    `FsStateChangelogStorage.from_options` and `LocalRecoveryConfig.of` read them.

    Args:
        backup: Write local copies; None to use the value of *recovery*.
        recovery: Read local copies.
        directories: Directories of this host.

    Raises:
        InvalidOptionsError: Copies are wanted and there is no directory for them.
    """

    backup: bool | None = None
    recovery: bool = False
    directories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_types(self)
        if self.backup is None:
            object.__setattr__(self, "backup", self.recovery)
        if (self.backup or self.recovery) and not self.directories:
            raise InvalidOptionsError(
                "local copies need a directory: set local-recovery.directories",
                fields=("backup", "recovery"),
            )


_SECTION_CLASSES: Final[Mapping[str, type]] = {
    "changelog": ChangelogOptions,
    "checkpoint": CheckpointOptions,
    "stream": StreamOptions,
    "snapshot": SnapshotPolicy,
    "local_recovery": LocalRecoveryOptions,
}


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
            section, wanted = getattr(self, name), kind.__name__
            arguments.instance(section, name, kind, wanted, error=InvalidOptionsError)

    @property
    def materialization(self) -> SnapshotPolicy:
        """Return `snapshot` by its former name."""
        warnings.warn(
            "Options.materialization is now Options.snapshot", DeprecationWarning, stacklevel=2
        )
        return self.snapshot


def default_of(spec: OptionSpec) -> OptionValue | None:
    """Return the default of an option."""
    section = getattr(Options(), spec.section.replace("-", "_"))
    found: OptionValue | None = getattr(section, spec.field)
    return found


def check_foreign(foreign: ForeignKey, key: str, value: object) -> None:
    """
    Check a setting of Flink's that has no option here.

    Raises:
        InvalidOptionsError: statelog does not support its value.
    """
    parsed = foreign.kind.parse(value, key)
    if foreign.allowed is not None and parsed != foreign.allowed:
        raise InvalidOptionsError(
            f"option {key!r} is {value!r}; here it can only be {foreign.allowed!r}: "
            f"{foreign.reason}",
            key=key,
        )


_CHECKS: Final[Mapping[str, Callable[..., object]]] = {
    "int": arguments.whole_number,
    "float": arguments.number,
    "bool": arguments.switch,
    "bool | None": arguments.switch,
    "str": arguments.text,
    "str | None": arguments.path,
    "dt.timedelta": arguments.duration,
    "tuple[str, ...]": arguments.paths,
}
"""By declared type: the check of a field of an option class."""


def _check_types(options: DataclassInstance) -> None:
    """Convert each field to its plain type, or refuse it."""
    for each in dataclasses.fields(options):
        value = getattr(options, each.name)
        if value is None and str(each.type).endswith("| None"):
            continue
        found = _CHECKS[str(each.type)](value, each.name, error=InvalidOptionsError)
        object.__setattr__(options, each.name, found)


def _check_signs(options: DataclassInstance) -> None:
    for each in dataclasses.fields(options):
        value = getattr(options, each.name)
        if isinstance(value, dt.timedelta) and value < dt.timedelta(0):
            raise InvalidOptionsError(
                f"{each.name} is {value}; it must not be negative", fields=(each.name,)
            )
        if isinstance(value, int) and value < 0:
            raise InvalidOptionsError(
                f"{each.name} is {value}; it must not be negative", fields=(each.name,)
            )


def _check_at_least_one(options: DataclassInstance, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise InvalidOptionsError(
                f"{name} is {getattr(options, name)}; it must be at least 1", fields=(name,)
            )
