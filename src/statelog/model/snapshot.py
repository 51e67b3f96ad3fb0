"""
The result of a snapshot: the handle that the coordinator owns, and its local copy.

Source: Flink, SnapshotResult.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from statelog.errors import UsageError
from statelog.flink_names import FlinkNames

HandleT = TypeVar("HandleT")


@dataclass(frozen=True, slots=True)
class SnapshotResult(Generic[HandleT], FlinkNames):
    """
    What `persist` returns.

    Args:
        job_manager_owned: Handle the coordinator becomes responsible for; None for no state.
        task_local: Handle of the host-local copy, or None.

    Raises:
        UsageError: A local copy without the owned handle.
    """

    job_manager_owned: HandleT | None
    task_local: HandleT | None = None

    def __post_init__(self) -> None:
        if self.task_local is not None and self.job_manager_owned is None:
            raise UsageError(
                "a task-local snapshot needs a job-manager-owned one; give both, or neither"
            )
