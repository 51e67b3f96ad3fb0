"""
Read the processing time, watermarks and source positions of a micro-batch.

They are Spark's own.  Spark computes the watermark of a query by itself, provided that the rows are
evaluated.  It writes processing time, watermark and source offsets of a micro-batch into its offset
log before the batch runs, so a batch that is repeated, in this process or after a restart, has the
same times.  The watermark of the micro-batch before decides which rows are late; the watermark of
this one decides which timers fire.
Source: Spark's MicroBatchExecution, WatermarkTracker, WatermarkSupport; measured on Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from statelog.checkpoint.query_files import (
    COMMITS,
    OFFSETS,
    QueryFiles,
    entries_digest,
    numbers_in,
    read_offsets,
    read_source_logs,
    recorded_query_id,
)
from statelog.core.source_position import (
    NOTHING_READ,
    OffsetEntry,
    SourceLog,
    log_entry,
    position_of,
)
from statelog.errors import StatelogError

LogFolders = Callable[[], Sequence[int]]
"""Returns for each source, statelog's own included, the number of its log below `sources/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """
    The times of one micro-batch.

    Args:
        now_ms: Processing time; -1 if unknown.
        watermark_ms: The watermark: timers up to it are due; -1 if unknown.
        late_ms: The watermark of the micro-batch before: rows up to it are late; -1 if unknown.
        position: Position of the sources after this batch; None if unknown.
        position_before: Position of the sources before this batch.
        source_logs: Entries of the batch in the logs of file sources; empty without such sources.
        source_folders: Names of the sources' logs, in their order; empty if unknown.
    """

    now_ms: int = -1
    watermark_ms: int = -1
    late_ms: int = -1
    position: str | None = None
    position_before: str | None = None
    source_logs: tuple[SourceLog, ...] = ()
    source_folders: tuple[str, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether it is certain that the micro-batch does not have new input."""
        return self.position is not None and self.position == self.position_before

    def not_before(self, watermark_ms: int) -> BatchTimes:
        """Return these times with all watermarks raised to at least *watermark_ms*."""
        return replace(
            self,
            watermark_ms=max(self.watermark_ms, watermark_ms),
            late_ms=max(self.late_ms, watermark_ms),
        )


class QueryTimes:
    """
    Reads the times and positions of micro-batches from a checkpointLocation.

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
        self._query_id = ""
        self._last: tuple[int, OffsetEntry] | None = None

    def query_id(self) -> str:
        """Return the query's id in Spark, or "" before its first run."""
        if not self._query_id:
            self._query_id = recorded_query_id(self._files)
        return self._query_id

    def of(self, batch_id: int) -> BatchTimes:
        """Return the times of a micro-batch that is currently running."""
        entry = read_offsets(self._files, batch_id)
        if entry is None:
            raise StatelogError(
                f"the offset log in {self._files.url} does not contain an entry for batch {batch_id}, which is "
                "running"
            )
        before = None
        # The entry before is remembered, so that a micro-batch reads one file.
        if self._last is not None and self._last[0] == batch_id - 1:
            before = self._last[1]
        elif batch_id > 0:
            before = read_offsets(self._files, batch_id - 1)
        self._last = (batch_id, entry)
        times = BatchTimes(
            now_ms=entry.timestamp_ms,
            watermark_ms=entry.watermark_ms,
            late_ms=0 if before is None else before.watermark_ms,
        )
        return self.with_positions(times, batch_id, entry, before)

    def with_positions(
        self, times: BatchTimes, batch_id: int, entry: OffsetEntry, before: OffsetEntry | None
    ) -> BatchTimes:
        """Return *times* with the source positions before and after the micro-batch."""
        offsets = self._of_user(entry)
        if offsets is None:  # named sources have no order
            return times
        # Before the first batch nothing was read, so its position before is known.
        earlier: tuple[str | None, ...] | None = None if batch_id > 0 else ()
        if before is not None:
            earlier = self._of_user(before)
        folders = self._folders_of(offsets)
        times = replace(times, position=position_of(offsets), source_folders=folders)
        if earlier is None:
            return times
        logs = read_source_logs(self._files, folders, earlier, offsets) if folders else ()
        before_batch = position_of(earlier) if earlier else NOTHING_READ
        return replace(times, position_before=before_batch, source_logs=logs)

    def last_finished(self) -> tuple[int, str | None] | None:
        """
        Return the newest micro-batch that an earlier run finished, and its position.

        None for none.
        """
        batch_id = max(numbers_in(self._files, COMMITS), default=None)
        entry = None if batch_id is None else read_offsets(self._files, batch_id)
        if batch_id is None or entry is None:
            return None
        offsets = self._of_user(entry)
        return batch_id, None if offsets is None else position_of(offsets)

    @property
    def checkpoint_location(self) -> str:
        """The query's checkpointLocation, as resolved by Spark."""
        return self._files.url

    def read_again(self, logs: Sequence[SourceLog]) -> list[SourceLog]:
        """Read the source log entries in *logs* again."""
        return [
            SourceLog(
                source=log.source,
                folder=log.folder,
                after=log.after,
                upto=log.upto,
                digest=entries_digest(self._files, log.folder, log.after, log.upto),
            )
            for log in logs
        ]

    def is_planned(self, batch_id: int) -> bool:
        """Return whether the checkpointLocation contains a micro-batch's offsets by now."""
        return self._files.read(f"{OFFSETS}/{batch_id}") is not None

    def _of_user(self, entry: OffsetEntry) -> tuple[str | None, ...] | None:
        """Return the offsets of the user's sources, or None if their order is unknown."""
        if entry.offsets is None:
            return None
        # statelog's source is always the last one.
        return entry.offsets[: len(entry.offsets) - self._own_sources]

    def _folders_of(self, offsets: tuple[str | None, ...]) -> tuple[str, ...]:
        """Return the log name of each of the user's sources; empty if the sources are unknown."""
        if not self._folders:
            if self._log_folders is not None:
                self._folders = tuple(map(str, self._log_folders()[: len(offsets)]))
            else:
                self._folders = _written_folders(self._files, offsets)
        return self._folders


def _written_folders(files: QueryFiles, offsets: tuple[str | None, ...]) -> tuple[str, ...]:
    """
    Return the names of the source logs, if they can be determined from the files.

    Spark numbers the sources in their order, and gives a source that is used twice one number.
    """
    names = tuple(str(number) for number in range(len(offsets)))
    has_files = any(offset is None or log_entry(offset) is not None for offset in offsets)
    return names if not has_files or set(names) <= set(files.names("sources")) else ()
