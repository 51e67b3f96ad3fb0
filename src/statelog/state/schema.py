"""
The state schema of an operator: its key, its typed variables, and how it may change.

The schema is stored next to the data in every changelog file and checkpoint, so that state can be
read without the program that wrote it.  Types are Arrow types; no object is pickled.

From one start of a job to the next, fields are matched by name.  A field may be added (old values
read None), removed, moved, and widened where no value can lose a digit; a variable may be added,
left out, or deleted.  Whether a field may be null may change: a key does not depend on it, and a
null from before stays None.  Every other change is rejected with an error that names it, before
anything is claimed or written.  What is left out would be lost, or begin empty under a new name, so
`undeclared` names it.  A new field or variable records the generation of the schema that added it.
So data in the log of a removed field or variable is never read as that of a new one with the same
name.
Source: Spark's state with the Avro encoding.  Deviations: Avro also turns INT into FLOAT and
BIGINT into FLOAT or DOUBLE, which loses digits and is rejected here; more digits of a DECIMAL, and
a time to live added or removed, are not in Spark's list.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn, TypeVar

import msgspec
import pyarrow as pa

from statelog.errors import CheckpointError, CorruptionError, IncompatibleFormatError
from statelog.format.arrow_data import check_names
from statelog.format.buffers import decode_json
from statelog.model import JsonObject
from statelog.state.kinds import StateKind

T = TypeVar("T")

_decoder: Final = msgspec.json.Decoder(JsonObject)

SCHEMA_VERSION: Final = 2
"""The version of the JSON form; other versions are rejected."""


class Aggregation(enum.Enum):
    """How a value state aggregates the values that are added to it."""

    REDUCING = "reducing"
    AGGREGATING = "aggregating"


TIMERS_NAME = "$timers"
"""Name of the variable that holds the timers of each key."""


def is_added(name: str) -> bool:
    """Return whether a variable was added by an extension instead of the processor."""
    return name.startswith("$") and name != TIMERS_NAME


@dataclass(frozen=True, slots=True)
class TtlChange:
    """
    Whether a time to live was added to a variable or removed from it.

    Args:
        generation: The generation of the schema with the change.
        added: True: earlier values expire at *at_ms*.  False: earlier values that had expired by
            *at_ms* are removed, the others never expire.
        at_ms: Milliseconds since the epoch.
    """

    generation: int
    added: bool
    at_ms: int


@dataclass(frozen=True, slots=True)
class StateDescriptor:
    """
    One state variable.

    Args:
        name: Unique within the operator.
        kind: Value, list, map or timer.
        value_schema: Fields of a value, a list element, or a map value.
        user_key_schema: Fields of a map key; None for other kinds.
        ttl_ms: Time to live in milliseconds, or None.
        aggregation: How a value state aggregates, or None.
        since: The generation of the schema that added the variable.
        dropped: Whether it was deleted; changes of it in the log are skipped.
        ttl_changes: Changes of its time to live, ascending by generation.
    """

    name: str
    kind: StateKind
    value_schema: pa.Schema
    user_key_schema: pa.Schema | None = None
    ttl_ms: int | None = None
    aggregation: Aggregation | None = None
    since: int = 0
    dropped: bool = False
    ttl_changes: tuple[TtlChange, ...] = ()

    @property
    def identity(self) -> tuple[str, int]:
        """Name and generation; a later variable with the same name has a different generation."""
        return self.name, self.since

    @property
    def kind_text(self) -> str:
        """The name under which users know the kind."""
        return self.kind.value if self.aggregation is None else self.aggregation.value

    def to_json(self) -> JsonObject:
        """Return the JSON form: schemas as base64-encoded Arrow IPC, and as text."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "value": _schema_to_json(self.value_schema),
            "user_key": None
            if self.user_key_schema is None
            else _schema_to_json(self.user_key_schema),
            "ttl_ms": self.ttl_ms,
            "aggregation": None if self.aggregation is None else self.aggregation.value,
            "since": self.since,
            "dropped": self.dropped,
            "ttl_changes": [
                {"generation": change.generation, "added": change.added, "at_ms": change.at_ms}
                for change in self.ttl_changes
            ],
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> StateDescriptor:
        """Create a descriptor from its JSON form."""
        user_key = value["user_key"]
        aggregation = value["aggregation"]
        ttl_ms = value["ttl_ms"]
        return cls(
            name=_of_type(value["name"], str),
            kind=StateKind(value["kind"]),
            value_schema=_schema_from_json(value["value"]),
            user_key_schema=None if user_key is None else _schema_from_json(user_key),
            ttl_ms=None if ttl_ms is None else _of_type(ttl_ms, int),
            aggregation=None if aggregation is None else Aggregation(aggregation),
            since=_of_type(value["since"], int),
            dropped=_of_type(value["dropped"], bool),
            ttl_changes=tuple(
                TtlChange(
                    _of_type(change["generation"], int),
                    _of_type(change["added"], bool),
                    _of_type(change["at_ms"], int),
                )
                for change in value["ttl_changes"]
            ),
        )


@dataclass(frozen=True, slots=True)
class OperatorStateSchema:
    """
    The key and the variables of one stateful operator.

    A variable's position is its state id, which never changes.

    Args:
        operator_id: Name of the operator.
        key_schema: Fields of the grouping key.
        states: The variables by state id.
        generation: How often the schema changed since the state location was created.
        deleted: Names that the program asks to delete; not part of the JSON form.
    """

    operator_id: str
    key_schema: pa.Schema
    states: tuple[StateDescriptor, ...]
    generation: int = 0
    deleted: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)

    def state_id(self, name: str) -> int:
        """Return the id of the variable *name*; raise `KeyError` if no live variable has it."""
        for index, state in enumerate(self.states):
            if state.name == name and not state.dropped:
                return index
        raise KeyError(name)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "version": SCHEMA_VERSION,
            "operator_id": self.operator_id,
            "generation": self.generation,
            "key": _schema_to_json(self.key_schema),
            "states": [state.to_json() for state in self.states],
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> OperatorStateSchema:
        """Create a schema from its JSON form."""
        try:
            if value["version"] != SCHEMA_VERSION:
                raise IncompatibleFormatError(
                    f"the state schema has version {value['version']}; this version of statelog reads version "
                    f"{SCHEMA_VERSION}. Nothing is damaged: use the version of statelog that wrote it"
                )
            states = tuple(StateDescriptor.from_json(state) for state in value["states"])
            _check_unique(states)
            return cls(
                operator_id=_of_type(value["operator_id"], str),
                key_schema=_schema_from_json(value["key"]),
                states=states,
                generation=_of_type(value["generation"], int),
            )
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OSError,
            pa.ArrowException,
        ) as error:
            raise CorruptionError(f"not a state schema: {value!r:.200}") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> OperatorStateSchema:
        """Create a schema from its JSON text; raises like `from_json`."""
        try:
            return cls.from_json(decode_json(data, _decoder))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptionError(f"a state schema cannot be read: {error}") from error


def _check_unique(states: Iterable[StateDescriptor]) -> None:
    """Check that the identities of variables are unique, and the names of live variables too."""
    seen: set[object] = set()
    for state in states:
        for mark in (state.identity,) if state.dropped else (state.identity, state.name):
            if mark in seen:
                raise CorruptionError(f"a state schema contains two variables named {state.name!r}")
            seen.add(mark)


def _of_type(value: object, kind: type[T]) -> T:
    """Return *value* if it is of a type; a `bool` does not count as an `int`."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.100} is not a {kind.__name__}")
    return value


def schema_text(*schemas: pa.Schema | None) -> str:
    """Format the names and types in schemas, with an arrow between two schemas."""
    present: Iterable[pa.Schema] = [schema for schema in schemas if schema is not None]
    return " -> ".join(
        ", ".join(f"{field.name} {field.type}" for field in schema) for schema in present
    )


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """
    Return *schema* in the form in which files store it, with every field nullable.

    A key without a value has nulls even in the columns of a NOT NULL field.
    """
    return pa.schema([stored_field(field) for field in schema])


def stored_field(field: pa.Field) -> pa.Field:
    """Return *field* in the form in which files store it, nullable at all levels."""
    return field.with_type(_stored_type(field.type)).with_nullable(True)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    return with_fields(kind, stored_field)


def with_fields(kind: pa.DataType, changed: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return a type with its direct fields changed; a map key always stays not null."""
    if pa.types.is_struct(kind):
        return pa.struct([changed(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(changed(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(changed(kind.key_field).with_nullable(False), changed(kind.item_field))
    return kind


def stored_types(schema: pa.Schema) -> list[pa.DataType]:
    """Return the field types as stored in files, which identify the type of key."""
    types: list[pa.DataType] = stored_schema(schema).types
    return types


_SINCE: Final = b"statelog.since"


def field_since(field: pa.Field) -> int:
    """Return the generation of the schema that added a field."""
    return int((field.metadata or {}).get(_SINCE, b"0"))


def with_since(field: pa.Field, since: int) -> pa.Field:
    """Record in the metadata of *field* which generation added it."""
    return field.with_metadata({_SINCE: str(since).encode()} if since else None)


def _schema_to_json(schema: pa.Schema) -> dict[str, str]:
    return {
        "text": schema_text(schema),
        "arrow": base64.b64encode(schema.serialize().to_pybytes()).decode("ascii"),
    }


def _schema_from_json(value: Mapping[str, str]) -> pa.Schema:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["arrow"])))
    check_names(schema)
    return schema


_WIDER: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    # A setting of Spark's session chooses one of the two; the values are the same.
    pa.string(): (pa.large_string(),),
    pa.large_string(): (pa.string(),),
    pa.binary(): (pa.large_binary(),),
    pa.large_binary(): (pa.binary(),),
}


def undeclared(stored: OperatorStateSchema, declared: OperatorStateSchema) -> list[str]:
    """
    Return the variables and fields in a checkpoint that a processor does not declare.

    A field is named by its path: variable, field and inner fields with dots, `element` for the
    elements of an array, `value` for the values of a map.  Variables that the processor deletes are
    left out, and so are those that extensions add.
    """
    new_ones = {state.name: state for state in declared.states}
    names: list[str] = []
    for old in stored.states:
        if old.dropped or old.name in declared.deleted or is_added(old.name):
            continue
        new = new_ones.get(old.name)
        names += [old.name] if new is None else _gone(old.value_schema, new.value_schema, old.name)
    return names


def _gone(old: Iterable[pa.Field], new: Iterable[pa.Field], path: str) -> Iterator[str]:
    """Yield the paths of the fields in *old* that *new* does not have."""
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
    Return the schema of a job that declares *declared* and restarts from *stored*.

    Variables keep their ids, and new ones get the next ids.  Variables that the job no longer asks
    for are kept, unless it deletes them or *drop* names them.
    """
    if declared.operator_id != stored.operator_id:
        _refuse(f"it belongs to operator {stored.operator_id!r}, not {declared.operator_id!r}")
    # 1. What cannot change: the operator, and the types and places of the key's columns.
    if stored_types(declared.key_schema) != stored_types(stored.key_schema):
        _refuse(
            f"its key is ({schema_text(stored.key_schema)}), but the query's key is "
            f"({schema_text(declared.key_schema)}); key columns may only be renamed"
        )
    _check_order("its key", stored.key_schema, declared.key_schema)
    generation = stored.generation + 1
    new_ones = {state.name: state for state in declared.states}
    # 2. The stored variables in their order, so that each keeps its id.
    states = []
    for old in stored.states:
        # A dropped variable stays in the list: the log may have changes of it.
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
    # 3. What is left is new, and gets the next ids.
    states += [replace(state, since=generation) for state in new_ones.values()]
    evolved = replace(stored, key_schema=declared.key_schema, states=tuple(states))
    # Nothing changed: the generation must not rise, or every start would make a new schema.
    if evolved.to_json() == stored.to_json():
        return stored
    return replace(evolved, generation=generation)


def _evolved(
    old: StateDescriptor, new: StateDescriptor, generation: int, now_ms: int
) -> StateDescriptor:
    if new.kind is not old.kind or new.aggregation is not old.aggregation:
        _refuse(
            f"state {old.name!r} is a {old.kind_text} state there, but a {new.kind_text} state here"
        )
    before = old.user_key_schema
    after = new.user_key_schema
    are_maps = before is not None and after is not None
    if are_maps and stored_types(before) != stored_types(after):
        _refuse(
            f"state {old.name!r} has the map key ({schema_text(before)}) there, but "
            f"({schema_text(after)}) here; its fields may only be renamed"
        )
    if before is not None and after is not None:
        _check_order(f"the map key of state {old.name!r}", before, after)
    fields = _fields(old.value_schema, new.value_schema, f"state {old.name!r}: field ", generation)
    ttl_changes = old.ttl_changes
    # Entries have their expiry in them, or have none: these changes say how older entries are read.
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
    Return the names that have different positions in two keys.

    Columns of a key are matched by their places, so that these would exchange values.
    """
    return [name for name, other in zip(old, new, strict=False) if name != other and name in new]


def _check_order(what: str, old: pa.Schema, new: pa.Schema) -> None:
    if moved := moved_names(old.names, new.names):
        _refuse(
            f"{what} is ({schema_text(old)}) there, but ({schema_text(new)}) here: {', '.join(moved)} is in "
            "a different position, and key columns are matched by position"
        )


def _fields(
    old: Iterable[pa.Field], new: Iterable[pa.Field], path: str, generation: int
) -> list[pa.Field]:
    """Return the fields of *new*, each marked with the generation that added it."""
    by_name = {field.name: field for field in old}
    fields = []
    for field in new:
        before = by_name.get(field.name)
        where = f"{path}{field.name!r}"
        if before is None:
            if not field.nullable:
                _refuse(
                    f"{where} is new and NOT NULL, but earlier values do not have it: declare it nullable"
                )
            fields.append(with_since(field, generation))
        else:
            fields.append(with_since(_field(before, field, where, generation), field_since(before)))
    return fields


def _field(old: pa.Field, new: pa.Field, path: str, generation: int) -> pa.Field:
    return new.with_type(_type(old.type, new.type, path, generation))


def _type(old: pa.DataType, new: pa.DataType, path: str, generation: int) -> pa.DataType:
    """Mark the inner fields of *new* with their generations; reject an unsafe change."""
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
        f"{path} is {old} there, but {new} here; a type may only be widened so that no value loses a "
        "digit"
    )


def _have_equal_keys(old: pa.MapType, new: pa.MapType) -> bool:
    keys = [stored_types(pa.schema([kind.key_field])) for kind in (old, new)]
    return keys[0] == keys[1]


def _refuse(reason: str) -> NoReturn:
    raise CheckpointError(
        f"the state location cannot be used by this query: {reason}. Use a different stateLocation, or "
        "the processor that wrote this state",
        reason="incompatible",
    )
