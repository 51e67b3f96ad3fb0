"""
Read the handles of a log, several at once where a request takes a round trip.

A log has one handle for each checkpoint since the last snapshot and each task, and a file for most of
them: read one after another, they take as many round trips.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias

import pyarrow as pa

from statelog.changelog.reader import read_change_batches
from statelog.model import ChangelogStateHandle, FileStateHandle, KeyGroupRange
from statelog.runtime.background import CALLS_MAX
from statelog.store import ObjectStore, ask_at_once, endpoint_of

Part: TypeAlias = tuple[ChangelogStateHandle, KeyGroupRange]
_WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Of values that are read at once; a larger handle is read alone, one set after another."""


def read_logs(store: ObjectStore, parts: Iterable[Part]) -> Iterator[Iterable[pa.RecordBatch]]:
    """
    Yield the changes of several handles, as `read_change_batches` does for each.

    Args:
        store: The store of the handles.
        parts: The handles, each with the key groups to read.

    Raises:
        Exception: As `read_change_batches`.

    Blocks: On the store.
    """
    if endpoint_of(store) is None:
        for handle, key_groups in parts:
            yield read_change_batches(store, handle, key_groups)
        return
    for window in _windows(parts):
        if len(window) == 1:
            yield read_change_batches(store, *window[0])
            continue
        together = [list(each) for _, each in groupby(window, key=_first_path)]
        reads = [partial(_read, store, each) for each in together]
        for batches in ask_at_once(store, reads):
            yield from batches


def _windows(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield the parts that are read at once; a part that is too large alone."""
    window: list[Part] = []
    size = 0
    for part in parts:
        part_bytes = max(part[0].size_bytes, 0)
        if window and (len(window) == CALLS_MAX or size + part_bytes > _WINDOW_BYTES):
            yield window
            window, size = [], 0
        window.append(part)
        size += part_bytes
    if window:
        yield window


def _first_path(part: Part) -> str:
    """Return the first file of a handle: those of one checkpoint may share it, and its one request."""
    for entry in part[0].handles_and_offsets:
        if isinstance(entry.handle, FileStateHandle):
            return entry.handle.path
    return ""


def _read(store: ObjectStore, parts: Sequence[Part]) -> list[list[pa.RecordBatch]]:
    return [list(read_change_batches(store, *part)) for part in parts]
