"""
Prepare a checkpointLocation in which a query of Spark begins where one of statelog ended.

Spark gives initial state to the first micro-batch of a query only, the one with number 0.  So the new
checkpointLocation has one planned micro-batch without rows: its offsets are those after which the
state was committed.  The log of each file source has two entries: an empty one, and one with the files
that were read, which says that they are from the first.  So Spark has seen these files, but finds none
to read in either entry.
Source: Spark's MicroBatchExecution, OffsetSeqLog, FileStreamSourceLog.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import CheckpointName, given_checkpoint_id
from statelog.checkpoint.query_files import (
    COMMITS,
    OFFSETS,
    QueryFiles,
    read_offsets,
    recorded_query_id,
)
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.stored_query import files_upto
from statelog.core.source_position import OffsetEntry, log_entry, position_of
from statelog.errors import CheckpointError, IncompatibleFormatError, UsageError
from statelog.format.buffers import decode_json
from statelog.spark.jvm.files import checkpoint_files, write_file
from statelog.spark.query.session import refuse_connect

Offsets = tuple[str | None, ...]

_NO_OFFSET: Final = "-"
_BEGIN: Final = '{"logOffset":1}'
"""The offset of a file source in the planned micro-batch: the entry of `_seen_files`."""
_COMPACT_INTERVAL: Final = "spark.sql.streaming.fileSource.log.compactInterval"
_LEAST_INTERVAL: Final = 3
"""With a lower one an entry of the new log would have to be a compact one."""


class _Commit(msgspec.Struct, rename="camel"):
    """An entry of Spark's commit log."""

    next_batch_watermark_ms: int = 0


class _Planned(msgspec.Struct):
    """The settings in an entry of Spark's offset log."""

    conf: dict[str, str] = {}


_commit: Final = msgspec.json.Decoder(_Commit)
_planned: Final = msgspec.json.Decoder(_Planned)
_LEFT_OUT: Final = ("spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.providerClass")
"""Settings that the new query takes from its own session; the old session's mean nothing."""


def spark_checkpoint(
    spark: SparkSession,
    checkpoint_location: str,
    location: str | os.PathLike[str],
    new_checkpoint_location: str,
    *,
    checkpoint: CheckpointName | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Offsets:
    """
    Write a checkpointLocation in which Spark's query begins after a checkpoint of statelog.

    Its first micro-batch is planned, and has no rows: it imports the initial state.  It has the
    watermark of the old query, and the time of its last micro-batch.

    Example:
        offsets = spark_checkpoint(
            spark, "s3://bucket/queries/totals", "s3://bucket/jobs/totals", "s3://bucket/queries/new"
        )

    Args:
        spark: The session, with the settings of the new query.
        checkpoint_location: That of the query on statelog, which must have been stopped.
        location: Its state location.
        new_checkpoint_location: The checkpointLocation of the new query; it is empty or does not exist.
        checkpoint: The checkpoint, as for `to_spark`; default: the newest one.
        storage_options: Options of the store's client, as given to the query.

    Returns:
        JSON of the offset of each source, None for one that has not been read.  A file source needs
        nothing else; another source must be told to begin there, such as with Kafka's
        `startingOffsets`.

    Raises:
        UsageError: *new_checkpoint_location* is not empty, or the state is of another query.
        CheckpointError: There is no such checkpoint (`reason` "not_found"), or it is damaged; its
            offsets are no longer stored ("not_found") or do not match the state ("gap"), or its
            output may not have been delivered ("undelivered").
        IncompatibleFormatError: The offset log has named sources, or is from a newer Spark.
    """
    refuse_connect("statelog.spark.spark_checkpoint", spark)
    if checkpoint_files(spark, new_checkpoint_location).names(""):
        raise UsageError(f"{new_checkpoint_location} is not empty: pass a new checkpointLocation")
    if int(spark.conf.get(_COMPACT_INTERVAL, "10") or 10) < _LEAST_INTERVAL:
        raise UsageError(f"{_COMPACT_INTERVAL} is less than {_LEAST_INTERVAL}; set a higher number")
    store = open_state(location, options=storage_options)
    record = BatchRecord.of(find_checkpoint(store, given_checkpoint_id(store, checkpoint)))
    old = checkpoint_files(spark, checkpoint_location)
    offsets, written = new_files(old, record, lambda name, value: spark.conf.get(name, value))
    for name, data in written.items():
        write_file(spark, new_checkpoint_location, name, data)
    return offsets


def new_files(
    old: QueryFiles, record: BatchRecord, setting: Callable[[str, str], str | None]
) -> tuple[Offsets, dict[str, bytes]]:
    """Return the offsets of a checkpoint, and the files of the new checkpointLocation."""
    query_id = recorded_query_id(old)
    if query_id != record.query_id:
        raise UsageError(
            f"{old.url} is the checkpointLocation of query {query_id or '(none)'}, the state is that of "
            f"query {record.query_id}: pass the checkpointLocation and the stateLocation of one query"
        )
    batch = f"micro-batch {record.batch_id} of {old.url}"
    entry = read_offsets(old, record.batch_id)
    if entry is None:
        raise CheckpointError(
            f"the offsets of {batch} are no longer stored; use a later checkpoint",
            reason="not_found",
        )
    offsets = _offsets_of_user(entry, record, batch)
    commit = old.read(f"{COMMITS}/{record.batch_id}")
    if commit is None:
        raise CheckpointError(
            f"{batch} has no entry in {COMMITS}, so its output may not have reached the sink: start "
            "the query on statelog once more, which delivers it, and stop it; or use an earlier checkpoint",
            reason="undelivered",
        )
    # The log comes last: without it Spark would take the folder for a new query's.
    files = {"metadata": msgspec.json.encode({"id": str(uuid.uuid4())})}
    folders = record.source_folders or [str(at) for at in range(len(offsets))]
    kept: list[str | None] = []
    for folder, offset in zip(folders, offsets, strict=True):
        upto = log_entry(offset)
        if offset is None or upto is None:
            kept.append(offset)
            continue
        files[f"sources/{folder}/0"] = b"v1"
        files[f"sources/{folder}/1"] = _seen_files(old, folder, upto)
        kept.append(_BEGIN)
    times = _times(old, record, entry, commit, setting)
    lines = [b"v1", msgspec.json.encode(times), *((each or _NO_OFFSET).encode() for each in kept)]
    files[f"{OFFSETS}/0"] = b"\n".join(lines)
    return offsets, files


def _offsets_of_user(entry: OffsetEntry, record: BatchRecord, batch: str) -> Offsets:
    """Return the offsets of the user's sources; the last source may be statelog's own."""
    offsets = entry.offsets
    if offsets is None:
        raise IncompatibleFormatError(
            f"{batch} has its offsets by the names of the sources (version v2); spark_checkpoint needs "
            "them in their order (version v1)"
        )
    if record.source_folders:
        offsets = offsets[: len(record.source_folders)]
    elif record.position not in (None, position_of(offsets)):
        offsets = offsets[:-1]
    if record.position not in (None, position_of(offsets)):
        raise CheckpointError(
            f"{batch} was planned again: its offsets do not match the state. Use another checkpoint",
            reason="gap",
        )
    return offsets


def _seen_files(old: QueryFiles, folder: str, upto: int) -> bytes:
    """Return the second entry of a source's log, with all files that were read."""
    files = files_upto(old, folder, upto)
    seen = (msgspec.structs.replace(file, batch_id=0) for file in files)
    return b"\n".join([b"v1", *(msgspec.json.encode(file) for file in seen)])


def _times(
    old: QueryFiles,
    record: BatchRecord,
    entry: OffsetEntry,
    commit: bytes,
    setting: Callable[[str, str], str | None],
) -> dict[str, object]:
    """Return times and settings of the planned micro-batch, as in Spark's offset log."""
    lines = commit.split(b"\n")
    log = (old.read(f"{OFFSETS}/{record.batch_id}") or b"").split(b"\n")
    try:
        next_watermark = decode_json(lines[1], _commit).next_batch_watermark_ms if lines[1:] else 0
        settings = decode_json(log[1], _planned).conf
    except (IndexError, msgspec.DecodeError) as error:
        raise CheckpointError(
            f"{COMMITS}/{record.batch_id} or {OFFSETS}/{record.batch_id} of {old.url} is damaged: {error}. "
            "Use an earlier checkpoint",
            reason="damaged",
        ) from error
    return {
        "batchWatermarkMs": max(entry.watermark_ms, record.watermark_ms, next_watermark, 0),
        "batchTimestampMs": entry.timestamp_ms,
        "conf": {
            name: setting(name, value) for name, value in settings.items() if name not in _LEFT_OUT
        },
    }
