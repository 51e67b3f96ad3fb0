"""Ranges of key groups that are restored together, by the bytes that are stored for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from statelog.model import CompletedCheckpoint, KeyGroupRange


def portions(
    weights: Sequence[float], key_groups: KeyGroupRange, most: int
) -> Iterator[KeyGroupRange]:
    """
    Yield parts of *key_groups*, each one key group at least.

    Args:
        weights: Bytes of each key group of the job.
        key_groups: What is divided.
        most: Bytes of a part, unless it is one key group.
    """
    start, size = key_groups.start, 0.0
    for key_group in key_groups:
        size += weights[key_group]
        if size > most and key_group > start:
            yield KeyGroupRange(start, key_group - 1)
            start, size = key_group, weights[key_group]
    if len(key_groups):
        yield KeyGroupRange(start, key_groups.end)


def stored_bytes(checkpoint: CompletedCheckpoint) -> list[float]:
    """Return about how many stored bytes each key group has."""
    weights = np.zeros(checkpoint.max_parallelism)
    sized = [(each.key_group_range, each.handle.size_bytes) for each in checkpoint.materialized]
    sized += [(each.key_group_range, each.size_bytes) for each in checkpoint.log]
    for part, size in sized:
        if len(part):
            weights[part.start : part.end + 1] += max(size, 0) / len(part)
    sizes: list[float] = weights.tolist()
    return sizes
