"""
The attachments of a micro-batch's checkpoint: recordings, dead letters, side outputs, broadcast tables.

`_KINDS` has a row for each feature.  The log that writes the objects does not know the features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint.attachments import (
    Addition,
    Attachment,
    AttachmentLog,
    AttachmentPolicy,
    of_kinds,
)
from statelog.checkpoint.batch_record import BatchRecord
from statelog.model.handles import FileStateHandle
from statelog.options import Options
from statelog.runtime.clock import wall_clock_ms
from statelog.runtime.ids import RandomIds
from statelog.spark.driver.broadcasts import kept_broadcasts
from statelog.spark.driver.dead_letters import letter_additions, letter_policy
from statelog.spark.driver.recordings import recording_additions, recording_policy
from statelog.spark.driver.side_outputs import side_output_additions, side_output_policy
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskAck
from statelog.state.reader.broadcasts import BROADCAST
from statelog.state.recordings.format import DEAD_LETTERS, RECORDING
from statelog.store import ObjectStore

_Additions: TypeAlias = Callable[[Mapping[str, Sequence[TaskAck]], int], list[Addition]]
"""Returns what tasks add, by their answers (by operator) and the checkpoint being made."""
_KINDS: Final[tuple[tuple[Callable[[QuerySettings], AttachmentPolicy], _Additions], ...]] = (
    (recording_policy, recording_additions),
    (letter_policy, letter_additions),
    (side_output_policy, side_output_additions),
)


class BatchAttachments:
    """
    Writes what the tasks attach to the checkpoints of one run.

    Args:
        operators: Names of the operators.
        settings: The settings of the query.
        store: The state location.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self, operators: Sequence[str], settings: QuerySettings, store: ObjectStore
    ) -> None:
        self._operators = operators
        self._options = settings.changelog
        self._store = store
        self._logs = [
            (AttachmentLog(policy(settings), self._put), additions) for policy, additions in _KINDS
        ]

    def entries(
        self,
        record: BatchRecord | None,
        answers: Sequence[Sequence[TaskAck]],
        broadcasts: Sequence[Attachment],
        checkpoint_id: int,
        now_ms: int | None = None,
    ) -> tuple[Attachment, ...]:
        """
        Write what a micro-batch attaches, and return all that its checkpoint names.

        Args:
            record: The record of the checkpoint before; None without one.
            answers: The answers of the tasks of each operator.
            broadcasts: The versions of broadcast tables that the micro-batch saw.
            checkpoint_id: The checkpoint being made.
            now_ms: The time; None for the wall clock.

        Raises:
            StoreError, UnavailableError: A required attachment could not be written: the micro-batch must
                not be committed.

        Blocks: For the store, where there is something to write.
        """
        before = () if record is None else record.attachments
        now_ms = wall_clock_ms() if now_ms is None else now_ms
        by_operator = dict(zip(self._operators, answers, strict=True))
        attached: list[Attachment] = []
        for log, additions in self._logs:
            added = additions(by_operator, checkpoint_id)
            attached += log.entries(before, added, checkpoint_id, now_ms)
        replayed = of_kinds(attached, RECORDING, DEAD_LETTERS)
        tables = kept_broadcasts(of_kinds(before, BROADCAST), broadcasts, replayed)
        return (*attached, *tables)

    def committed(self) -> None:
        """Note that the checkpoint of the last `entries` was committed."""
        for log, _ in self._logs:
            log.committed()

    def _put(self, path_of: Callable[[str], str], data: bytes) -> FileStateHandle:
        # Opened for one put: few micro-batches have one, and no thread remains.
        with FsStateChangelogStorage.from_options(
            Options(changelog=self._options), self._store, job_id=""
        ) as storage:
            return OutputFiles(storage.objects.put, RandomIds()).write(path_of, data)
