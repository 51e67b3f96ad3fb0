"""
Checkpoints: commit them, read them and delete them.

    stream_factory   state of a task as an inline handle or an object; state_stream reads it back
    coordinator      tasks acknowledge, one object commits; ownership fences earlier owners
    history          the entries of a location, each read once; restore: where a restart continues
    retained         which checkpoints tags and the newest one retain; tags: what a tag stores
    attachments      objects that a checkpoint names besides its state, and the log that writes them
    edit             the edit session: how anything but a query commits

    clean_up         an owner deletes what it no longer needs; all garbage of a location
    verify           reads all that retained checkpoints need
    query_files      Spark's logs in a checkpointLocation, and what a repartition by Spark left in them
    audit            writes and reads the lines of operations that change a location
"""

from statelog.checkpoint.clean_up import CleanUpReport, collect_garbage
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.listing import CheckpointState, CheckpointSummary, list_checkpoints
from statelog.checkpoint.state_stream import Entropy, read_materialized
from statelog.checkpoint.stream_factory import (
    CheckpointedStateScope,
    FsCheckpointStateOutputStream,
    FsCheckpointStreamFactory,
)
from statelog.checkpoint.verify import VerifiedObject, verify_location
from statelog.options import CheckpointOptions

__all__ = [
    "CheckpointCoordinator",
    "CheckpointOptions",
    "CheckpointState",
    "CheckpointSummary",
    "CheckpointedStateScope",
    "CleanUpReport",
    "Entropy",
    "FsCheckpointStateOutputStream",
    "FsCheckpointStreamFactory",
    "VerifiedObject",
    "list_checkpoints",
    "read_materialized",
    "collect_garbage",
    "verify_location",
]
