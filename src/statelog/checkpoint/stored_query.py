"""A query's checkpointLocation in a store, for operations that list, copy and delete its files."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence

from statelog.checkpoint.query_files import (
    COMMITS,
    COMPACT,
    OFFSETS,
    QueryFiles,
    compacts_in,
    entry_of_log,
    number_of,
    numbers_in,
    read_offsets,
    recorded_query_id,
)
from statelog.core.source_position import FileEntry, OffsetEntry, parse_files
from statelog.errors import CheckpointError, ObjectNotFoundError, UsageError
from statelog.store import ObjectStore
from statelog.store.client import fsync_path
from statelog.store.location import local_path


def files_upto(files: QueryFiles, folder: str, upto: int) -> list[FileEntry]:
    """Return the files in all entries of a source's log up to *upto*."""
    log = f"sources/{folder}"
    compact = max(
        (number for number in compacts_in(files.names(log)) if number <= upto), default=None
    )
    entries: list[FileEntry] = []
    if compact is not None:
        name = f"{log}/{compact}{COMPACT}"
        entries += parse_files(files.read(name) or b"", name)
    for entry in range(0 if compact is None else compact + 1, upto + 1):
        named = entry_of_log(files, log, entry)
        if named is None:
            raise CheckpointError(
                f"the log of a source, {files.url}/{log}, has no entry {entry}", reason="not_found"
            )
        entries += named
    return entries


class StoredQuery:
    """The files of one checkpointLocation."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def store(self) -> ObjectStore:
        """The store of the checkpointLocation."""
        return self._store

    @property
    def url(self) -> str:
        """The checkpointLocation."""
        return self._store.url

    def query_id(self) -> str:
        """Return Spark's name of the query."""
        try:
            query_id = recorded_query_id(self)
        except CheckpointError as error:
            raise self._is_no_query() from error
        if not query_id:
            raise self._is_no_query()
        return query_id

    def _is_no_query(self) -> UsageError:
        return UsageError(
            f"{self.url} is not the checkpointLocation of a streaming query: it has no file "
            "`metadata` with the query's id"
        )

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        """Return a file, or its last *tail* bytes; None if there is no such file."""
        try:
            data = bytes(self._store.get(name))
        except ObjectNotFoundError:
            return None
        return data if tail is None else data[-tail:]

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the files in a folder; none if there is no such folder."""
        names = (info.path.removeprefix(f"{folder}/") for info in self._store.list(folder))
        return [name for name in names if "/" not in name]

    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of the folders in a folder."""
        return self._store.list_folders(folder)

    def numbers(self, folder: str) -> list[int]:
        """Return the numbers of the files in a folder, ascending."""
        return sorted(numbers_in(self, folder))

    def offsets(self, batch_id: int) -> OffsetEntry | None:
        """Return the entry of a micro-batch in the offset log, or None."""
        return read_offsets(self, batch_id)

    def last_written(self) -> dt.datetime | None:
        """Return when Spark last planned or finished a micro-batch; None for never."""
        times = [info.last_modified for info in self._store.list(OFFSETS)]
        times += [info.last_modified for info in self._store.list(COMMITS)]
        return max(times, default=None)

    def has_state_of_spark(self) -> bool:
        """Return whether an operator of Spark has state in this checkpointLocation."""
        names = self._store.list_folders("state")
        return any(name.isdigit() for name in names)

    def files_above(self, folder: str, number: int) -> list[str]:
        """Return the files with higher numbers and their checksums, newest first."""
        files: list[tuple[int, str]] = []
        for name in self.names(folder):
            plain = name.removeprefix(".").removesuffix(".crc") if name.startswith(".") else name
            file_number = number_of(plain)
            if file_number is not None and file_number > number:
                files.append((file_number, f"{folder}/{name}"))
        # "7" before ".7.crc": a checksum without its file is a harmless remainder.
        return [path for _, path in sorted(files, key=lambda file: (-file[0], "/." in file[1]))]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files one after another, durably on local disk."""
        folders = set()
        for path in paths:
            self._store.delete([path])
            folders.add(os.path.dirname(path))
        root = local_path(self.url)
        for folder in folders if root is not None else ():
            place = os.path.join(root or "", folder)
            fsync_path(place if os.path.isdir(place) else root or "")
