"""
Pins: checkpoints that are kept although the retention would give them up.

A tag pins one checkpoint.  A reader that follows a location pins its position and everything newer,
up to a bound, so that a reader that is never started again does not fill the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pin:
    """
    One pin.

    Args:
        checkpoint_id: The pinned checkpoint, >= 0.
        newest: 0 to pin this checkpoint only.  Otherwise this one and every newer one are pinned, as
            long as they are among this many newest ids.
    """

    checkpoint_id: int
    newest: int = 0

    def holds(self, checkpoint_id: int, latest_id: int) -> bool:
        """Return whether a checkpoint is pinned."""
        if not self.newest:
            return checkpoint_id == self.checkpoint_id
        return checkpoint_id >= max(self.checkpoint_id, latest_id - self.newest + 1)


def pinned(pins: Iterable[Pin], checkpoint_ids: Iterable[int], latest_id: int) -> frozenset[int]:
    """Return those of *checkpoint_ids* that a pin holds."""
    all_pins = tuple(pins)
    return frozenset(
        checkpoint_id
        for checkpoint_id in checkpoint_ids
        if any(pin.holds(checkpoint_id, latest_id) for pin in all_pins)
    )


def retained_ids(
    checkpoint_ids: Sequence[int], retained: int, pins: Iterable[Pin]
) -> tuple[int, ...]:
    """Return the newest of *checkpoint_ids* (ascending), so many as *retained*, and the pinned ones."""
    newest = checkpoint_ids[-retained:]
    held = pinned(pins, checkpoint_ids, checkpoint_ids[-1])
    return tuple(
        checkpoint_id
        for checkpoint_id in checkpoint_ids
        if checkpoint_id in held or checkpoint_id in newest
    )
