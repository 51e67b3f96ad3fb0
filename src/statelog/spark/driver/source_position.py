"""
Read the positions of a running query's sources.

The offsets of the running micro-batch are in the JVM's memory.  The log of a file source has one
small file for them, which is read from disk where the checkpointLocation is on local disk, and
through Spark's own file access elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from statelog.checkpoint.source_logs import QueryFiles, entries_digest, read_source_logs
from statelog.core.source_position import NOTHING_READ, SourceLog, position_of
from statelog.errors import CheckpointError
from statelog.spark.rows.jvm import JavaObject, jvm_of

_LOCAL = "file:"


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
        session: The session on which the query was started.
        query: Spark's `StreamExecution`.
        has_no_data_source: Whether the last source is that for no-data batches.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self, session: SparkSession, query: JavaObject, *, has_no_data_source: bool
    ) -> None:
        self._query = query
        self._own_sources = int(has_no_data_source)
        self.checkpoint_location: str = query.resolvedCheckpointRoot()
        self._files = checkpoint_files(session, self.checkpoint_location)
        self._folders: tuple[str, ...] | None = None
        self._last: tuple[int, tuple[str | None, ...]] | None = None

    def of(self, batch_id: int, entry: JavaObject, before: JavaObject) -> BatchPosition:
        """
        Return the position of a micro-batch that is running.

        Args:
            batch_id: The micro-batch.
            entry: Its entry in the offset log.
            before: The entry before it; None if there is none, or if this object has read it.
        """
        offsets = self._offsets(entry)
        if offsets is None:  # named sources have no order
            return BatchPosition()
        earlier: tuple[str | None, ...] | None = ()
        if self._last is not None and self._last[0] == batch_id - 1:
            earlier = self._last[1]
        elif before is not None:
            earlier = self._offsets(before)
        elif batch_id > 0:
            earlier = None
        self._last = (batch_id, offsets)
        folders = self._log_folders()
        if earlier is None:
            return BatchPosition(position=position_of(offsets), folders=folders)
        return BatchPosition(
            position=position_of(offsets),
            position_before=position_of(earlier) if earlier else NOTHING_READ,
            logs=read_source_logs(self._files, folders, earlier, offsets),
            folders=folders,
        )

    def read_again(self, logs: Sequence[SourceLog]) -> list[SourceLog]:
        """Read the entries of *logs* again."""
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

    def _offsets(self, entry: JavaObject) -> tuple[str | None, ...] | None:
        """
        Return the offsets of the user's sources as JSON.

        None where they have no order.
        """
        if entry.getClass().getSimpleName() != "OffsetSeq":
            return None
        offsets = entry.offsets()
        of_user = [offsets.apply(at) for at in range(offsets.size() - self._own_sources)]
        return tuple(offset.get().json() if offset.isDefined() else None for offset in of_user)

    def _log_folders(self) -> tuple[str, ...]:
        """
        Return the name of the log of each of the user's sources.

        A source used twice has one log.
        """
        if self._folders is None:
            sources = self._query.sources()
            count = sources.size() - self._own_sources
            first = [sources.indexOf(sources.apply(at)) for at in range(count)]
            distinct = sorted(set(first))
            self._folders = tuple(str(distinct.index(one)) for one in first)
        return self._folders


def newest_offsets(log: JavaObject, checkpoint_location: str) -> JavaObject:
    """
    Return an offset log's newest entry, as Scala's Option of a pair.

    Raises:
        CheckpointError: Spark cannot read it (`reason` "damaged").
    """
    try:
        return log.getLatest()
    except Py4JJavaError as error:
        cause: JavaObject = error.java_exception
        raise CheckpointError(
            f"Spark cannot read the offset log of {checkpoint_location}: {cause.getMessage()}. A "
            "power failure may have truncated the file. Nothing was changed: `statelog rewind "
            f"{checkpoint_location}` (with --state-location, where the state is elsewhere) lists "
            "the batches to go back to; going back removes the file",
            reason="damaged",
        ) from error


class _LocalFiles:
    """A checkpointLocation on local disk."""

    def __init__(self, root: str) -> None:
        self._root = root

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        try:
            with open(os.path.join(self._root, name), "rb") as file:
                if tail is not None:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - tail))
                return file.read()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> Sequence[str]:
        try:
            return os.listdir(os.path.join(self._root, folder))
        except FileNotFoundError:
            return ()


class _HadoopFiles:
    """A checkpointLocation on any of Hadoop's file systems."""

    def __init__(self, session: SparkSession, root: str) -> None:
        self._jvm = jvm_of(session)
        self._root = root
        folder = self._path("")
        self._files = folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())

    def _path(self, name: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}" if name else self._root)

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        path = self._path(name)
        try:
            stream = self._files.open(path)
        except Py4JJavaError as error:
            failed: JavaObject = error.java_exception
            if failed.getClass().getSimpleName() == "FileNotFoundException":
                return None
            raise
        try:
            if tail is not None:
                stream.seek(max(0, self._files.getFileStatus(path).getLen() - tail))
            data: bytes = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            return bytes(data)
        finally:
            stream.close()

    def names(self, folder: str) -> Sequence[str]:
        path = self._path(folder)
        if not self._files.exists(path):
            return ()
        return [status.getPath().getName() for status in self._files.listStatus(path)]


def checkpoint_files(session: SparkSession, root: str) -> QueryFiles:
    """Return the files of a checkpointLocation as Spark resolved it."""
    if root.startswith(_LOCAL):
        return _LocalFiles("/" + root[len(_LOCAL) :].lstrip("/"))
    return _HadoopFiles(session, root)
