"""
Detect what Spark's offline repartition leaves in a checkpointLocation of statelog.

Spark writes an entry of the offset log for a micro-batch that repartitions its own state, and rewrites
that state then.  A query on statelog has no such state, so that the rewriting fails, and the entry stays.
Source: Spark's OfflineStateRepartitionRunner, MicroBatchExecution.checkUnfinishedRepartitionBatch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from statelog.checkpoint.offset_log import OFFSETS, newest_batch
from statelog.checkpoint.source_logs import QueryFiles
from statelog.errors import CheckpointError
from statelog.format.bounds import decode_json

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
