"""
Names of objects that hold state: random, and optionally with entropy in the path.

Source: Flink, EntropyInjector.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from statelog.arguments import text, whole_number
from statelog.errors import UsageError

_ENTROPY_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Entropy:
    """
    Random characters in names, to spread objects over the partitions of a store.

    Args:
        marker: Text whose first occurrence in a path is replaced; not empty.
        length: Number of random characters, >= 1.

    Raises:
        UsageError: The marker is empty or the length not positive.
    """

    marker: str
    length: int = 4

    def __post_init__(self) -> None:
        text(self.marker, "marker")
        whole_number(self.length, "length")
        if not self.marker or self.length < 1:
            raise UsageError(f"entropy needs a marker and a length of at least 1, not {self!r}")

    def inject(self, path: str) -> str:
        """Return *path* with the marker replaced, for data."""
        if self.marker not in path:
            return path
        drawn = os.urandom(self.length)
        characters = "".join(_ENTROPY_ALPHABET[byte % len(_ENTROPY_ALPHABET)] for byte in drawn)
        return path.replace(self.marker, characters, 1)

    def remove(self, path: str) -> str:
        """Return *path* without the marker and empty folders, for metadata."""
        if self.marker not in path:
            return path
        parts = path.replace(self.marker, "", 1).split("/")
        return "/".join(part for part in parts if part)


def random_name() -> str:
    """Return a random name in the form of a UUID, as Flink's files have."""
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
