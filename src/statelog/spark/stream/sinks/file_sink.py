"""
The sink for files: Spark's own streaming file sink, which stores its log with the data.

A micro-batch that is delivered again is skipped, and what a killed task left is in no entry of the
log, so that Spark's readers ignore it.

The sink appends one entry to `<folder>/_spark_metadata` for each micro-batch, and Spark's readers
read the files of the entries only.  Spark numbers an entry as its micro-batch.  That loses rows
where a new query writes to the folder (its first batches have entries already), and makes the
folder unreadable where a micro-batch had no output (the entries have gaps).  So here an entry has
the next free number, and `<folder>/_statelog/<entry>`, which is written before the entry, names its
micro-batch and query.  The record of the newest entry of each query is kept, so that a query that
is restarted after others have written still finds what it wrote.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.checkpoint.query_files import numbers_in
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, FencedError, UsageError
from statelog.runtime.fail_points import fail_point
from statelog.spark.jvm.files import HadoopFolder, checkpoint_files
from statelog.spark.jvm.sinks import FileStreamSink
from statelog.spark.query.delivery import delivered_batch, query_name
from statelog.spark.rows.types import sql_name
from statelog.spark.stream.sinks.simple import OptionValue

_log = logging.getLogger("statelog.spark")

LOG: Final = "_spark_metadata"
RECORDS: Final = "_statelog"
_NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """
    Where and how to write files.

    Args:
        path, source, options: The folder, the format and its options.
        schema, partition_by: Columns of the output, and of the folders inside.
        columns: Columns of the files in their order; empty for the columns of the output.
        refresh: Called after each micro-batch, so that the session's readers see it.
    """

    path: str
    source: str
    schema: StructType
    partition_by: Sequence[str] = ()
    options: Mapping[str, OptionValue]
    columns: Sequence[str] = ()
    refresh: Callable[[], object] | None = None


class FileSink:
    """Writes each micro-batch exactly once."""

    def __init__(self, session: SparkSession, place: FilePlace, entries: FileEntries) -> None:
        self._place = place
        self._entries = entries
        options = {key: _text(value) for key, value in place.options.items()}
        options = {key: text for key, text in options.items() if key.lower() != "path"}
        self._sink = FileStreamSink(
            session,
            place.source,
            place.schema,
            place.partition_by,
            {**options, "path": place.path},
        )

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, unless the folder already contains it; see `FileEntries.begin`."""
        batch = delivered_batch(frame, batch_id)
        entry = self._entries.begin(Delivered(query_name(frame), batch))
        if entry is None:
            return
        fail_point("before-files")
        if self._place.columns:
            frame = frame.select(*map(sql_name, self._place.columns))
        self._sink.add(entry, frame)
        fail_point("after-files")
        self._entries.end(entry)
        if self._place.refresh is not None:
            self._place.refresh()


def _text(value: OptionValue) -> str:
    """Convert an option to text, as PySpark does for the JVM."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The micro-batch that an entry contains, and the name of its query."""

    writer: str
    batch: DeliveredBatch


class FileEntries:
    """
    The entries in one folder, on any Hadoop file system.

    *planned* is the newest micro-batch that Spark had planned when the query was started, if any.
    """

    def __init__(self, session: SparkSession, path: str, planned: int | None = None) -> None:
        self._path = path
        self._planned = _NONE if planned is None else planned
        self._folder = HadoopFolder(session, path)
        self._written = checkpoint_files(session, path)
        self._last: int | None = None
        """The newest entry, as this run left it."""
        self._recorded: Sequence[int] = ()
        """The entries of this query that have a record, since the first micro-batch of the run."""

    def has_log(self) -> bool:
        """Return whether Spark's streaming file sink has ever written to the folder."""
        return any(map(self._folder.exists, (LOG, RECORDS)))

    def check(self, query_id: str) -> None:
        """Check that a query's rows can be appended to the folder."""
        if not self.has_log():
            self._check_has_no_files()
            return
        newest = self._newest()
        if newest == _NONE:
            return
        records = self._records(newest)
        entries = _entries_of(query_id, records)
        if entries:
            last = records[entries[-1]].batch
            if last.batch_id > self._planned:
                raise self._going_back(last, self._planned + 1)
        elif newest in records or newest > self._planned:
            # Else a query of Spark's own operator wrote it, and goes on with a copy of its checkpoint.
            _log.warning(
                "%s contains rows of a different query; this query appends its rows to them",
                self._path,
            )

    def begin(self, delivered: Delivered) -> int | None:
        """Return the entry number for a micro-batch, or None if the folder already contains it."""
        newest = self._newest()
        if self._last is None:
            records = self._records(newest)
            self._recorded = _entries_of(delivered.writer, records)
            if self._is_written(delivered, newest, records):
                _log.info(
                    "batch %d is already in %s and is not written again",
                    delivered.batch.batch_id,
                    self._path,
                )
                self._last = newest
                self._forget(
                    self._recorded[:-1]
                )  # the run that wrote it may have been killed before
                return None
        elif newest != self._last:
            raise FencedError(
                f"a different query writes to {self._path}: its newest entry is {newest}, but this query "
                f"last wrote {self._last}. Stop one of the two, or give each query a separate folder"
            )
        self._announce(newest + 1, delivered)
        return newest + 1

    def end(self, entry: int) -> None:
        """Delete the records of micro-batches before an entry, which cannot be repeated."""
        self._last = entry
        self._forget(self._recorded)
        self._recorded = (entry,)

    def _forget(self, entries: Sequence[int]) -> None:
        for entry in entries:
            self._folder.delete(f"{RECORDS}/{entry}")

    def _is_written(
        self, delivered: Delivered, newest: int, records: Mapping[int, Delivered]
    ) -> bool:
        batch = delivered.batch
        if not self._recorded:
            # Perhaps Spark's own operator wrote the entry, and this query continues from its checkpoint.
            is_ours = newest not in records and batch.batch_id <= self._planned
            return is_ours and newest == batch.batch_id != _NONE
        last = records[self._recorded[-1]].batch
        try:
            is_written = batch.is_written(last, target=self._path)
        except CheckpointError as error:
            raise self._going_back(last, batch.batch_id) from error
        if not is_written and last.batch_id >= batch.batch_id:
            raise self._going_back(last, batch.batch_id)
        return is_written

    def _announce(self, entry: int, delivered: Delivered) -> None:
        """Record which micro-batch an entry is going to contain."""
        announced = self._record(entry)
        if announced is not None and not _is_of_this_run(announced, delivered):
            raise FencedError(
                f"the query {announced.writer} has announced batch {announced.batch.batch_id} "
                f"({announced.batch.to_text()}) as entry {entry} of {self._path} but has not written it: "
                "it is running, or it failed in between. Stop it, or give this query a separate folder. If that "
                f"driver is not running, delete {self._record_path(entry)}, "
                f"and on local disk also .{entry}.crc next to it"
            )
        record = {"writer": delivered.writer, "batch": delivered.batch.to_text()}
        self._folder.put(RECORDS, str(entry), json.dumps(record), overwrite=announced is not None)

    def _newest(self) -> int:
        """Return the number of the newest entry, or -1 without entries."""
        return max(numbers_in(self._written, LOG), default=_NONE)

    def _records(self, newest: int) -> dict[int, Delivered]:
        """Return the records of the entries that have been written."""
        entries = (entry for entry in numbers_in(self._written, RECORDS) if entry <= newest)
        records = {entry: self._record(entry) for entry in entries}
        return {entry: record for entry, record in records.items() if record is not None}

    def _record(self, entry: int) -> Delivered | None:
        data = self._written.read(f"{RECORDS}/{entry}")
        if data is None:
            return None
        where = self._record_path(entry)
        try:
            record = json.loads(data)
            batch = DeliveredBatch.from_text(str(record["batch"]), where=where)
            return Delivered(str(record["writer"]), batch)
        except (ValueError, KeyError, TypeError, UsageError) as error:
            raise UsageError(
                f"{where} is damaged: it does not identify a micro-batch ({error}). The query "
                f"cannot tell which rows {self._path} contains; write to a different folder"
            ) from error

    def _check_has_no_files(self) -> None:
        names = self._folder.names()
        visible = sorted(name for name in names if not name.startswith(("_", ".")))
        if visible:
            raise UsageError(
                f"{self._path} contains files that no streaming query of Spark wrote ({visible[0]}, ...). "
                f"The log of exactly-once output, {LOG}, would hide them from Spark's readers. Write "
                "to a new folder, and read both; or append at least once, as before, with "
                ".option('statelog.fileSink', 'append')"
            )

    def _going_back(self, last: DeliveredBatch, batch_id: int) -> CheckpointError:
        return CheckpointError(
            f"{self._path} contains the rows of batch {last.batch_id} of this query, which now continues "
            f"with batch {batch_id}: the query went back to an earlier batch, or its "
            "checkpointLocation was restored from a backup. Files cannot be removed from "
            f"{LOG}. Write to a new folder, and read the rows up to batch {batch_id - 1} from the old "
            "one",
            reason="gap",
            batch_id=batch_id,
        )

    def _record_path(self, entry: int) -> str:
        return f"{self._path}/{RECORDS}/{entry}"


def _entries_of(writer: str, records: Mapping[int, Delivered]) -> list[int]:
    """Return the entries of a query, oldest first."""
    return sorted(entry for entry, record in records.items() if record.writer == writer)


def _is_of_this_run(announced: Delivered, delivered: Delivered) -> bool:
    """Return whether an entry was announced by a driver of the same query and timeline."""
    first, second = (
        (record.writer, record.batch.location_id, record.batch.recorded.timeline)
        for record in (announced, delivered)
    )
    return first == second
