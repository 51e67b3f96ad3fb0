"""
Flat columns of state as Spark's columns.

A reader of state names its columns `key.<name>`, `user_key.<name>` and `value.<name>`.  Here each
of these prefixes is one struct, so that `frame.select("key.customer")` has the same meaning.  A keyed
table has the columns that were written, under their names.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statelog.errors import InvalidOptionsError
from statelog.spark.rows.spark_versions import known_arguments


def spark_schema(flat: pa.Schema, *, of_table: bool = False) -> StructType:
    """Return Spark's columns of *flat*: one struct for each prefix, or the plain columns of a table."""
    fields: dict[str, pa.Field] = {}
    if of_table:
        fields = {name: field.with_name(name) for field in flat if (name := _split(field.name)[1])}
    else:
        fields = _nested_fields(flat)
    # The Arrow types have the names for a timestamp without a zone only if asked to.
    converted = known_arguments(from_arrow_schema, prefer_timestamp_ntz=True)
    schema: StructType = converted(pa.schema(list(fields.values())))
    return schema


def _nested_fields(flat: pa.Schema) -> dict[str, pa.Field]:
    fields: dict[str, pa.Field] = {}
    for name, members in _members(flat).items():
        if "." in flat.field(members[0]).name:
            inner = [flat.field(at).with_name(_split(flat.field(at).name)[1]) for at in members]
            fields[name] = pa.field(name, pa.struct(inner))
        else:
            fields[name] = flat.field(members[0])
    return fields


def spark_batch(
    flat: pa.RecordBatch, target: pa.Schema, *, of_table: bool = False
) -> pa.RecordBatch:
    """Return *flat* in the columns of `spark_schema`, with the exact types of *target*."""
    if of_table:
        arrays = [flat.column(at).cast(field.type) for at, field in enumerate(target)]
        return pa.RecordBatch.from_arrays(arrays, schema=target)
    columns = []
    for name, members in _members(flat.schema).items():
        kind = target.field(name).type
        if "." in flat.schema.field(members[0]).name:
            inner = list(kind)
            cast = [
                flat.column(at).cast(field.type) for at, field in zip(members, inner, strict=True)
            ]
            columns.append(pa.StructArray.from_arrays(cast, fields=inner))
        else:
            columns.append(flat.column(members[0]).cast(kind))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def selected_columns(flat: pa.Schema, chosen: Sequence[str] | None) -> pa.Schema:
    """
    Return the columns that a user named: `value`, or one field of it as `value.amount`.

    Args:
        flat: All columns.
        chosen: Their names; None for all.

    Raises:
        InvalidOptionsError: There is no such column.
    """
    if chosen is None:
        return flat
    names = {name for each in flat.names for name in (each, _split(each)[0])}
    if unknown := [name for name in chosen if name not in names]:
        raise InvalidOptionsError(
            f"there is no column {', '.join(unknown)}; the columns are {', '.join(flat.names)}"
        )
    return pa.schema(
        [field for field in flat if field.name in chosen or _split(field.name)[0] in chosen]
    )


def table_columns(flat: pa.Schema, chosen: Sequence[str] | None) -> pa.Schema:
    """
    Return the columns of a keyed table, its key and its row; only *chosen* ones if that is given.

    Raises:
        InvalidOptionsError: The table lacks a column.
    """
    names = {_split(field.name)[1]: field for field in flat if "." in field.name}
    if unknown := [name for name in chosen or () if name not in names]:
        raise InvalidOptionsError(
            f"the table lacks the columns {', '.join(unknown)}; it has {', '.join(names)}"
        )
    return pa.schema([names[name] for name in chosen or names])


def _members(flat: pa.Schema) -> dict[str, list[int]]:
    """Return the positions of the columns of each prefix, in their order."""
    positions: dict[str, list[int]] = {}
    for at, name in enumerate(flat.names):
        positions.setdefault(_split(name)[0], []).append(at)
    return positions


def _split(name: str) -> tuple[str, str]:
    prefix, _, rest = name.partition(".")
    return prefix, rest
