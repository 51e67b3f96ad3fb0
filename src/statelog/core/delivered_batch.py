"""
Which micro-batch of which history a target has, and whether another one may be written to it.

The number of a micro-batch does not say whose rows it has: after a rewind, in a fork and in a restored
copy the same number has other rows.  So a target records location, timeline, number and plan, and only
equal records mean "written already".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from statelog.errors import CheckpointError, FencedError, UsageError

_SEPARATOR: Final = "/"
_FIELDS: Final = 4


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """
    A micro-batch, named so that no other history has the same name.

    Args:
        location_id: The identity of the state location, which its first claim made.
        timeline: The timeline of the location in which the rows were computed, >= 0.
        batch_id: The number that Spark gave, >= 0.
        plan: Digest of the source offsets that the micro-batch covers; empty if unknown.
        run_timeline: The timeline of the driver that delivers it.  It is later than *timeline* where a
            micro-batch from before a rewind is delivered again.  Not part of the record.

    Raises:
        UsageError: A number is negative, or a text has a separator.
    """

    location_id: str
    timeline: int
    batch_id: int
    plan: str = ""
    run_timeline: int = -1

    def __post_init__(self) -> None:
        if self.timeline < 0 or self.batch_id < 0:
            raise UsageError(f"a micro-batch has numbers from 0 on; got {self.to_text()}")
        if _SEPARATOR in self.location_id + self.plan:
            raise UsageError(f"the names of a micro-batch must not have '{_SEPARATOR}'")

    def to_text(self) -> str:
        """Return the record for a target: `location/timeline/batch/plan`."""
        parts = (self.location_id, str(self.timeline), str(self.batch_id), self.plan)
        return _SEPARATOR.join(parts)

    @classmethod
    def from_text(cls, text: str, *, where: str) -> DeliveredBatch:
        """
        Return the micro-batch of a record.

        Args:
            text: Result of `to_text`.
            where: The target, for the error.

        Raises:
            UsageError: It is not a record of this version.
        """
        parts = text.split(_SEPARATOR)
        if len(parts) != _FIELDS or not (parts[1].isdecimal() and parts[2].isdecimal()):
            raise UsageError(
                f"the record of the last micro-batch in {where} cannot be read: expected "
                f"location/timeline/batch/plan, found {text[:80]!r}. Another program or another version "
                "of statelog wrote it: write to a new target"
            )
        return cls(parts[0], int(parts[1]), int(parts[2]), parts[3])

    @property
    def recorded(self) -> DeliveredBatch:
        """This micro-batch as a target records it."""
        return replace(self, run_timeline=-1)

    def is_written(self, last: DeliveredBatch | None, *, target: str) -> bool:
        """
        Return whether a target has this micro-batch; False if it is to be written.

        Args:
            last: The newest micro-batch of this query that the target has; None without one.
            target: The target, for the error.

        Raises:
            FencedError: The target has a micro-batch of a later timeline: the query was rewound, and
                another driver runs it.
            CheckpointError: The target is ahead of the query, or has other rows under this number
                (`reason` "gap").
        """
        if last is None:
            return False
        if last.location_id != self.location_id:
            if last.batch_id >= self.batch_id:
                raise self._gap(last, target, "of another state location")
            return False
        run_timeline = max(self.run_timeline, self.timeline)
        if last.timeline > run_timeline:
            raise FencedError(
                f"{target} has batch {last.batch_id} of timeline {last.timeline}, and this driver is at batch "
                f"{self.batch_id} of timeline {run_timeline}: the query was rewound, and another driver runs it. Stop "
                "this one"
            )
        if last.timeline != self.timeline:
            return False  # an earlier timeline, which a rewind gave up
        if last.batch_id == self.batch_id and _may_be_equal(last.plan, self.plan):
            return True
        if last.batch_id == self.batch_id:
            raise self._gap(last, target, "with other input under the same number")
        if last.batch_id > self.batch_id and run_timeline > self.timeline:
            return True  # it was delivered before the later ones, which the rewind gave up
        if last.batch_id > self.batch_id:
            raise self._gap(last, target, "which the query has not reached")
        return False

    def _gap(self, last: DeliveredBatch, target: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"{target} has batch {last.batch_id}, {what}, and the query is at batch {self.batch_id}: its "
            "checkpointLocation or its state was restored from a backup or replaced. Delete the rows of batches "
            f"from {self.batch_id} in the target, and the target's record of them ({last.to_text()})",
            reason="gap",
            batch_id=self.batch_id,
        )


def _may_be_equal(first: str, second: str) -> bool:
    """Return whether two digests are equal, as far as both are known."""
    return not first or not second or first == second
