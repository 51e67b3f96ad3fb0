"""Options: typed values, one table of their keys, and `load_options`."""

from statelog.options.sections import (
    ChangelogOptions,
    CheckpointOptions,
    LocalRecoveryOptions,
    Options,
    SnapshotPolicy,
    StreamOptions,
)
from statelog.options.sources import load_options
from statelog.options.table import OPTIONS
from statelog.options.task_defaults import task_changelog_options, task_defaults
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
