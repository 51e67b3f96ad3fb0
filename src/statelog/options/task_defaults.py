"""
The defaults of `changelog.*` for tasks on Spark, and for commands that write changes.

They differ from Flink's where a task differs: it waits for its uploads before it answers, so a failed
upload repeats the whole task, and its memory is bounded by `memoryBudget`.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from statelog.options.sections import ChangelogOptions
from statelog.options.table import OptionValue
from statelog.options.units import MIB

MEMORY_BUDGET: Final = 512 * MIB
"""The default of memoryBudget."""

IN_FLIGHT_SHARE: Final = 16
PREEMPTIVE_SHARE: Final = 64
_BATCH_MAX_BYTES: Final = 10 * MIB


def task_defaults(memory_budget: int = MEMORY_BUDGET) -> dict[str, OptionValue]:
    """
    Return the defaults of a task by key.

    Args:
        memory_budget: Bytes that state and rows take in the worker.
    """
    preemptive = memory_budget // PREEMPTIVE_SHARE
    return {
        # A change set in flight is in memory twice: as changes, and encoded.
        "changelog.upload.max-in-flight": memory_budget // IN_FLIGHT_SHARE,
        "changelog.preemptive-persist-threshold": preemptive,
        "changelog.batch.persist-size-threshold": min(preemptive, _BATCH_MAX_BYTES),
        # Flink's second is less than a large file takes on a slow connection.
        "changelog.upload.timeout": dt.timedelta(seconds=30),
        "changelog.upload.max-attempts": 5,
    }


def task_changelog_options(memory_budget: int = MEMORY_BUDGET) -> ChangelogOptions:
    """Return the options of a task where nothing is set."""
    return ChangelogOptions.from_mapping(task_defaults(memory_budget))
