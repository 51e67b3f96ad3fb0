"""The writers of a simulated history, with their reference models and persists."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.reference_log import ReferenceLog

from statelog.changelog.api import PersistFuture
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.errors import check
from statelog.model import ChangelogStateHandle, FileStateHandle


@dataclass(slots=True)
class Checkpoint:
    """
    A persist of a simulated writer.

    Args:
        checkpoint_id: Its label.
        from_sqn: First number of its range.
        to_sqn: The number after the last one.
        future: Its future.
        confirmed: Whether a checkpoint owns its files.
        aborted: Whether its checkpoint was aborted.
    """

    checkpoint_id: int
    from_sqn: int
    to_sqn: int
    future: PersistFuture
    confirmed: bool = False
    aborted: bool = False

    @property
    def completed(self) -> bool:
        return self.future.done() and self.future.exception() is None

    @property
    def handle(self) -> ChangelogStateHandle:
        handle = self.future.result().job_manager_owned
        check(handle is not None, "a snapshot without a handle")
        return handle  # type: ignore[return-value]

    @property
    def local(self) -> ChangelogStateHandle | None:
        return self.future.result().task_local


class Actor:
    """A writer, its reference model, and its checkpoints."""

    def __init__(self, writer: FsStateChangelogWriter) -> None:
        self.writer = writer
        self.model = ReferenceLog()
        self.checkpoints: list[Checkpoint] = []
        self.counted: set[int] = set()
        self.wanted_to = 2**62
        self.busy = False
        self.closed = False

    @property
    def completed(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.completed]

    def kept(self) -> list[Checkpoint]:
        return [
            checkpoint
            for checkpoint in self.completed
            if checkpoint.confirmed
            or (
                checkpoint.from_sqn >= self.model.truncated_to
                and checkpoint.to_sqn <= self.wanted_to
            )
        ]

    def sync(self) -> None:
        """Cut the model's set if an append has reached the threshold."""
        if self.writer._log.active_sqn > self.model.active_sqn:
            self.model.cut()

    def files(self) -> list[str]:
        handles = [upload.result.entry.handle for upload in self.writer._log._uploaded.values()]
        return [handle.path for handle in handles if isinstance(handle, FileStateHandle)]
