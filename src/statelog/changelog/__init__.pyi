"""Flink's changelog: from `append` to files, and back."""

from statelog.changelog.api import AvailabilityProvider as AvailabilityProvider
from statelog.changelog.api import StateChangelogWriter as StateChangelogWriter
from statelog.changelog.download_cache import DownloadCache as DownloadCache
from statelog.changelog.local_recovery import LocalBackup as LocalBackup
from statelog.changelog.local_recovery import LocalRecoveryConfig as LocalRecoveryConfig
from statelog.changelog.local_recovery import discard_local_copies as discard_local_copies
from statelog.changelog.local_registry import LocalChangelogRegistry as LocalChangelogRegistry
from statelog.changelog.reader import ReadReport as ReadReport
from statelog.changelog.reader import StateChangeFormat as StateChangeFormat
from statelog.changelog.reader import read_change_batches as read_change_batches
from statelog.changelog.reader import read_changes as read_changes
from statelog.changelog.registry import FileOwner as FileOwner
from statelog.changelog.registry import TaskChangelogRegistry as TaskChangelogRegistry
from statelog.changelog.storage import FsStateChangelogStorage as FsStateChangelogStorage
from statelog.changelog.upload.batching import (
    BatchingStateChangeUploadScheduler as BatchingStateChangeUploadScheduler,
)
from statelog.changelog.upload.scheduler import (
    DirectStateChangeUploadScheduler as DirectStateChangeUploadScheduler,
)
from statelog.changelog.upload.scheduler import (
    InlineStateChangeUploader as InlineStateChangeUploader,
)
from statelog.changelog.upload.scheduler import (
    StateChangeUploadScheduler as StateChangeUploadScheduler,
)
from statelog.changelog.upload.task import TaskResults as TaskResults
from statelog.changelog.upload.task import UploadTask as UploadTask
from statelog.changelog.upload.task import UploadTasksResult as UploadTasksResult
from statelog.changelog.upload.uploader import StateChangeFsUploader as StateChangeFsUploader
from statelog.changelog.upload.uploader import StateChangeUploader as StateChangeUploader
from statelog.changelog.writer import FsStateChangelogWriter as FsStateChangelogWriter
from statelog.checkpoint import CheckpointedStateScope as CheckpointedStateScope
from statelog.checkpoint import Entropy as Entropy
from statelog.checkpoint import FsCheckpointStateOutputStream as FsCheckpointStateOutputStream
from statelog.checkpoint import FsCheckpointStreamFactory as FsCheckpointStreamFactory
from statelog.checkpoint.stream_factory import MAX_FILE_STATE_THRESHOLD as MAX_FILE_STATE_THRESHOLD
from statelog.core.retry_policy import RetryPolicy as RetryPolicy
from statelog.errors import BackpressureTimeoutError as BackpressureTimeoutError
from statelog.errors import ChangesNotAppendedError as ChangesNotAppendedError
from statelog.errors import ChangesTruncatedError as ChangesTruncatedError
from statelog.errors import ClosedError as ClosedError
from statelog.errors import KeyGroupOutOfRangeError as KeyGroupOutOfRangeError
from statelog.errors import StoreError as StoreError
from statelog.errors import UploadFailedError as UploadFailedError
from statelog.errors import UploadTimeoutError as UploadTimeoutError
from statelog.errors import WriterClosedError as WriterClosedError
from statelog.format.trailer import SetEntry as SetEntry
from statelog.metrics import Metrics as Metrics
from statelog.model import METADATA_KEY_GROUP as METADATA_KEY_GROUP
from statelog.model import ByteStreamStateHandle as ByteStreamStateHandle
from statelog.model import ChangeBatch as ChangeBatch
from statelog.model import ChangelogStateHandle as ChangelogStateHandle
from statelog.model import FileStateHandle as FileStateHandle
from statelog.model import HandleAndOffset as HandleAndOffset
from statelog.model import KeyGroupRange as KeyGroupRange
from statelog.model import SequenceNumber as SequenceNumber
from statelog.model import SequenceNumberRange as SequenceNumberRange
from statelog.model import SnapshotResult as SnapshotResult
from statelog.model import StateChange as StateChange
from statelog.model import StateChangeSet as StateChangeSet
from statelog.model import StreamStateHandle as StreamStateHandle
from statelog.model import key_group_range_for_operator as key_group_range_for_operator
from statelog.model import split_key_groups as split_key_groups
from statelog.model.handles import UploadResult as UploadResult
from statelog.options import ChangelogOptions as ChangelogOptions
from statelog.options import LocalRecoveryOptions as LocalRecoveryOptions
from statelog.options import StreamOptions as StreamOptions
from statelog.runtime.mailbox import MailboxExecutor as MailboxExecutor
from statelog.runtime.mailbox import TaskMailbox as TaskMailbox
from statelog.store import open_store as open_store
