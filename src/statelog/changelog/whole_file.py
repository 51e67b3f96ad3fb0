"""A handle of everything in a changelog file, for files whose handles are not known."""

from __future__ import annotations

from statelog.changelog.reader import FileSource
from statelog.format.segment import parse_whole_file
from statelog.model import ChangelogStateHandle, FileStateHandle, HandleAndOffset, KeyGroupRange
from statelog.model.state_change import INT32_MAX
from statelog.store import read_verified


def whole_file_handle(store: FileSource, path: str) -> ChangelogStateHandle:
    """
    Return a handle of all change sets in a file, written by statelog or by Flink.

    Args:
        store: Where the file is.
        path: Its name.

    Raises:
        ObjectNotFoundError: There is no such file.
        CorruptionError: It is no changelog file, or it is damaged.
        IncompatibleFormatError: A newer statelog wrote it.

    Blocks: On the store; the file is read once, to find its sets.
    """
    segment = read_verified(store, path, lambda data: parse_whole_file(data, where=path))
    stream = FileStateHandle(path, len(segment.payload))
    return ChangelogStateHandle(
        key_group_range=KeyGroupRange(0, INT32_MAX - 1),
        handles_and_offsets=tuple(
            HandleAndOffset(stream, start) for start, _ in segment.set_ranges()
        ),
        size_bytes=-1,
        incremental_size_bytes=-1,
        state_handle_id=path,
    )
