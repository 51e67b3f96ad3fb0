"""
Handle the dead letters of a micro-batch on the driver.

Dead letters are recordings that must not be lost: a micro-batch whose dead letters cannot be
written is not committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from statelog.checkpoint.attachments import Addition, AttachmentPolicy
from statelog.errors import UsageError
from statelog.extensions.bad_records.dead_letters import BAD_RECORDS, failures_of
from statelog.extensions.bad_records.policy import ErrorPolicy, error_policy
from statelog.extensions.recordings.format import DEAD_LETTERS, RecordedParts
from statelog.metrics.table import Figure
from statelog.spark.driver.extension import AttachingExtension, DriverContext
from statelog.spark.query.face import face_of
from statelog.spark.query.query import Query
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.protocol import TaskAck
from statelog.store import PATHS

_log = logging.getLogger("statelog.spark")
LETTER_FILES_MAX: Final = 1_000
"""Maximum number of dead letter files that a checkpoint references."""
TAIL_BYTES: Final = 1 << 20
"""Files up to this uncompressed size are rewritten with later dead letters."""
_PARTS_OF_AGE: Final = 8
"""A file spans at most this fraction of the retention time."""
_LOG_INTERVAL_S: Final = 60.0


def check_error_policy(query: Query) -> None:
    """Raise `UsageError` if a processor takes all keys at once, so single keys cannot fail."""
    settings = query.settings
    if error_policy(settings) is None:
        return
    for operator in query.operators:
        if not face_of(operator.processor).handles_single_keys:
            reduction = operator.reduction
            name = type(operator.processor).__name__ if reduction is None else reduction.call
            raise UsageError(
                f"onError={settings.on_error!r} cannot be used with {name}: it processes all keys of a task "
                "at once, so statelog cannot tell which key failed. Omit onError, or use a processor "
                "that takes Rows or pandas frames"
            )


class BadRecords(AttachingExtension):
    """The keys of a query whose processing fails, as seen by the driver."""

    name = BAD_RECORDS
    figures: ClassVar[Mapping[str, Figure]] = {
        "failed_keys": Figure(
            "keys",
            "Keys whose processing failed in a stateful query and was skipped; see the setting `onError`.",
            counter="num_failed_keys",
        ),
        "dead_letters": Figure(
            "calls",
            "Failed calls of a processor that are stored as dead letters.",
            counter="num_dead_letters",
        ),
    }

    def __init__(self, context: DriverContext) -> None:
        query = context.query
        settings = context.query.settings
        check_error_policy(query)
        super().__init__(settings, context.put)
        self._policy = error_policy(settings)
        self._failures = FailureLog(query.location)

    @staticmethod
    def policy(settings: QuerySettings) -> AttachmentPolicy:
        """Return how dead letters are joined and retained."""
        age_ms = settings.retention.total_seconds() * 1000
        return AttachmentPolicy(
            kind=DEAD_LETTERS,
            what="dead letters",
            path_of=PATHS.recording,
            contents=lambda letters: RecordedParts(tuple(letters), TAIL_BYTES),
            age_ms=age_ms,
            span_ms=age_ms / _PARTS_OF_AGE,
            tail_bytes=TAIL_BYTES,
            objects_max=LETTER_FILES_MAX,
            is_ordered=True,
            has_checksum=True,
        )

    def task_part(self, operator: int, tasks: int) -> ErrorPolicy | None:
        """Return how tasks handle keys that fail."""
        return self._policy

    def additions(self, ack: TaskAck) -> Sequence[Addition]:
        """Return the dead letters of a task."""
        return (failures_of(ack).letters,)

    def committed(self, batch_id: int, acks: Sequence[TaskAck]) -> None:
        """Log the keys whose processing failed."""
        super().committed(batch_id, acks)
        self._failures.committed(batch_id, acks)


class FailureLog:
    """Logs that keys have failed, at most once a minute."""

    def __init__(self, location: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._location = location
        self._clock = clock
        self._logged_s: float | None = None
        self._batches = self._keys = 0

    def committed(self, batch_id: int, acks: Sequence[TaskAck]) -> None:
        """Warn about calls that failed in a micro-batch that was committed."""
        failed = sum(failures_of(ack).keys for ack in acks)
        if not failed:
            return
        self._keys += failed
        self._batches += 1
        now = self._clock()
        if self._logged_s is not None and now < self._logged_s + _LOG_INTERVAL_S:
            return
        self._logged_s = now
        first = next(failures_of(ack).first for ack in acks if failures_of(ack).keys)
        in_batches = "" if self._batches == 1 else f" in {self._batches} micro-batches"
        is_kept = any(failures_of(ack).letters.count for ack in acks)
        how = (
            f"`statelog dead-letters {self._location}` lists them"
            if is_kept
            else "they are skipped"
        )
        _log.warning(
            "processing failed for %d keys%s up to batch %d; the first of this batch: %s; %s",
            self._keys,
            in_batches,
            batch_id,
            first,
            how,
        )
        self._batches = self._keys = 0
