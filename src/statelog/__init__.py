"""statelog: durable, log-structured keyed state."""

from typing import TYPE_CHECKING

from statelog.changelog.api import AvailabilityProvider, StateChangelogWriter
from statelog.changelog.local.download_cache import DownloadCache
from statelog.changelog.local.recovery import LocalBackup, LocalRecoveryConfig, discard_local_copies
from statelog.changelog.local.registry import LocalChangelogRegistry
from statelog.changelog.reader import ReadReport, read_change_batches, read_changes
from statelog.changelog.registry import FileOwner, TaskChangelogRegistry
from statelog.changelog.state_change_format import StateChangeFormat
from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.batching import BatchingStateChangeUploadScheduler
from statelog.changelog.upload.scheduler import (
    DirectStateChangeUploadScheduler,
    InlineStateChangeUploader,
    StateChangeUploadScheduler,
)
from statelog.changelog.upload.task import TaskResults, UploadTask, UploadTasksResult
from statelog.changelog.upload.uploader import StateChangeFsUploader, StateChangeUploader
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.checkpoint import (
    CheckpointedStateScope,
    Entropy,
    FsCheckpointStateOutputStream,
    FsCheckpointStreamFactory,
)
from statelog.checkpoint.stream_factory import MAX_FILE_STATE_THRESHOLD
from statelog.core.retry_policy import RetryPolicy
from statelog.errors import (
    BackpressureTimeoutError,
    CapacityError,
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
    RequirementError,
    StatelogError,
    StoreError,
    UnavailableError,
    UploadFailedError,
    UploadTimeoutError,
    UsageError,
    WriterClosedError,
)
from statelog.first_use import names_on_first_use
from statelog.flink_names import explain_names, unknown_name
from statelog.format.trailer import SetEntry
from statelog.logs import escape_records
from statelog.metrics import Metrics
from statelog.model import (
    METADATA_KEY_GROUP,
    ByteStreamStateHandle,
    ChangeBatch,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    SequenceNumber,
    SequenceNumberRange,
    SnapshotResult,
    StateChange,
    StateChangeSet,
    StreamStateHandle,
    key_group_range_for_operator,
    split_key_groups,
)
from statelog.model.handles import UploadResult
from statelog.options import (
    ChangelogOptions,
    CheckpointOptions,
    LocalRecoveryOptions,
    Options,
    SnapshotPolicy,
    StreamOptions,
    load_options,
)
from statelog.runtime.mailbox import MailboxExecutor, TaskMailbox
from statelog.runtime.pool import PoolFuture
from statelog.store import EncryptedStore, ObjectInfo, ObjectStore, open_store

__version__ = "0.3.0"

__all__ = [
    "AvailabilityProvider",
    "BackpressureTimeoutError",
    "BatchingStateChangeUploadScheduler",
    "BroadcastVersion",
    "ByteStreamStateHandle",
    "CapacityError",
    "ChangeBatch",
    "ChangelogOptions",
    "ChangelogStateHandle",
    "ChangesNotAppendedError",
    "ChangesTruncatedError",
    "CheckpointError",
    "CheckpointOptions",
    "CheckpointedStateScope",
    "ClosedError",
    "CopyProgress",
    "CopyReport",
    "CorruptionError",
    "DirectStateChangeUploadScheduler",
    "DownloadCache",
    "EditCounts",
    "EditReport",
    "EncryptedStore",
    "Entropy",
    "FencedError",
    "FileOwner",
    "FileStateHandle",
    "ForgetReport",
    "Fork",
    "FsCheckpointStateOutputStream",
    "FsCheckpointStreamFactory",
    "FsStateChangelogStorage",
    "FsStateChangelogWriter",
    "HandleAndOffset",
    "IncompatibleFormatError",
    "InlineStateChangeUploader",
    "InvalidOptionsError",
    "InvariantError",
    "KeptSideOutput",
    "KeyGroupOutOfRangeError",
    "KeyGroupRange",
    "KeyTrace",
    "KeyVersion",
    "LocalBackup",
    "LocalChangelogRegistry",
    "LocalRecoveryConfig",
    "LocalRecoveryOptions",
    "LocationState",
    "MAX_FILE_STATE_THRESHOLD",
    "METADATA_KEY_GROUP",
    "MailboxExecutor",
    "Metrics",
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStore",
    "Options",
    "ProcessorError",
    "PublishReport",
    "ReadReport",
    "Replica",
    "ReplicaStatus",
    "RequirementError",
    "RetryPolicy",
    "SequenceNumber",
    "SequenceNumberRange",
    "SetEntry",
    "SnapshotPolicy",
    "SnapshotResult",
    "StateChange",
    "StateChangeFormat",
    "StateChangeFsUploader",
    "StateChangeSet",
    "StateChangeUploadScheduler",
    "StateChangeUploader",
    "StateChangelogWriter",
    "StatelogError",
    "StoreError",
    "StreamOptions",
    "StreamStateHandle",
    "TablePublisher",
    "Tag",
    "TaskChangelogRegistry",
    "TaskMailbox",
    "TaskResults",
    "UnavailableError",
    "UploadFailedError",
    "UploadResult",
    "UploadTask",
    "UploadTasksResult",
    "UploadTimeoutError",
    "UsageError",
    "WriterClosedError",
    "discard_local_copies",
    "edit",
    "forget",
    "fork",
    "key_group_range_for_operator",
    "load_options",
    "open_store",
    "publish",
    "publisher",
    "read_change_batches",
    "read_changes",
    "split_key_groups",
    "tag",
    "tags",
    "unfreeze",
    "untag",
]

# Here, because every program that uses statelog imports this module.
escape_records()
explain_names([PoolFuture, *globals().values()])

if TYPE_CHECKING:
    from statelog.extensions.broadcasts.stored import BroadcastVersion
    from statelog.extensions.operations.copy_location import CopyProgress, CopyReport
    from statelog.extensions.operations.copy_location import copy as copy
    from statelog.extensions.operations.edit_keys import EditCounts, EditReport, edit
    from statelog.extensions.operations.forget_key import ForgetReport, forget
    from statelog.extensions.operations.fork import Fork, fork
    from statelog.extensions.operations.key_traces import KeyTrace
    from statelog.extensions.operations.savepoints import Tag, tag, tags, untag
    from statelog.extensions.operations.unfreeze import unfreeze
    from statelog.extensions.publish.publisher import (
        PublishReport,
        TablePublisher,
        publish,
        publisher,
    )
    from statelog.extensions.read.history import KeyVersion
    from statelog.extensions.read.location_state import LocationState
    from statelog.extensions.read.location_state import open as open
    from statelog.extensions.read.replica import Replica, ReplicaStatus
    from statelog.extensions.side_outputs.stored import KeptSideOutput
else:
    # A program that only writes a changelog does not need the tables of state, nor the rest.
    __getattr__ = names_on_first_use(
        __name__,
        {
            "statelog.extensions.operations.copy_location": "CopyProgress CopyReport copy",
            "statelog.extensions.operations.edit_keys": "EditCounts EditReport edit",
            "statelog.extensions.operations.forget_key": "ForgetReport forget",
            "statelog.extensions.operations.fork": "Fork fork",
            "statelog.extensions.operations.key_traces": "KeyTrace",
            "statelog.extensions.publish.publisher": "PublishReport TablePublisher publish publisher",
            "statelog.extensions.operations.savepoints": "Tag tag tags untag",
            "statelog.extensions.operations.unfreeze": "unfreeze",
            "statelog.extensions.broadcasts.stored": "BroadcastVersion",
            "statelog.extensions.read.history": "KeyVersion",
            "statelog.extensions.read.location_state": "LocationState open",
            "statelog.extensions.read.replica": "Replica ReplicaStatus",
            "statelog.extensions.side_outputs.stored": "KeptSideOutput",
        },
        unknown_name,
    )


def __dir__() -> list[str]:
    """Return the public names; those that hide a builtin or a module are not in `__all__`."""
    return sorted([*__all__, "copy", "open", "__all__", "__doc__", "__name__", "__version__"])
