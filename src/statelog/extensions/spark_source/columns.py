"""
Flat columns of state as Spark's columns.

A reader of state names its columns `key.<name>`, `user_key.<name>` and `value.<name>`.  Here each
of these prefixes is one struct, so that `frame.select("key.customer")` has the same meaning.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statelog.errors import InvalidOptionsError
from statelog.spark.rows.spark_versions import known_arguments

Path = tuple[str, ...]
"""The names that lead to a column in Spark: a struct and its field, or one name."""


def state_path(name: str) -> Path:
    """Return the path of a flat column of state: a struct for its prefix, if it has one."""
    prefix, dot, rest = name.partition(".")
    return (prefix, rest) if dot else (name,)


def spark_schema(flat: pa.Schema) -> StructType:
    """Return Spark's columns of *flat*, those with a common first name as one struct."""
    fields = []
    for name, members in _members(flat).items():
        first = flat.field(members[0])
        if len(state_path(first.name)) > 1:
            inner = [flat.field(at).with_name(state_path(flat.field(at).name)[1]) for at in members]
            fields.append(pa.field(name, pa.struct(inner)))
        else:
            fields.append(first.with_name(name))
    # The Arrow types have the names for a timestamp without a zone only if asked to.
    converted = known_arguments(from_arrow_schema, prefer_timestamp_ntz=True)
    schema: StructType = converted(pa.schema(fields))
    return schema


def spark_batch(flat: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Return *flat* in the columns of `spark_schema`, with the exact types of *target*."""
    columns = []
    for name, members in _members(flat.schema).items():
        kind = target.field(name).type
        if len(state_path(flat.schema.field(members[0]).name)) > 1:
            inner = list(kind)
            cast = [
                flat.column(at).cast(field.type) for at, field in zip(members, inner, strict=True)
            ]
            columns.append(pa.StructArray.from_arrays(cast, fields=inner))
        else:
            columns.append(flat.column(members[0]).cast(kind))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def selected_columns(flat: pa.Schema, chosen: Sequence[str] | None) -> pa.Schema:
    """Return the columns that a user named: `value`, or one field of it as `value.amount`."""
    if chosen is None:
        return flat
    names = {name for each in flat.names for name in (each, state_path(each)[0])}
    if unknown := [name for name in chosen if name not in names]:
        raise InvalidOptionsError(
            f"there is no column {', '.join(unknown)}; the columns are {', '.join(flat.names)}"
        )
    return pa.schema(
        [field for field in flat if field.name in chosen or state_path(field.name)[0] in chosen]
    )


def _members(flat: pa.Schema) -> dict[str, list[int]]:
    """Return the positions of the columns of each first name, in their order."""
    positions: dict[str, list[int]] = {}
    for at, name in enumerate(flat.names):
        positions.setdefault(state_path(name)[0], []).append(at)
    return positions
