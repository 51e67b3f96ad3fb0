"""
How a state schema may change from one start of a job to the next.

Fields are matched by name.  A field may be added (old values read None), removed, moved, and
widened where no value can lose a digit; a variable may be added, left out, or deleted.  Whether a
field may be null may change: a key does not depend on it, and a null from before stays None.  Every other
change is rejected with an error that names it, before anything is claimed or written.  What is left
out would be lost, or begin empty under a new name, so `undeclared` names it.  A new field
or variable records the generation of the schema that added it.  So data in the log of a removed
field or variable is never read as that of a new one with the same name.
Source: Spark's state with the Avro encoding.  Deviations: Avro also turns INT into FLOAT and
BIGINT into FLOAT or DOUBLE, which loses digits and is rejected here; more digits of a DECIMAL, and
a time to live added or removed, are not in Spark's list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NoReturn

import pyarrow as pa

from statelog.errors import CheckpointError
from statelog.state.schema.descriptors import (
    FROZEN_NAME,
    OperatorStateSchema,
    StateDescriptor,
    TtlChange,
    field_since,
    schema_text,
    stored_types,
    with_since,
)

_WIDER: Final[dict[pa.DataType, frozenset[pa.DataType]]] = {
    pa.int8(): frozenset((pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())),
    pa.int16(): frozenset((pa.int32(), pa.int64(), pa.float32(), pa.float64())),
    pa.int32(): frozenset((pa.int64(), pa.float64())),
    pa.float32(): frozenset((pa.float64(),)),
    # A setting of Spark's session chooses one of the two; the values are the same.
    pa.string(): frozenset((pa.large_string(),)),
    pa.large_string(): frozenset((pa.string(),)),
    pa.binary(): frozenset((pa.large_binary(),)),
    pa.large_binary(): frozenset((pa.binary(),)),
}


def undeclared(stored: OperatorStateSchema, declared: OperatorStateSchema) -> list[str]:
    """
    Return the variables and fields that a checkpoint holds and a processor does not declare.

    A field is named by its path: variable, field and inner fields with dots, `element` for the
    elements of an array, `value` for the values of a map.  Variables that the processor deletes are
    left out, and so are the marks of frozen keys.
    """
    new_ones = {state.name: state for state in declared.states}
    names: list[str] = []
    for old in stored.states:
        if old.dropped or old.name in declared.deleted or old.name == FROZEN_NAME:
            continue
        new = new_ones.get(old.name)
        names += [old.name] if new is None else _gone(old.value_schema, new.value_schema, old.name)
    return names


def _gone(old: Iterable[pa.Field], new: Iterable[pa.Field], path: str) -> Iterator[str]:
    """Yield the paths of fields of *old* that *new* does not have."""
    by_name = {field.name: field for field in new}
    for field in old:
        inner = f"{path}.{field.name}"
        if field.name in by_name:
            yield from _gone_inside(field.type, by_name[field.name].type, inner)
        else:
            yield inner


def _gone_inside(old: pa.DataType, new: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_struct(old):
        yield from _gone(old, new, path)
    elif pa.types.is_list(old):
        yield from _gone_inside(old.value_type, new.value_type, f"{path}.element")
    elif pa.types.is_map(old):
        yield from _gone_inside(old.item_type, new.item_type, f"{path}.value")


def evolve(
    stored: OperatorStateSchema,
    declared: OperatorStateSchema,
    *,
    now_ms: int,
    drop: Collection[str] = (),
) -> OperatorStateSchema:
    """
    Return the schema of a job with schema *declared* that restarts on *stored*.

    Variables keep their ids, and new ones get the next ids.  Variables that the job no longer asks
    for are kept, unless it deletes them or *drop* names them.
    """
    if declared.operator_id != stored.operator_id:
        _refuse(f"it belongs to operator {stored.operator_id!r}, not {declared.operator_id!r}")
    if stored_types(declared.key_schema) != stored_types(stored.key_schema):
        _refuse(
            f"its key is ({schema_text(stored.key_schema)}), the query's is "
            f"({schema_text(declared.key_schema)}); key columns may only be renamed"
        )
    _check_order("its key", stored.key_schema, declared.key_schema)
    generation = stored.generation + 1
    new_ones = {state.name: state for state in declared.states}
    states = []
    for old in stored.states:
        new = None if old.dropped else new_ones.get(old.name)
        if new is None:
            gone = old.dropped or old.name in declared.deleted or old.name in drop
            states.append(replace(old, dropped=True) if gone else old)
            continue
        try:
            states.append(_evolved(old, new, generation, now_ms))
        except CheckpointError:
            if old.name not in declared.deleted:
                raise
            states.append(
                replace(old, dropped=True)
            )  # deleted, and declared again with another type
            continue
        del new_ones[old.name]
    states += [replace(state, since=generation) for state in new_ones.values()]
    evolved = replace(stored, key_schema=declared.key_schema, states=tuple(states))
    if evolved.to_json() == stored.to_json():
        return stored
    return replace(evolved, generation=generation)


def _evolved(
    old: StateDescriptor, new: StateDescriptor, generation: int, now_ms: int
) -> StateDescriptor:
    if new.kind is not old.kind or new.aggregation is not old.aggregation:
        _refuse(f"state {old.name!r} is a {old.kind_text} state there, a {new.kind_text} here")
    before, after = old.user_key_schema, new.user_key_schema
    are_maps = before is not None and after is not None
    if are_maps and stored_types(before) != stored_types(after):
        _refuse(
            f"state {old.name!r} has the map key ({schema_text(before)}) there, "
            f"({schema_text(after)}) here; its fields may only be renamed"
        )
    if before is not None and after is not None:
        _check_order(f"the map key of state {old.name!r}", before, after)
    fields = _fields(old.value_schema, new.value_schema, f"state {old.name!r}: field ", generation)
    ttl_changes = old.ttl_changes
    if old.ttl_ms is None and new.ttl_ms is not None:
        ttl_changes += (TtlChange(generation, True, now_ms + new.ttl_ms),)
    elif old.ttl_ms is not None and new.ttl_ms is None:
        ttl_changes += (TtlChange(generation, False, now_ms),)
    return replace(
        old,
        value_schema=pa.schema(fields),
        user_key_schema=new.user_key_schema,
        ttl_ms=new.ttl_ms,
        ttl_changes=ttl_changes,
    )


def moved_names(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """
    Return the names that two keys have at different places.

    Columns of a key are matched by their places, so that these would exchange values.
    """
    return [name for name, other in zip(old, new, strict=False) if name != other and name in new]


def _check_order(what: str, old: pa.Schema, new: pa.Schema) -> None:
    if moved := moved_names(old.names, new.names):
        _refuse(
            f"{what} is ({schema_text(old)}) there, ({schema_text(new)}) here: {', '.join(moved)} is at "
            "another place, and columns of a key are matched by their places"
        )


def _fields(
    old: Iterable[pa.Field], new: Iterable[pa.Field], path: str, generation: int
) -> list[pa.Field]:
    """Return the fields of *new*, each with the generation that added it."""
    by_name = {field.name: field for field in old}
    fields = []
    for field in new:
        before = by_name.get(field.name)
        where = f"{path}{field.name!r}"
        if before is None:
            if not field.nullable:
                _refuse(
                    f"{where} is new and NOT NULL, but values from before have none: declare it nullable"
                )
            fields.append(with_since(field, generation))
        else:
            fields.append(with_since(_field(before, field, where, generation), field_since(before)))
    return fields


def _field(old: pa.Field, new: pa.Field, path: str, generation: int) -> pa.Field:
    return new.with_type(_type(old.type, new.type, path, generation))


def _type(old: pa.DataType, new: pa.DataType, path: str, generation: int) -> pa.DataType:
    """Return *new* with the generations of inner fields; reject an unsafe change."""
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return pa.struct(_fields(old, new, f"{path}.", generation))
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(_field(old.value_field, new.value_field, f"{path}[]", generation))
    if pa.types.is_map(old) and pa.types.is_map(new) and _have_equal_keys(old, new):
        item = _field(old.item_field, new.item_field, f"{path}{{}}", generation)
        return pa.map_(new.key_field, item)
    if new == old or new in _WIDER.get(old, ()):
        return new
    if (
        pa.types.is_decimal(old)
        and pa.types.is_decimal(new)
        and new.scale >= old.scale
        and new.precision - new.scale >= old.precision - old.scale
    ):
        return new
    _refuse(
        f"{path} is {old} there, {new} here; a type may only be widened so that no value loses a "
        "digit"
    )


def _have_equal_keys(old: pa.MapType, new: pa.MapType) -> bool:
    keys = [stored_types(pa.schema([kind.key_field])) for kind in (old, new)]
    return keys[0] == keys[1]


def _refuse(reason: str) -> NoReturn:
    raise CheckpointError(
        f"the state location cannot be used by this query: {reason}. Use another stateLocation, or "
        "the processor that wrote this one",
        reason="incompatible",
    )
