"""The output rows that a micro-batch staged, and how those of two runs differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Final

import pyarrow as pa

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import StoredCheckpoint
from statelog.checkpoint.state_stream import read_stream
from statelog.errors import CorruptionError
from statelog.format.arrow_data import python_rows
from statelog.format.checkpoint_metadata import decode_streams
from statelog.spark.driver.delivery.staged import OUTPUT_SECTION
from statelog.spark.query.delivery import Delivery
from statelog.spark.rows.types import from_ipc
from statelog.store import ObjectStore

ONLY_BEFORE: Final = "removed"
ONLY_AFTER: Final = "added"


def staged_rows(store: ObjectStore, stored: StoredCheckpoint) -> pa.Table | None:
    """
    Return the rows that the micro-batch of a checkpoint delivered; None if they were not staged.

    Raises:
        CorruptionError: An object is damaged.
        StoreError: The store failed.

    Blocks: On the store.
    """
    record = BatchRecord.of(stored.checkpoint)
    if record.delivery != Delivery.STAGED.value:
        return None
    section = stored.sections.get(OUTPUT_SECTION)
    where = f"checkpoint {stored.checkpoint.checkpoint_id}"
    streams: list[bytes | memoryview] = [*decode_streams(section, where=where)]
    streams += [read_stream(store, one, what="staged rows") for one in record.staged_files()]
    tables = [from_ipc(stream) for stream in streams]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def row_differences(batch_id: int, before: pa.Table, after: pa.Table) -> pa.Table:
    """
    Return the rows that only one of two tables has; a row that is there twice counts twice.

    Returns:
        The columns `batch_id`, `change` ("removed": only in *before*, "added": only in *after*), and
        those of the tables.
    """
    counts = [Counter(map(_frozen, _rows(table))) for table in (before, after)]
    parts = []
    for change, table, own, other in (
        (ONLY_BEFORE, before, counts[0], counts[1]),
        (ONLY_AFTER, after, counts[1], counts[0]),
    ):
        left = own - other
        rows = []
        for at, row in enumerate(_rows(table)):
            key = _frozen(row)
            if left[key] > 0:
                left[key] -= 1
                rows.append(at)
        taken = table.take(pa.array(rows, pa.int64()))
        leading = [pa.array([batch_id] * len(rows), pa.int64()), pa.array([change] * len(rows))]
        if rows:
            parts.append(
                pa.Table.from_arrays(
                    [*leading, *taken.columns], names=["batch_id", "change", *taken.column_names]
                )
            )
    return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    try:
        return python_rows(table)
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"staged rows cannot be read: {error}") from error


def _frozen(value: Any) -> Hashable:
    """Return a hashable form that is equal for equal rows; NaN equals itself."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return tuple((name, _frozen(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return value if isinstance(value, Hashable) else repr(value)
