"""
Count how keys and changes are distributed over an operator's key groups.

The keys are counted in the state as of a checkpoint, which is read whole for it, a few key groups
at a time.  The changes are those in the log after the snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.changelog.reader import read_change_batches
from statelog.model import CompletedCheckpoint
from statelog.state.reader import StateReader
from statelog.store import CachedStore, ObjectStore

_CACHED_BYTES: Final = 64 * 1024 * 1024
_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroups:
    """
    The state of one operator by key group.

    Args:
        operator: Its name.
        keys: Number of keys of each key group; empty if the state was not read.
        change_bytes: Bytes of changes of each key group in the log after the snapshots.
    """

    operator: str
    keys: tuple[int, ...]
    change_bytes: tuple[int, ...]


def largest_of(counts: Sequence[int]) -> tuple[int, float] | None:
    """
    Return the key group with the largest count, and the ratio of that count to the mean.

    None if all are 0.

    The key groups are evenly filled if that is 1.0.
    """
    total = sum(counts)
    if not total:
        return None
    largest = max(counts)
    return counts.index(largest), largest * len(counts) / total


def key_groups_of(
    store: ObjectStore,
    checkpoint: CompletedCheckpoint,
    operators: Iterable[str],
    *,
    with_keys: bool,
    progress: Callable[[str], None],
) -> tuple[KeyGroups, ...]:
    """Count the keys and changes in each key group, for each operator."""
    cached = CachedStore(store, _CACHED_BYTES)
    progress("reading the log")
    changes = _change_bytes(cached, checkpoint)
    key_groups = []
    for name in operators:
        with StateReader(cached, checkpoint, operator=name) as reader:
            groups = reader.key_groups
            keys: _Counts = np.zeros(0, np.int64)
            if with_keys:
                keys = np.zeros(len(groups), np.int64)
                for batch in reader.keys(include_expired=True):
                    positions = batch.column(0).to_numpy() - groups.start
                    keys += np.bincount(positions, minlength=len(groups))
                    progress(f"reading the state of {name}: {int(keys.sum()):,} keys")
            key_groups.append(
                KeyGroups(
                    operator=name,
                    keys=tuple(keys.tolist()),
                    change_bytes=tuple(changes[groups.start : groups.end + 1].tolist()),
                )
            )
    return tuple(key_groups)


def _change_bytes(store: ObjectStore, checkpoint: CompletedCheckpoint) -> _Counts:
    """Return, for each key group, how many bytes of changes a restart replays."""
    sizes = np.zeros(checkpoint.max_parallelism, np.int64)
    for handle in checkpoint.log:
        for batch in read_change_batches(store, handle, handle.key_group_range):
            sizes += _bytes_by_group(batch, checkpoint.max_parallelism)
    return sizes


def _bytes_by_group(batch: pa.RecordBatch, key_groups: int) -> _Counts:
    groups = batch.column(0).to_numpy()
    lengths = pc.binary_length(batch.column(1)).to_numpy(zero_copy_only=False)
    is_change = groups >= 0  # metadata has none
    counted = np.bincount(
        groups[is_change], weights=lengths[is_change].astype(np.float64), minlength=key_groups
    )
    return counted.astype(np.int64)
