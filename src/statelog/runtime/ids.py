"""Sources of unique names and of randomness."""

from __future__ import annotations

import random
import uuid
from typing import Protocol


class IdSource(Protocol):
    """Makes unique names and random fractions.  Thread: any."""

    def new_id(self) -> str:
        """Return a name that no other process ever returns; usable as a file name."""
        ...

    def fraction(self) -> float:
        """Return a number in [0, 1) that spreads retries."""
        ...


class RandomIds:
    """Random UUIDs, in the form of Flink's file names.  Safe across a fork."""

    def new_id(self) -> str:
        """Return a random UUID."""
        return str(uuid.uuid4())

    def fraction(self) -> float:
        """Return a number in [0, 1)."""
        return random.random()
