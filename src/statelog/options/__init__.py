"""Options: typed values, each declared once, and `load_options`."""

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
from statelog.options.units import KIB, MIB, parse_duration, parse_size

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
    "parse_duration",
    "parse_size",
    "task_changelog_options",
    "task_defaults",
]
