"""
The columns of a location's state as columns of an Iceberg table.

A column, a field of a struct and an element of a list have a *path* of names.  A path keeps its field id
as long as the table exists, also while a schema lacks it, so that a file without field ids reads the same
in every snapshot of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from statelog.errors import UsageError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.types import IcebergType

Path = tuple[str, ...]


def iceberg_schema(
    columns: pa.Schema, stored: pa.Schema, ids: Mapping[Path, int], last_id: int
) -> tuple[Schema, dict[Path, int]]:
    """
    Return columns as a schema of Iceberg, and the field ids of all paths.

    Args:
        columns: The columns of the table.
        stored: The columns of its files, which may be more: a reader expects an id for each.
        ids: The ids that paths have already.
        last_id: The highest id that was given.

    Raises:
        UsageError: A column has a type that Iceberg lacks, or two columns have one path.
    """
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, pyarrow_to_schema
    from pyiceberg.schema import index_by_name
    from pyiceberg.table.name_mapping import NameMapping

    new = dict(ids)
    last_id = max(last_id, *ids.values(), 0)
    for path in (path for field in stored for path in _paths((), field)):
        if path not in new:
            last_id += 1
            new[path] = last_id
    nullable = pa.schema([pa.field(field.name, _nullable(field.type)) for field in columns])
    mapping = NameMapping.model_validate(mapping_json(new))
    try:
        schema = pyarrow_to_schema(nullable, name_mapping=mapping, format_version=2)
        index_by_name(
            schema
        )  # raises where two columns have one name, such as "a.b" and "b" of "a"
        return schema, new
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise UsageError(
            f"the state cannot be a table of Iceberg: {error}; publish other variables with --state"
        ) from error


def mapped_paths(fields: Iterable[MappedField], prefix: Path = ()) -> Iterator[tuple[Path, int]]:
    """Yield the paths of a name mapping with their field ids."""
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield (*prefix, name), field.field_id
            yield from mapped_paths(field.fields, (*prefix, name))


def mapping_json(ids: Mapping[Path, int], prefix: Path = ()) -> list[dict[str, object]]:
    """Return the field ids of paths as the JSON of a name mapping."""
    size = len(prefix) + 1
    names = [path[-1] for path in ids if len(path) == size and path[:-1] == prefix]
    fields = []
    for name in names:
        path = (*prefix, name)
        children = {each: number for each, number in ids.items() if each[:size] == path}
        fields.append(
            {
                "field-id": ids[path],
                "names": [name],
                "fields": mapping_json(children, path),
            }
        )
    return fields


def check_types(schema: Schema, earlier: Iterable[Schema], table: str) -> None:
    """
    Check that each column can have the id that it had before.

    Args:
        schema: The new schema.
        earlier: The schemas that the table has.
        table: Its name, for the error.

    Raises:
        UsageError: A column has a type that Iceberg does not promote the earlier one to.
    """
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote
    from pyiceberg.types import PrimitiveType

    new = dict(_types(schema))
    for before in earlier:
        for number, old in _types(before):
            now = new.get(number)
            if now is None or now == old:
                continue
            both = isinstance(now, PrimitiveType), isinstance(old, PrimitiveType)
            if both == (False, False) and type(now) is type(old):
                continue  # their fields are compared
            try:
                promote(old, now)
            except ResolveError as error:
                raise UsageError(
                    f"column {schema.find_column_name(number)} has the type {now} now, and {old} in "
                    f"earlier snapshots of the table {table}, which Iceberg does not promote: publish to "
                    "a new table"
                ) from error


def _types(schema: Schema) -> Iterator[tuple[int, IcebergType]]:
    """Yield the ids and types of all fields."""
    from pyiceberg.schema import index_by_id

    for number, field in index_by_id(schema).items():
        yield number, field.field_type


def _paths(prefix: Path, field: pa.Field, name: str = "") -> Iterator[Path]:
    path = (*prefix, name or field.name)
    yield path
    if pa.types.is_struct(field.type):
        for child in field.type:
            yield from _paths(path, child)
    elif pa.types.is_map(field.type):
        yield from _paths(path, field.type.key_field, "key")
        yield from _paths(path, field.type.item_field, "value")
    elif pa.types.is_list(field.type):
        yield from _paths(path, field.type.value_field, "element")


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return a type whose fields may be null, as the files of an earlier schema need."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    return kind
