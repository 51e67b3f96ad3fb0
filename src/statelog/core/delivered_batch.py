"""
The micro-batch that a target contains, and whether a driver may write the next one.

The number of a micro-batch does not say whose rows it has: after a rewind, in a fork and in a
restored copy the same number has other rows.  So a target records location, timeline, number and
plan, and only equal records mean "written already".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from statelog.errors import CheckpointError, FencedError, UsageError

_SEPARATOR: Final = "/"
_FIELDS: Final = 4
_BATCH_BITS: Final = 32
_BATCH_MASK: Final = 2**_BATCH_BITS - 1
_NUMBER: Final = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """
    A micro-batch, identified uniquely across all histories of the location.

    Args:
        location_id: The identity of the state location, which its first claim made.
        timeline: The timeline of the location in which the rows were computed, >= 0.
        batch_id: The number that Spark gave, >= 0.
        plan: Digest of the source offsets that the micro-batch covers; empty if unknown.
        run_timeline: The timeline of the driver that delivers it.  It is later than *timeline*
            where a micro-batch from before a rewind is delivered again.

    Raises:
        UsageError: A number is negative, or a text has a separator.
    """

    location_id: str
    timeline: int
    batch_id: int
    plan: str = ""
    run_timeline: int = 0

    def __post_init__(self) -> None:
        # The record is text with a separator, so every field must be readable from it again.
        if self.timeline < 0 or self.batch_id < 0:
            raise UsageError(
                f"the numbers of a micro-batch must be at least 0; got {self.to_text()}"
            )
        if _SEPARATOR in self.location_id + self.plan:
            raise UsageError(f"the names of a micro-batch must not contain '{_SEPARATOR}'")

    @property
    def recorded(self) -> DeliveredBatch:
        """
        This micro-batch as recorded in a target, on the timeline of the driver that delivers it.

        So the record fences drivers of earlier timelines, also after a micro-batch from before the
        rewind.
        """
        return replace(self, timeline=max(self.timeline, self.run_timeline), run_timeline=0)

    def to_text(self) -> str:
        """Return the record to store in a target: `location/timeline/batch/plan`."""
        timeline = max(self.timeline, self.run_timeline)
        return _SEPARATOR.join((self.location_id, str(timeline), str(self.batch_id), self.plan))

    @classmethod
    def from_text(cls, text: str, *, where: str) -> DeliveredBatch:
        """
        Parse a micro-batch from a record; the result equals `recorded`.

        Args:
            text: Result of `to_text`.
            where: The target, for the error.

        Raises:
            UsageError: It is not a record of this version.
        """
        parts = text.split(_SEPARATOR)
        if len(parts) != _FIELDS or not all(map(_NUMBER.fullmatch, parts[1:3])):
            raise UsageError(
                f"the record of the last micro-batch in {where} cannot be read: expected "
                f"location/timeline/batch/plan, found {text[:80]!r}. A different program or version "
                "of statelog wrote it: write to a new target"
            )
        return cls(parts[0], int(parts[1]), int(parts[2]), parts[3])

    @property
    def number(self) -> int:
        """
        Timeline and batch id as a single number, for targets that store a number.

        Within a location it rises with each micro-batch, and with each timeline.
        """
        return self.recorded.timeline << _BATCH_BITS | self.batch_id

    @classmethod
    def from_number(cls, number: int, location_id: str = "") -> DeliveredBatch:
        """Parse a micro-batch from a `number`; without *location_id*, its location is unknown."""
        return cls(location_id, number >> _BATCH_BITS, number & _BATCH_MASK)

    def is_recorded_as(self, recorded: DeliveredBatch | None) -> bool:
        """Return whether *recorded* matches this micro-batch, as far as the record is complete."""
        return (
            recorded is not None
            and recorded.number == self.number
            and (not recorded.location_id or recorded.location_id == self.location_id)
            and _may_be_equal(recorded.plan, self.plan)
        )

    def is_written(self, last: DeliveredBatch | None, *, target: str) -> bool:
        """
        Return whether a target already contains this micro-batch; if not, it must be written.

        Args:
            last: The record of the newest micro-batch of this query in the target; None without
                one.  An empty location or plan in it is unknown.
            target: The target, for the error.

        Raises:
            FencedError: The target has a micro-batch of a later timeline: the query was rewound,
                and another driver runs it.
            CheckpointError: The target is ahead of the query, or has other rows under this number
                (`reason` "gap").
        """
        if last is None:
            return False
        # 1. The record is of another location, such as the original of a copy: continue only above
        # its batch.
        if last.location_id not in ("", self.location_id):
            if last.batch_id >= self.batch_id:
                raise self._gap(last, target, "of a different state location")
            return False
        # 2. Of a later timeline than this driver's: this driver is the one that was replaced.
        run_timeline = self.recorded.timeline
        if last.timeline > run_timeline:
            raise FencedError(
                f"{target} contains batch {last.batch_id} of timeline {last.timeline}, but this driver is at batch "
                f"{self.batch_id} of timeline {run_timeline}: the query was rewound, and a "
                "second driver is running it. Stop this driver"
            )
        if last.timeline < self.timeline:
            return False  # a timeline that a rewind ended; what it has after the rewind is given up
        # 3. Of the same history: the numbers decide.
        return self._is_written_in(last, target)

    def _is_written_in(self, last: DeliveredBatch, target: str) -> bool:
        """Decide for a record on this micro-batch's timeline, or on one that continues it."""
        if last.batch_id == self.batch_id:
            if not _may_be_equal(last.plan, self.plan):
                raise self._gap(last, target, "with different input under the same number")
            return True
        if last.batch_id < self.batch_id:
            if last.timeline > self.timeline:  # it continues from this batch, or an earlier one
                raise self._gap(last, target, "of a timeline that does not contain this batch")
            return False
        if last.timeline == self.recorded.timeline:
            raise self._gap(last, target, "which the query has not reached")
        return True  # delivered before the later ones, which the rewind gave up

    def _gap(self, last: DeliveredBatch, target: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"{target} contains batch {last.batch_id}, {what}, but the query is at batch {self.batch_id}: its "
            "checkpointLocation or its state was restored from a backup or replaced. Delete the rows of batches "
            f"from {self.batch_id} in the target, and the target's record of them ({last.to_text()})",
            reason="gap",
            batch_id=self.batch_id,
        )


def _may_be_equal(first: str, second: str) -> bool:
    """Return whether two digests are equal or at least one is unknown."""
    return not first or not second or first == second
