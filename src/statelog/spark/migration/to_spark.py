"""
Write the state of a state location as a frame that Spark reads.

Tasks read it, each some key groups, through `statelog.state.reader`; the driver reads only the
checkpoint's record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from statelog.checkpoint.at_time import CheckpointName
from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.renamed import renamed
from statelog.runtime.clock import wall_clock_seconds
from statelog.spark.jvm.files import checkpoint_files
from statelog.spark.migration.key_rows import KeyRows
from statelog.spark.query.session import refuse_connect, use_this_python
from statelog.spark.rows.spark_versions import known_arguments
from statelog.state.reader import StateReader


@renamed(storeOptions="storageOptions", checkpointId="checkpoint")
def to_spark(
    spark: SparkSession,
    stateLocation: str | os.PathLike[str],
    path: str,
    *,
    checkpoint: CheckpointName | None = None,
    variables: Sequence[str] | None = None,
    storageOptions: Mapping[str, object] | None = None,
    operatorId: str | None = None,
) -> DataFrame:
    """
    Write the state of a query on statelog as Parquet, one row for each key.

    The state is read by tasks, as it is after one checkpoint; nothing in the state location changes.
    The query may run, but what it does after the checkpoint is not in the frame.

    Example:
        state = to_spark(spark, "s3://bucket/jobs/totals", "s3://bucket/exported")

    Args:
        spark: The session.
        stateLocation: The state location, as given to the query.
        path: The folder to write; it is empty or does not exist.
        checkpoint: The checkpoint to read: an id, "latest", a tag or a time; default: the newest one.
        variables: The state variables to write; default: all.  Timers are always written.
        storageOptions: Options of the store's client, as given to the query.
        operatorId: Name of the operator, where the query has several.

    Returns:
        What was written: the key's columns, `statelog_state` (a struct with a field for each
        variable: a struct, an array of structs, or an array of (key, value) entries; null if the key
        has none), `statelog_timers` (an array, null if there are none), `statelog_expiry` (when
        values expire, where a variable has a time to live) and `statelog_checkpoint`.  Timestamps in
        state are in UTC.  Expired values are left out.

    Raises:
        CheckpointError: The location has no such checkpoint (`reason` "not_found"), or it is damaged.
        UsageError: There is no such directory, a variable or operator does not exist, or *path* is not
            empty.
        IncompatibleFormatError: A newer statelog wrote the checkpoint.
        StoreError: The store failed.
    """
    refuse_connect("statelog.spark.to_spark", spark)
    use_this_python(spark)
    if checkpoint_files(spark, path).names(""):
        raise UsageError(f"{path} is not empty: to_spark writes a new folder; pass another path")
    options = dict(storageOptions or {})
    reader = StateReader.open(
        stateLocation, checkpoint, storage_options=options, operator=operatorId
    )
    with reader:
        read = _Read(
            os.fspath(stateLocation),
            options,
            reader.schema.operator_id,
            reader.checkpoint_id,
            None if variables is None else tuple(variables),
            reader.key_groups.split(spark.sparkContext.defaultParallelism),
            int(wall_clock_seconds() * 1000),
        )
        columns = KeyRows(reader.schema, reader.checkpoint_id, read.variables).schema()
    # The Arrow types have the session's names for a timestamp without a zone only if asked to.
    schema = known_arguments(from_arrow_schema, prefer_timestamp_ntz=True)(columns)
    parts = spark.range(0, len(read.ranges), 1, len(read.ranges))
    parts.mapInArrow(read, schema).write.mode("append").parquet(path)
    return spark.read.parquet(path)


@dataclass(frozen=True, slots=True)
class _Read:
    """
    Reads parts of a checkpoint, in tasks.

    Args:
        location, storage_options, operator, checkpoint_id, variables: What to read.
        ranges: The key groups of each part.
        now_ms: What expired by then is left out, in all parts.
    """

    location: str
    storage_options: dict[str, object]
    operator: str
    checkpoint_id: int
    variables: tuple[str, ...] | None
    ranges: tuple[KeyGroupRange, ...]
    now_ms: int

    def __call__(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows of the parts with the given numbers."""
        numbers: list[Any] = [number for part in parts for number in part.column(0).to_pylist()]
        reader = StateReader.open(
            self.location,
            self.checkpoint_id,
            storage_options=self.storage_options,
            operator=self.operator,
        )
        with reader:
            rows = KeyRows(reader.schema, self.checkpoint_id, self.variables)
            for number in numbers:
                for keys in reader.keys(key_groups=self.ranges[number], now_ms=self.now_ms):
                    yield rows.of(keys)
