"""
Read the rows of side outputs that a checkpoint references.

A processor emitted them next to its output.  They were committed with their micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.checkpoint.attachments import Attachment, of_kinds, read_attachment
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import CorruptionError, UsageError
from statelog.format.arrow_data import read_stream_table
from statelog.format.arrow_limits import rows_of
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.store import ObjectStore

SIDE_OUTPUT: Final = "side_output"
"""The kind of the attachments."""
SIDE_CHECKPOINT: Final = "checkpoint_id"
SIDE_BATCH: Final = "batch_id"
"""The first columns of stored rows: their checkpoint and micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSideOutput:
    """
    A side output that has retained rows.

    Args:
        name: Its name.
        operator: The operator that declares it.
        rows: Number of rows that are kept.
        objects: Number of objects that have them.
        checkpoint_id: The newest checkpoint with rows.
    """

    name: str
    operator: str
    rows: int
    objects: int
    checkpoint_id: int


def kept_side_outputs(
    checkpoint: CompletedCheckpoint, operator: str | None
) -> tuple[KeptSideOutput, ...]:
    """Return the side outputs that have rows in a checkpoint, by name."""
    entries: dict[tuple[str, str], list[Attachment]] = {}
    for entry in of_kinds(BatchRecord.of(checkpoint).attachments, SIDE_OUTPUT):
        if operator is None or entry.operator == operator:
            entries.setdefault((entry.name, entry.operator), []).append(entry)
    return tuple(
        KeptSideOutput(
            name=name,
            operator=operator_id,
            rows=sum(attachment.count for attachment in attachments),
            objects=len(attachments),
            checkpoint_id=max(attachment.newest for attachment in attachments),
        )
        for (name, operator_id), attachments in sorted(entries.items())
    )


def side_output_rows(
    store: ObjectStore,
    checkpoint: CompletedCheckpoint,
    name: str,
    operator: str | None,
    since: int,
) -> pa.Table:
    """Return the rows of a side output that a checkpoint references, oldest first."""
    entries = [
        entry
        for entry in of_kinds(BatchRecord.of(checkpoint).attachments, SIDE_OUTPUT)
        if entry.name == name
        and entry.newest > since
        and (operator is None or entry.operator == operator)
    ]
    tables = list(_tables(store, entries, since))
    try:
        rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    except pa.ArrowException as error:
        raise UsageError(
            f"the side output {name!r} contains rows of different types: {error}. Read only newer rows "
            "with since"
        ) from error
    if not rows.num_rows:
        return rows
    return rows_of(rows, np.argsort(rows.column(SIDE_CHECKPOINT).to_numpy(), kind="stable"))


def _tables(store: ObjectStore, entries: Sequence[Attachment], since: int) -> Iterator[pa.Table]:
    for entry in entries:
        table = read_side_rows(store, entry)
        yield table.filter(pc.greater(table.column(SIDE_CHECKPOINT), since))


def read_side_rows(store: ObjectStore, entry: Attachment) -> pa.Table:
    """Return the rows in an object, each with its checkpoint and micro-batch."""

    def decoded(data: memoryview) -> pa.Table:
        try:
            table = read_stream_table(data)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(store, entry.path, str(error)) from error
        first = [(field.name, field.type) for field in list(table.schema)[:2]]
        if first != [(SIDE_CHECKPOINT, pa.int64()), (SIDE_BATCH, pa.int64())]:
            raise _damaged(store, entry.path, "they do not start with their checkpoint")
        return table

    return read_attachment(store, entry, decoded, f"rows of side output {entry.name}")


def _damaged(store: ObjectStore, path: str, reason: str) -> CorruptionError:
    return CorruptionError(
        f"the side output rows {path} in {store.url} cannot be read: {reason}", path=path
    )
