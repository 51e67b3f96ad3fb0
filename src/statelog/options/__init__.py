"""Options: typed values, each declared once, and `load_options`."""

from statelog.options.kinds import KIB, MIB
from statelog.options.sections import (
    OPTIONS,
    ChangelogOptions,
    CheckpointOptions,
    LocalRecoveryOptions,
    Options,
    SnapshotPolicy,
    StreamOptions,
)
from statelog.options.sources import load_options, task_changelog_options, task_defaults

__all__ = [
    "KIB",
    "MIB",
    "OPTIONS",
    "ChangelogOptions",
    "CheckpointOptions",
    "LocalRecoveryOptions",
    "SnapshotPolicy",
    "Options",
    "StreamOptions",
    "load_options",
    "task_changelog_options",
    "task_defaults",
]
