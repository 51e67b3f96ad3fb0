"""
The rows of side outputs that a checkpoint names.

A processor emitted them next to its output.  They were committed with their micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.checkpoint.batch_record import (
    SIDE_BATCH,
    SIDE_CHECKPOINT,
    BatchRecord,
    SideOutputEntry,
)
from statelog.checkpoint.state_stream import check_stream
from statelog.errors import CheckpointError, CorruptionError, ObjectNotFoundError, UsageError
from statelog.format.arrow_data import read_stream_table
from statelog.format.arrow_limits import rows_of
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.store import ObjectStore, read_verified


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSideOutput:
    """
    A side output with rows that are kept.

    Args:
        name: Its name.
        operator: The operator that declares it.
        rows: Number of rows that are kept.
        objects: Number of objects that have them.
        checkpoint: The newest checkpoint with rows.
    """

    name: str
    operator: str
    rows: int
    objects: int
    checkpoint: int


def kept_side_outputs(
    checkpoint: CompletedCheckpoint, operator: str | None
) -> tuple[KeptSideOutput, ...]:
    """Return the side outputs with rows in a checkpoint, of one operator or of all, by name."""
    entries: dict[tuple[str, str], list[SideOutputEntry]] = {}
    for entry in BatchRecord.of(checkpoint).side_outputs:
        if operator is None or entry.operator_id == operator:
            entries.setdefault((entry.name, entry.operator_id), []).append(entry)
    return tuple(
        KeptSideOutput(
            name=name,
            operator=operator_id,
            rows=sum(each.rows for each in some),
            objects=len(some),
            checkpoint=max(each.checkpoint for each in some),
        )
        for (name, operator_id), some in sorted(entries.items())
    )


def side_output_rows(
    store: ObjectStore,
    checkpoint: CompletedCheckpoint,
    name: str,
    operator: str | None,
    since: int,
) -> pa.Table:
    """
    Return the rows of a side output that a checkpoint names, in the order of their checkpoints.

    Args:
        store: Where the location is.
        checkpoint: The checkpoint.
        name: The side output.
        operator: Name of the operator; None for all.
        since: Only of later checkpoints than this.

    Raises:
        UsageError: A column has types that cannot be one, because the side output was changed.
        CorruptionError: An object is damaged.
        CheckpointError: The query deleted the rows meanwhile (`reason` "subsumed").

    Blocks: On the store; reads every object with rows.
    """
    entries = [
        entry
        for entry in BatchRecord.of(checkpoint).side_outputs
        if entry.name == name
        and entry.checkpoint > since
        and (operator is None or entry.operator_id == operator)
    ]
    tables = list(_tables(store, entries, since))
    try:
        rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    except pa.ArrowException as error:
        raise UsageError(
            f"the side output {name!r} has rows of different types: {error}. Read the newer ones only, "
            "by since_checkpoint"
        ) from error
    if not rows.num_rows:
        return rows
    return rows_of(rows, np.argsort(rows.column(SIDE_CHECKPOINT).to_numpy(), kind="stable"))


def _tables(
    store: ObjectStore, entries: Sequence[SideOutputEntry], since: int
) -> Iterator[pa.Table]:
    for entry in entries:
        table = read_side_rows(store, entry)
        yield table.filter(pc.greater(table.column(SIDE_CHECKPOINT), since))


def read_side_rows(store: ObjectStore, entry: SideOutputEntry) -> pa.Table:
    """
    Return the rows in an object, with their checkpoint and micro-batch.

    Raises:
        CorruptionError: It is damaged.
        CheckpointError: It no longer exists (`reason` "subsumed").

    Blocks: On the store.
    """
    path = entry.path

    def decoded(data: memoryview) -> pa.Table:
        check_stream(entry.handle, data, f"rows of a side output {path} in {store.url}")
        try:
            table = read_stream_table(data)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(store, path, str(error)) from error
        first = [(field.name, field.type) for field in list(table.schema)[:2]]
        if first != [(SIDE_CHECKPOINT, pa.int64()), (SIDE_BATCH, pa.int64())]:
            raise _damaged(store, path, "they do not begin with their checkpoint")
        return table

    try:
        return read_verified(store, path, decoded)
    except ObjectNotFoundError as error:
        raise CheckpointError(
            f"the rows of side output {entry.name} up to checkpoint {entry.checkpoint} no longer exist in "
            f"{store.url}: {path}. A query deletes them by their age: read a newer checkpoint",
            reason="subsumed",
        ) from error


def _damaged(store: ObjectStore, path: str, reason: str) -> CorruptionError:
    return CorruptionError(
        f"the rows of a side output {path} in {store.url} cannot be read: {reason}", path=path
    )
