"""statelog: durable, log-structured keyed state."""

from statelog.changelog.availability import AvailabilityProvider
from statelog.changelog.batching_scheduler import BatchingStateChangeUploadScheduler
from statelog.changelog.download_cache import DownloadCache
from statelog.changelog.local_recovery import (
    LocalBackup,
    LocalRecoveryConfig,
    discard_local_copies,
)
from statelog.changelog.local_registry import LocalChangelogRegistry
from statelog.changelog.reader import ReadReport, read_change_batches, read_changes
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.scheduler import (
    DirectStateChangeUploadScheduler,
    StateChangeUploadScheduler,
)
from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload_task import UploadTask, UploadTasksResult
from statelog.changelog.uploader import (
    InlineStateChangeUploader,
    StateChangeFsUploader,
    StateChangeUploader,
)
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.changelog.writer_api import StateChangelogWriter
from statelog.core.change_log import UploadResult
from statelog.core.retry_policy import RetryPolicy
from statelog.errors import (
    BackpressureTimeoutError,
    ChangesNotAppendedError,
    ChangesTruncatedError,
    CheckpointError,
    ClosedError,
    CorruptionError,
    FencedError,
    IncompatibleFormatError,
    InvalidOptionsError,
    InvariantError,
    KeyGroupOutOfRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    ProcessorError,
    StatelogError,
    StoreError,
    UnavailableError,
    UploadFailedError,
    UsageError,
    WriterClosedError,
)
from statelog.metrics import Metrics
from statelog.model import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    SequenceNumber,
    SequenceNumberRange,
    SnapshotResult,
    StateChange,
    StateChangeSet,
)
from statelog.options import ChangelogOptions, Options, load_options

__all__ = [
    "AvailabilityProvider",
    "BackpressureTimeoutError",
    "BatchingStateChangeUploadScheduler",
    "ByteStreamStateHandle",
    "ChangelogOptions",
    "ChangelogStateHandle",
    "ChangesNotAppendedError",
    "ChangesTruncatedError",
    "CheckpointError",
    "ClosedError",
    "CorruptionError",
    "DirectStateChangeUploadScheduler",
    "DownloadCache",
    "FencedError",
    "FileStateHandle",
    "FsStateChangelogStorage",
    "FsStateChangelogWriter",
    "HandleAndOffset",
    "IncompatibleFormatError",
    "InlineStateChangeUploader",
    "InvalidOptionsError",
    "InvariantError",
    "KeyGroupOutOfRangeError",
    "KeyGroupRange",
    "LocalBackup",
    "LocalChangelogRegistry",
    "LocalRecoveryConfig",
    "Metrics",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "Options",
    "ProcessorError",
    "ReadReport",
    "RetryPolicy",
    "SequenceNumber",
    "SequenceNumberRange",
    "SnapshotResult",
    "StateChange",
    "StateChangeFsUploader",
    "StateChangeSet",
    "StateChangeUploadScheduler",
    "StateChangeUploader",
    "StateChangelogWriter",
    "StatelogError",
    "StoreError",
    "TaskChangelogRegistry",
    "UnavailableError",
    "UploadFailedError",
    "UploadResult",
    "UploadTask",
    "UploadTasksResult",
    "UsageError",
    "WriterClosedError",
    "discard_local_copies",
    "load_options",
    "read_change_batches",
    "read_changes",
]
