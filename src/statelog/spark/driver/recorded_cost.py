"""
What a micro-batch cost, for its record in the checkpoint.

The record is written by the commit, so it has the phases before it.  The phases from the commit on
are written by the next micro-batch of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from statelog.spark.driver.progress import (
    UploadFigures,
    repeated_by,
    slowest_phases,
    upload_figures,
)
from statelog.spark.worker.protocol import TaskAck
from statelog.spark.worker.stopwatch import Stopwatch

_AFTER: Final = ("commit", "deliver", "clean_up")


class CountsPuts(Protocol):
    """A location that counts the puts it had to repeat; `StateLocation` is one."""

    repeated_puts: int


class RecordedCost(NamedTuple):
    """The fields of these names of a `BatchRecord`."""

    durations_ms: dict[str, int]
    task_ms: dict[str, int]
    previous_ms: dict[str, int] | None
    retries: dict[str, int]
    objects: int
    object_bytes: int
    uploads: dict[str, int] | None


class RecordedCosts:
    """
    The cost of the micro-batches of one run.

    Args:
        location: Counts repeated puts.
    """

    def __init__(self, location: CountsPuts) -> None:
        self._location = location
        self._previous: dict[str, int] | None = None

    def before_commit(self, watch: Stopwatch, acks: Sequence[TaskAck]) -> RecordedCost:
        """Return what is known before the commit: about 100 bytes of JSON, in whole numbers."""
        slowest = _rounded(slowest_phases(acks))
        # Those of this commit are counted from now on, for the next record.
        repeated, self._location.repeated_puts = self._location.repeated_puts, 0
        return RecordedCost(
            durations_ms=_rounded(watch.milliseconds),
            task_ms={phase: ms for phase, ms in slowest.items() if ms},
            previous_ms=self._previous,
            retries={
                "tasks": sum(ack.attempt for ack in acks),
                "puts": repeated,
                "requests": repeated_by(acks),
            },
            objects=sum(ack.objects for ack in acks),
            object_bytes=sum(ack.object_bytes for ack in acks),
            uploads=_uploads(upload_figures(acks)),
        )

    def committed(self, watch: Stopwatch) -> None:
        """Keep the phases from the commit on, for the record of the next micro-batch."""
        self._previous = {
            phase: ms for phase, ms in _rounded(watch.milliseconds).items() if phase in _AFTER
        }


def _uploads(figures: UploadFigures) -> dict[str, int] | None:
    """Return what a record has of the uploads; None where there were none."""
    if not figures.upload_attempts:
        return None
    return {
        "uploads": figures.uploads,
        "attempts": figures.upload_attempts,
        "retries": figures.upload_retries,
        "bytes": figures.upload_bytes,
        "slowest_ms": round(figures.slowest_upload_ms),
        "wait_ms": round(figures.upload_wait_ms),
    }


def _rounded(milliseconds: dict[str, float]) -> dict[str, int]:
    return {phase: round(ms) for phase, ms in milliseconds.items()}
