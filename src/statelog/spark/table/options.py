"""The options of a write, and what they say about the columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BooleanType, StructType

from statelog.checkpoint.query_files import StoredQuery
from statelog.errors import InvalidOptionsError, StatelogError, UsageError
from statelog.model import DEFAULT_MAX_PARALLELISM
from statelog.options import CheckpointOptions
from statelog.spark.rows.types import arrow_schema
from statelog.spark.source.opened import TABLE
from statelog.spark.source.options import (
    build_options,
    documented_options,
    format_option,
    given_options,
)
from statelog.state.encoding.values import stored_schema
from statelog.state.kinds import StateKind
from statelog.state.schema.descriptors import OperatorStateSchema, StateDescriptor
from statelog.store import open_query_files
from statelog.store.location import is_known, normalize_url

ROW: Final = "row"
"""Name of the variable that holds the columns of a table besides its key."""
# Options of Spark's own writer that are passed on with the others.
_CHECKPOINT_LOCATION: Final = "checkpointlocation"
_QUERY_NAME: Final = "queryname"


def _path(name: str, value: str) -> str:
    # A relative path has its meaning here, in the folder of the driver.
    return normalize_url(value) if is_known(value) else value


def _key(name: str, value: str | None) -> tuple[str, ...]:
    key = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    if not key or len(set(key)) != len(key):
        raise InvalidOptionsError(
            'the option "key" names the columns of the table\'s key, such as "customer" or "shop, '
            f'day"; it is {value!r}'
        )
    return key


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", value.strip(), re.ASCII):
        raise InvalidOptionsError(f"{name} must be a number of 1 or more, not {value!r}")
    return int(value)


@documented_options
@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """
    The options of a write.

    Options of the store's client are given as `storageOptions.<name>`.

    Raises:
        InvalidOptionsError: A name is unknown or missing, or a value has the wrong form.
    """

    path: str = format_option(
        "", "The table's location; `save(path)` and `start(path)` set it.", _path
    )
    key: tuple[str, ...] = format_option(
        (), "The columns of the key, with commas between them.", _key
    )
    deleteColumn: str | None = format_option(
        None, "A boolean column, which is not stored: rows where it is true delete their key."
    )
    sequenceBy: str | None = format_option(
        None,
        "Of several rows with one key in one micro-batch, the one with the greatest value of this "
        "column counts.  Without it, such rows are an error unless they are equal.",
    )
    writerId: str | None = format_option(
        None,
        "Name under which micro-batch numbers are remembered.  Default: the id of the query, from "
        "its checkpointLocation.",
    )
    maxParallelism: int = format_option(
        DEFAULT_MAX_PARALLELISM, "Number of key groups of a new table.", _count
    )
    retainedCheckpoints: int | None = format_option(
        None, "Checkpoints that can be read; None for the default.", _count
    )
    store: Mapping[str, object] = field(default_factory=dict, repr=False)
    checkpoint_location: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> TableOptions:
        """
        Return the options of a write.

        Raises:
            InvalidOptionsError: A name is unknown or missing, or a value has the wrong form.
        """
        of_spark = {name.lower(): value for name, value in given.items()}
        checkpoint_location = of_spark.pop(_CHECKPOINT_LOCATION, None)
        of_spark.pop(_QUERY_NAME, None)
        texts, store = given_options(of_spark, cls, "writing the format statelog_table")
        if not texts.get("path"):
            raise InvalidOptionsError(
                "the format statelog_table needs the location of the table: .start(location) or .save(location)"
            )
        _key("key", texts.get("key"))  # raises: there is no default
        return build_options(cls, texts, store=store, checkpoint_location=checkpoint_location)

    @property
    def checkpoints(self) -> CheckpointOptions:
        """How many checkpoints to keep."""
        if self.retainedCheckpoints is None:
            return CheckpointOptions()
        return CheckpointOptions(retained=self.retainedCheckpoints)

    def writer_id(self) -> str:
        """
        Return the name under which the micro-batch numbers of a stream are remembered.

        Raises:
            UsageError: Neither the option nor the query's checkpointLocation gives one.

        Blocks: On the checkpointLocation.
        """
        if self.writerId:
            return self.writerId
        place = self.checkpoint_location
        try:
            if place and is_known(place):
                return StoredQuery(open_query_files(place, options=self.store)).query_id()
        except StatelogError as error:
            raise self._no_writer() from error
        raise self._no_writer()

    def _no_writer(self) -> UsageError:
        return UsageError(
            f"the id of the query cannot be read from its checkpointLocation "
            f"({self.checkpoint_location or 'not an option of this writer'}), so a micro-batch that is "
            "repeated could not be told from another one. Set the option writerId to a name that no "
            "other query uses, and keep it for the lifetime of the checkpointLocation"
        )


@dataclass(frozen=True, slots=True)
class TableColumns:
    """
    The columns of a frame that is written to a table.

    Args:
        names: All columns of the frame, in its order.
        schema: Key and row of the table.
        delete: The column that marks deletions, or None.
        sequence: The column that orders rows of one key, or None.
    """

    names: tuple[str, ...]
    schema: OperatorStateSchema
    delete: str | None
    sequence: str | None

    @classmethod
    def of(cls, frame: StructType, options: TableOptions) -> TableColumns:
        """
        Return the columns of a frame.

        Raises:
            UsageError: A column that an option names does not exist, or has another type.
        """
        named = [*options.key, options.deleteColumn, options.sequenceBy]
        missing = [name for name in named if name is not None and name not in frame.names]
        if missing:
            raise UsageError(
                f"the frame has no column {missing[0]!r}; it has {', '.join(frame.names)}"
            )
        if len(set(frame.names)) != len(frame.names):
            raise UsageError(f"the frame has two columns of one name: {', '.join(frame.names)}")
        delete = options.deleteColumn
        if delete is not None and not isinstance(frame[delete].dataType, BooleanType):
            raise UsageError(
                f"deleteColumn {delete!r} must be boolean, not {frame[delete].dataType.simpleString()}"
            )
        arrow = arrow_schema(frame)
        row = [field for field in arrow if field.name not in (*options.key, delete)]
        if not row:
            raise UsageError("a table needs a column besides its key")
        key = pa.schema([arrow.field(name) for name in options.key])
        schema = OperatorStateSchema(
            TABLE,
            key,
            # Every column may be null: a later frame may lack it.
            (StateDescriptor(ROW, StateKind.VALUE, stored_schema(pa.schema(row))),),
        )
        return cls(tuple(frame.names), schema, delete, options.sequenceBy)
