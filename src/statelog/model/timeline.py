"""
The history that the number of a checkpoint belongs to.

A location has an identity, which its first claim makes.  A rewind, a fork and a copy begin a new
*timeline* of it: the checkpoints after a given one are given up, and later ones continue that one.  A
checkpoint names its timeline, and the timelines before it with the last checkpoint that it has of
each.  So two checkpoints of one number are told apart by what one of them says.
Source: PostgreSQL, timelines and timeline history files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from statelog.errors import UsageError

ANCESTORS_MAX: Final = 256
"""Timelines before its own that a checkpoint names; older ones are forgotten with their checkpoints."""
_SEPARATOR: Final = "/"
_NAME: Final = re.compile(r"[0-9a-f]{0,32}")
_FIELDS: Final = 4


def is_history_name(text: str) -> bool:
    """Return whether a text can be the identity of a location, or the name of an attempt."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class TimelineEnd:
    """
    A timeline that a later one continues.

    Args:
        location_id: The location of the timeline.
        number: The number of the timeline.
        last_id: Its last checkpoint that the later timeline continues.
    """

    location_id: str
    number: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """
    A timeline of a location.

    Args:
        location_id: The identity of the location.
        number: The number of the claim that began it, >= 0.  Later timelines have higher numbers.
        ancestors: The timelines that it continues, oldest first.
    """

    location_id: str = ""
    number: int = 0
    ancestors: tuple[TimelineEnd, ...] = ()

    def continued(self, location_id: str, number: int, last_id: int) -> Timeline:
        """Return a new timeline that continues this one after checkpoint *last_id*."""
        end = TimelineEnd(self.location_id, self.number, last_id)
        return Timeline(location_id, number, (*self.ancestors, end)[-ANCESTORS_MAX:])

    def has(self, position: CheckpointPosition, newest_id: int) -> bool:
        """
        Return whether a checkpoint is part of the history that ends with checkpoint *newest_id*.

        The name of the attempt is not compared; see `CompletedCheckpoint.continues`.
        """
        if (position.location_id, position.timeline) == (self.location_id, self.number):
            return position.checkpoint_id <= newest_id
        return any(
            (position.location_id, position.timeline) == (end.location_id, end.number)
            and position.checkpoint_id <= end.last_id
            for end in self.ancestors
        )


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """
    A checkpoint, named so that no other history has the same name.

    What remembers a checkpoint outside of its location remembers this: offsets of readers, published
    tables, replicas.

    Args:
        location_id: The identity of its location.
        timeline: The number of its timeline.
        checkpoint_id: Its number.
        attempt: The random name of the attempt that committed it.  It differs where a location was
            restored from a backup by other means than statelog, and then used the number again.
    """

    location_id: str
    timeline: int
    checkpoint_id: int
    attempt: str

    def to_text(self) -> str:
        """Return it as `location/timeline/number/attempt`."""
        parts = (self.location_id, str(self.timeline), str(self.checkpoint_id), self.attempt)
        return _SEPARATOR.join(parts)

    @classmethod
    def from_text(cls, text: str) -> CheckpointPosition:
        """
        Return the position that `to_text` wrote.

        Raises:
            UsageError: It is not one.
        """
        parts = text.split(_SEPARATOR)
        are_names = (
            len(parts) == _FIELDS and is_history_name(parts[0]) and is_history_name(parts[3])
        )
        if not are_names or not (parts[1].isdecimal() and parts[2].isdecimal()):
            raise UsageError(
                f"{text[:100]!r} names no checkpoint: expected location/timeline/number/attempt"
            )
        return cls(parts[0], int(parts[1]), int(parts[2]), parts[3])
