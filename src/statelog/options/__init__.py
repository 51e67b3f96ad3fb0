"""Options: typed values that are declared once each, and `load_options`."""

from statelog.options.kinds import KIB, MIB
from statelog.options.sections import (
    OPTIONS,
    ChangelogOptions,
    CheckpointOptions,
    LocalRecoveryOptions,
    Options,
    SnapshotPolicy,
    StateOptions,
    StreamOptions,
)
from statelog.options.sources import MEMORY_BUDGET, load_options, task_defaults, task_options

__all__ = [
    "KIB",
    "MEMORY_BUDGET",
    "MIB",
    "OPTIONS",
    "ChangelogOptions",
    "CheckpointOptions",
    "LocalRecoveryOptions",
    "SnapshotPolicy",
    "StateOptions",
    "Options",
    "StreamOptions",
    "load_options",
    "task_defaults",
    "task_options",
]
