"""
Read the positions of a running query's sources.

The offsets of a micro-batch are in its entry of the offset log.  The log of a file source has one
more small file for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statelog.checkpoint.source_logs import QueryFiles, entries_digest, read_source_logs
from statelog.core.source_position import (
    NOTHING_READ,
    OffsetEntry,
    SourceLog,
    log_entry,
    position_of,
)

LogFolders = Callable[[], Sequence[int]]
"""Returns for each source, statelog's own included, the number of its log below `sources/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPosition:
    """
    The positions of the user's sources after a micro-batch, and before it.

    Args:
        position, position_before: Digests of the offsets; None if unknown.
        logs: Entries of the micro-batch in the logs of file sources.
        folders: Names of the sources' logs below `sources/`, in their order.
    """

    position: str | None = None
    position_before: str | None = None
    logs: tuple[SourceLog, ...] = ()
    folders: tuple[str, ...] = ()


class SourcePositions:
    """
    Reads the positions of one running query.

    Args:
        files: The query's checkpointLocation.
        has_no_data_source: Whether the last source is that for no-data batches.
        log_folders: Gives the numbers of the sources' logs; None to find them in *files*, where a
            source that is used twice among file sources leaves them unknown.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self,
        files: QueryFiles,
        *,
        has_no_data_source: bool,
        log_folders: LogFolders | None = None,
    ) -> None:
        self._files = files
        self._own_sources = int(has_no_data_source)
        self._log_folders = log_folders
        self._folders: tuple[str, ...] = ()

    def of(self, batch_id: int, entry: OffsetEntry, before: OffsetEntry | None) -> BatchPosition:
        """
        Return the position of a micro-batch that is running.

        Args:
            batch_id: The micro-batch.
            entry: Its entry in the offset log.
            before: The entry before it; None if there is none.

        Blocks: On the files.
        """
        offsets = self._of_user(entry)
        if offsets is None:  # named sources have no order
            return BatchPosition()
        earlier: tuple[str | None, ...] | None = None if batch_id > 0 else ()
        if before is not None:
            earlier = self._of_user(before)
        folders = self._folders_of(offsets)
        if earlier is None:
            return BatchPosition(position=position_of(offsets), folders=folders)
        logs = read_source_logs(self._files, folders, earlier, offsets) if folders else ()
        return BatchPosition(
            position=position_of(offsets),
            position_before=position_of(earlier) if earlier else NOTHING_READ,
            logs=logs,
            folders=folders,
        )

    def end_of(self, entry: OffsetEntry) -> str | None:
        """Return the position after a micro-batch; None where its sources have no order."""
        offsets = self._of_user(entry)
        return None if offsets is None else position_of(offsets)

    def read_again(self, logs: Sequence[SourceLog]) -> list[SourceLog]:
        """
        Read the entries of *logs* again.

        Blocks: On the files.
        """
        return [
            SourceLog(
                source=one.source,
                folder=one.folder,
                after=one.after,
                upto=one.upto,
                digest=entries_digest(self._files, one.folder, one.after, one.upto),
            )
            for one in logs
        ]

    def _of_user(self, entry: OffsetEntry) -> tuple[str | None, ...] | None:
        """Return the offsets of the user's sources; None where they have no order."""
        if entry.offsets is None:
            return None
        return entry.offsets[: len(entry.offsets) - self._own_sources]

    def _folders_of(self, offsets: tuple[str | None, ...]) -> tuple[str, ...]:
        """Return the name of the log of each of the user's sources; none if they are unknown."""
        if not self._folders:
            if self._log_folders is not None:
                self._folders = tuple(map(str, self._log_folders()[: len(offsets)]))
            else:
                self._folders = _written_folders(self._files, offsets)
        return self._folders


def _written_folders(files: QueryFiles, offsets: tuple[str | None, ...]) -> tuple[str, ...]:
    """
    Return the names of the sources' logs where the files show them.

    Spark numbers the sources in their order, and gives a source that is used twice one number.
    """
    names = tuple(str(at) for at in range(len(offsets)))
    has_files = any(offset is None or log_entry(offset) is not None for offset in offsets)
    return names if not has_files or set(names) <= set(files.names("sources")) else ()
