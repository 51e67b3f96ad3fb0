"""Choose which checkpoint, variable and columns a read has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from statelog.errors import InvalidOptionsError, UsageError
from statelog.runtime.clock import wall_clock_seconds
from statelog.spark.rows.types import arrow_schema
from statelog.spark.source.columns import nested_schema
from statelog.spark.source.options import CHECKPOINTS_VIEW, SourceOptions
from statelog.spark.source.readers import (
    CHECKPOINT_COLUMNS,
    CheckpointRows,
    FilteredStateRows,
    StateRead,
    StateRows,
)
from statelog.state.kinds import StateKind
from statelog.state.reader import StateReader
from statelog.store import open_existing_store
from statelog.store.location import is_known, normalize_url

_PARTITION_BYTES: Final = 32 * 1024 * 1024


class StateSource:
    """
    One read of a state location.

    The newest checkpoint and the time by which values have expired are taken here, once, so that
    all tasks read the same.

    Args:
        options: Spark's options.

    Raises:
        InvalidOptionsError: An option is unknown, missing or has the wrong form.
        UsageError: There is no such location, operator, variable or key group, or one must be named.
        CheckpointError: The location has no such checkpoint, or it is damaged.
        StoreError: The store failed.

    Blocks: On the store.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = SourceOptions.parse(options)
        # A relative path has its meaning here, in the folder of the driver.
        path = self._options.path
        self._location = normalize_url(path) if is_known(path) else path
        self._read: StateRead | None = None
        if self._options.view == CHECKPOINTS_VIEW:
            open_existing_store(self._location, options=self._options.store)
            self._columns = CHECKPOINT_COLUMNS
        else:
            self._read, self._columns = _state(self._options, self._location)

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        return nested_schema(self._columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """
        Return what reads the rows.

        Args:
            schema: The columns as Spark has them.

        Raises:
            UsageError: They are not those of `schema`.
        """
        own = self.schema()
        if schema.simpleString() != own.simpleString():
            raise UsageError(
                f"the rows have the columns {own.simpleString()}, not {schema.simpleString()}: "
                "leave the schema out"
            )
        target = arrow_schema(schema)
        if self._read is None:
            return CheckpointRows(self._location, self._options.store, target)
        kind = FilteredStateRows if self._options.filterPushdown else StateRows
        return kind(self._read, target)


def _state(options: SourceOptions, location: str) -> tuple[StateRead, pa.Schema]:
    """Return what is read of state, and its columns."""
    reader = StateReader.open(
        location,
        options.checkpointId,
        store_options=options.store,
        operator=options.operatorId,
    )
    with reader:
        variable = options.stateVarName or _only_variable(reader)
        columns = reader.arrow_schema(variable)
        key_groups = options.keyGroups or reader.key_groups
        if key_groups.intersection(reader.key_groups) != key_groups:
            raise InvalidOptionsError(
                f"keyGroups {key_groups} is not inside {reader.key_groups}, the key groups of "
                f"operator {reader.schema.operator_id}"
            )
        stored = sum(one.handle.size_bytes for one in reader.checkpoint.materialized)
        stored += sum(one.size_bytes for one in reader.checkpoint.log)
        parts = options.partitions or 1 + max(stored, 0) // _PARTITION_BYTES
        read = StateRead(
            location=location,
            store=options.store,
            checkpoint_id=reader.checkpoint_id,
            operator=reader.schema.operator_id,
            variable=variable,
            key=reader.schema.key_schema,
            operator_key_groups=reader.key_groups,
            ranges=key_groups.split(parts),
            now_ms=int(wall_clock_seconds() * 1000),
        )
    return read, columns


def _only_variable(reader: StateReader) -> str:
    """Return the variable of an operator that has only one; timers do not count beside it."""
    found = reader.variables()
    declared = [one.name for one in found if one.kind is not StateKind.TIMER]
    names = declared or [one.name for one in found]
    if len(names) != 1:
        known = ", ".join(one.name for one in found) or "none"
        raise InvalidOptionsError(
            f"operator {reader.schema.operator_id} has the state variables {known}; name one by "
            "the option stateVarName"
        )
    return names[0]
