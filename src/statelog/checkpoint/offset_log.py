"""
Read a query's id and its offset log, from the files of the checkpointLocation.

Spark writes `metadata` before the first micro-batch of a query, and `offsets/<batch>` before each.
On local disk Hadoop writes a file of checksums next to each of them.
Source: Spark's StreamMetadata, OffsetSeqLog; Hadoop's ChecksumFileSystem.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import msgspec

from statelog.checkpoint.source_logs import COMPACT, QueryFiles
from statelog.core.source_position import OffsetEntry, parse_offsets
from statelog.errors import CheckpointError, CorruptionError
from statelog.format.bounds import decode_json

OFFSETS: Final = "offsets"
METADATA: Final = "metadata"
_CHECKSUMS: Final = struct.Struct(">4sI")
_MAGIC: Final = b"crc\0"


class _Metadata(msgspec.Struct):
    id: str


_metadata_decoder: Final = msgspec.json.Decoder(_Metadata)


def recorded_query_id(files: QueryFiles) -> str:
    """
    Return Spark's id of the query in a checkpointLocation; "" if no query ran there.

    Raises:
        CheckpointError: The file with the id is damaged (`reason` "damaged").

    Blocks: On the file.
    """
    data = files.read(METADATA)
    if data is None:
        return ""
    try:
        return decode_json(data, _metadata_decoder).id
    except msgspec.DecodeError as error:
        raise CheckpointError(
            f"{files.url}/{METADATA} has no id of a query: {error}. A power failure may have "
            "truncated the file. Nothing was changed: bring the file back from a backup, or go on "
            "from the state with a new checkpointLocation and adopt=True",
            reason="damaged",
        ) from error


def read_offsets(files: QueryFiles, batch_id: int) -> OffsetEntry | None:
    """
    Return the entry of a micro-batch in the offset log, or None.

    Raises:
        CorruptionError: The file is empty or cut short.
        IncompatibleFormatError: Its version is unknown.

    Blocks: On the file.
    """
    name = f"{OFFSETS}/{batch_id}"
    data = files.read(name)
    return None if data is None else parse_offsets(data, name)


def newest_batch(files: QueryFiles) -> int | None:
    """
    Return the newest micro-batch that Spark has planned, or None.

    Blocks: On the names of the files.
    """
    return max(numbers_in(files, OFFSETS), default=None)


def newest_offsets(files: QueryFiles) -> OffsetEntry | None:
    """
    Return the newest entry of the offset log, or None.

    Raises:
        CheckpointError: It is damaged (`reason` "damaged").
        IncompatibleFormatError: Its version is unknown.

    Blocks: On the files.
    """
    newest = newest_batch(files)
    if newest is None:
        return None
    try:
        _check_sums(files, newest)
        return read_offsets(files, newest)
    except CorruptionError as error:
        raise CheckpointError(
            f"the offset log of {files.url} is damaged: {error}. Nothing was changed: `statelog rewind "
            f"{files.url}` (with --state-location, where the state is elsewhere) lists the batches to "
            "go back to; going back removes the file",
            reason="damaged",
        ) from error


def numbers_in(files: QueryFiles, folder: str) -> set[int]:
    """Return the numbers of the files of a log."""
    numbers = (number_of(name) for name in files.names(folder))
    return {number for number in numbers if number is not None}


def number_of(name: str) -> int | None:
    """Return the number in the name of a file of a log, or None."""
    stem = name.removesuffix(COMPACT)
    return int(stem) if stem.isdigit() and stem.isascii() else None


def _check_sums(files: QueryFiles, batch_id: int) -> None:
    """
    Compare an entry with its checksums, as Hadoop does on local disk.

    Raises:
        CorruptionError: They differ.
    """
    name = f"{OFFSETS}/{batch_id}"
    sums = files.read(f"{OFFSETS}/.{batch_id}.crc")
    if sums is None or len(sums) < _CHECKSUMS.size:
        return
    magic, chunk = _CHECKSUMS.unpack_from(sums)
    if magic != _MAGIC or not chunk:
        return
    data = files.read(name) or b""
    hashed = b"".join(
        zlib.crc32(data[at : at + chunk]).to_bytes(4, "big") for at in range(0, len(data), chunk)
    )
    if hashed != sums[_CHECKSUMS.size :]:
        raise CorruptionError(f"{name} differs from its checksums", path=name)


# Detect what Spark's offline repartition leaves in a checkpointLocation of statelog.

_COMMITS: Final = "commits"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"


class _Times(msgspec.Struct):
    conf: dict[str, str] = {}


_times_decoder: Final = msgspec.json.Decoder(_Times)


def refuse_unfinished_repartition(files: QueryFiles) -> None:
    """
    Reject a checkpointLocation with the entry of a repartition that did not finish.

    Spark fixes the number of partitions when a query begins, so that only a repartition changes it.

    Raises:
        CheckpointError: There is one (`reason` "incompatible"); the message has the files to delete.

    Blocks: On the files.
    """
    newest = newest_batch(files)
    if not newest or files.read(f"{_COMMITS}/{newest}") is not None:
        return
    before, after = _partitions(files, newest - 1), _partitions(files, newest)
    if before is None or after is None or before == after:
        return
    raise CheckpointError(
        f"batch {newest} in {files.url} is a repartition of Spark's own state from {before} to {after} "
        "partitions. Spark does not start a query after it, and cannot finish it, because the state "
        f"is in statelog. Delete the files {OFFSETS}/{newest} and {OFFSETS}/.{newest}.crc there, and "
        "start the query again: it continues after its last micro-batch. The number of tasks is free "
        "at every start (tasks, maxTasks)",
        reason="incompatible",
    )


def _partitions(files: QueryFiles, batch_id: int) -> str | None:
    """Return the number of shuffle partitions that a micro-batch was planned with, if known."""
    lines = (files.read(f"{OFFSETS}/{batch_id}") or b"").split(b"\n")
    try:
        return decode_json(lines[1], _times_decoder).conf.get(_PARTITIONS)
    except (IndexError, msgspec.MsgspecError):
        return None  # the offset log is checked elsewhere
