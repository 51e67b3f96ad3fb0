"""Checkpoints: stream factory, coordinator, completed checkpoints, restore, clean-up."""

from statelog.checkpoint.clean_up import CleanUpReport, collect_garbage
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.listing import CheckpointState, CheckpointSummary, list_checkpoints
from statelog.checkpoint.object_names import Entropy
from statelog.checkpoint.output_stream import FsCheckpointStateOutputStream
from statelog.checkpoint.restore import read_materialized
from statelog.checkpoint.stream_factory import CheckpointedStateScope, FsCheckpointStreamFactory
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
