"""Values that other packages exchange. No IO, clocks or threads."""

from statelog.model.checkpoint import (
    OBJECTS_PROPERTY,
    ChangelogStateBackendHandle,
    CheckpointPosition,
    CompletedCheckpoint,
    MaterializedHandle,
    TaskStateSnapshot,
    Timeline,
    live_log,
    live_snapshots,
)
from statelog.model.handles import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    Json,
    JsonObject,
    SnapshotResult,
    StreamStateHandle,
    UploadResult,
)
from statelog.model.key_group import (
    DEFAULT_MAX_PARALLELISM,
    METADATA_KEY_GROUP,
    KeyGroupRange,
    key_group_range_for_operator,
    split_key_groups,
)
from statelog.model.state_change import (
    ChangeBatch,
    SequenceNumber,
    SequenceNumberRange,
    StateChange,
    StateChangeSet,
)

__all__ = [
    "DEFAULT_MAX_PARALLELISM",
    "METADATA_KEY_GROUP",
    "OBJECTS_PROPERTY",
    "ByteStreamStateHandle",
    "ChangeBatch",
    "ChangelogStateBackendHandle",
    "ChangelogStateHandle",
    "CheckpointPosition",
    "CompletedCheckpoint",
    "FileStateHandle",
    "HandleAndOffset",
    "Json",
    "JsonObject",
    "KeyGroupRange",
    "MaterializedHandle",
    "SequenceNumber",
    "SequenceNumberRange",
    "SnapshotResult",
    "StateChange",
    "StateChangeSet",
    "StreamStateHandle",
    "TaskStateSnapshot",
    "Timeline",
    "UploadResult",
    "key_group_range_for_operator",
    "live_log",
    "live_snapshots",
    "split_key_groups",
]
