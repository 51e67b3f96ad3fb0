"""Choose the keys to record, and attach their recordings to the micro-batch's checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, cast

import pyarrow as pa

from statelog.checkpoint.attachments import Attachment, AttachmentPolicy
from statelog.errors import UsageError
from statelog.extensions.recordings.format import RECORDING, RecordedParts
from statelog.spark.driver.extension import Answers, AttachingExtension, BatchStart, DriverContext
from statelog.spark.query.face import face_of
from statelog.spark.query.query import Query
from statelog.spark.query.record import Key, Record, RecordSpec
from statelog.spark.query.settings import QuerySettings
from statelog.state.keys.state_key import StateKey
from statelog.store import PATHS

_log = logging.getLogger("statelog.spark")
_KEY_SHARE: Final = 8
"""One key uses at most this fraction of a micro-batch's byte limit."""


class Recordings(AttachingExtension):
    """Records the selected keys of a query."""

    name = "recordings"

    def __init__(self, context: DriverContext) -> None:
        self._query = query = context.query
        super().__init__(query.settings, context.put)
        self._keys = record_keys(query)

    @staticmethod
    def policy(settings: QuerySettings) -> AttachmentPolicy:
        """Return how to retain recordings; the query goes on if they cannot be written."""
        return AttachmentPolicy(
            kind=RECORDING,
            what="recordings",
            path_of=PATHS.recording,
            contents=lambda parts: RecordedParts(tuple(parts)),
            age_ms=settings.retention.total_seconds() * 1000,
            checkpoints_max=settings.record.checkpoints,
            is_required=False,
            has_checksum=True,
        )

    def task_part(self, operator: int, tasks: int) -> RecordSpec | None:
        """Return what the tasks of an operator need for recording."""
        return record_spec(self._query, operator, self._keys[operator], tasks)

    def attachments(
        self, start: BatchStart, answers: Answers, attached: Sequence[Attachment], now_ms: int
    ) -> Sequence[Attachment]:
        """Attach the recordings, and log how many keys exceeded the limits."""
        dropped = sum(addition.info.get("dropped", 0) for addition in self.added(answers))
        if dropped:
            _log.warning(
                "checkpoint %d: %d keys were not recorded, because they exceed record.bytes",
                start.checkpoint_id,
                dropped,
            )
        return super().attachments(start, answers, attached, now_ms)


def record_keys(query: Query) -> list[tuple[tuple[object, ...], ...]]:
    """Return the keys to record for each operator."""
    record = query.settings.record
    if not record.is_on:
        return [() for _ in query.operators]
    for operator in query.operators:
        if not face_of(operator.processor).handles_single_keys:
            raise UsageError(
                f"record has no effect with {type(operator.processor).__name__}: statelog records "
                "individual keys only if the processor takes Rows or pandas frames"
            )
    return keys_of_operators(record, [operator.schema.key_schema for operator in query.operators])


def record_spec(
    query: Query, operator: int, keys: tuple[tuple[object, ...], ...], tasks: int
) -> RecordSpec | None:
    """Return what the tasks of an operator need for recording, or None."""
    record = query.settings.record
    if not record.is_on:
        return None
    task_bytes = max(record.bytes // (tasks * len(query.operators)), 1)
    return RecordSpec(
        share=record.share,
        keys=keys,
        batch_bytes=task_bytes,
        key_bytes=min(key_bytes_of(record.bytes), task_bytes),
        operator_id=query.operators[operator].schema.operator_id
        if len(query.operators) > 1
        else "",
    )


def keys_of_operators(record: Record, schemas: Sequence[pa.Schema]) -> list[tuple[Key, ...]]:
    """Return the keys to record for each operator, in the types of its key columns."""
    by_operator: list[list[Key]] = [[] for _ in schemas]
    for key in cast("Sequence[Key]", record.keys):
        refused: UsageError | None = None
        fits = False
        for keys, schema in zip(by_operator, schemas, strict=True):
            try:
                keys.append(StateKey(key, schema).values)
                fits = True
            except UsageError as error:
                refused = error
        if refused is not None and not fits:
            raise UsageError(f"record: {refused}")
    return [tuple(keys) for keys in by_operator]


def key_bytes_of(batch_bytes: int) -> int:
    """Return the byte limit for one key, based on the limit for a micro-batch."""
    return max(batch_bytes // _KEY_SHARE, 1)
