"""Values that the other packages exchange.  No IO, no clock, no threads."""

from statelog.model.checkpoint import (
    OBJECTS_PROPERTY,
    ChangelogStateBackendHandle,
    CompletedCheckpoint,
    MaterializedHandle,
    TaskStateSnapshot,
    live_log,
    live_snapshots,
)
from statelog.model.handles import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    SnapshotResult,
    StreamStateHandle,
)
from statelog.model.json_types import Json, JsonObject
from statelog.model.key_group import (
    DEFAULT_MAX_PARALLELISM,
    METADATA_KEY_GROUP,
    KeyGroupRange,
    key_group_range_for_operator,
    split_key_groups,
)
from statelog.model.sequence_number import SequenceNumber, SequenceNumberRange
from statelog.model.state_change import ChangeBatch, StateChange, StateChangeSet
from statelog.model.timeline import CheckpointPosition, Timeline
from statelog.model.upload_result import UploadResult

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
