"""
The state schema of an operator: its key, and its variables with their types.

The schema is stored next to the data in every changelog file and checkpoint, so that state can be
read without the program that wrote it.  Types are Arrow types; no object is pickled.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.format.arrow_data import check_names
from statelog.format.bounds import decode_json
from statelog.model import JsonObject
from statelog.state.kinds import StateKind

T = TypeVar("T")

_decoder: Final = msgspec.json.Decoder(JsonObject)

SCHEMA_VERSION: Final = 2
"""Version 1 knew neither generations nor dropped variables; it is read as generation 0."""


class Aggregation(enum.Enum):
    """How a value state aggregates the values added to it."""

    REDUCING = "reducing"
    AGGREGATING = "aggregating"


TIMERS_NAME = "$timers"
"""Name of the variable that holds the timers of each key."""
FROZEN_NAME = "$frozen"
"""Name of the variable that marks the keys that failed, where such keys are frozen."""


@dataclass(frozen=True, slots=True)
class TtlChange:
    """
    A time to live added to a variable, or removed from it.

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
        """Name and generation; a later variable of the name has another."""
        return self.name, self.since

    @property
    def kind_text(self) -> str:
        """The kind as users call it."""
        return self.kind.value if self.aggregation is None else self.aggregation.value

    def to_json(self) -> JsonObject:
        """Return the JSON form; schemas are Arrow IPC in base64, and text."""
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
        """Build a descriptor from its JSON form."""
        user_key = value["user_key"]
        aggregation = value.get("aggregation")
        ttl_ms = value["ttl_ms"]
        return cls(
            name=_of_type(value["name"], str),
            kind=StateKind(value["kind"]),
            value_schema=_schema_from_json(value["value"]),
            user_key_schema=None if user_key is None else _schema_from_json(user_key),
            ttl_ms=None if ttl_ms is None else _of_type(ttl_ms, int),
            aggregation=None if aggregation is None else Aggregation(aggregation),
            since=_of_type(value.get("since", 0), int),
            dropped=_of_type(value.get("dropped", False), bool),
            ttl_changes=tuple(
                TtlChange(
                    _of_type(change["generation"], int),
                    _of_type(change["added"], bool),
                    _of_type(change["at_ms"], int),
                )
                for change in value.get("ttl_changes", ())
            ),
        )


@dataclass(frozen=True, slots=True)
class OperatorStateSchema:
    """
    Key and variables of one stateful operator.

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
    deleted: frozenset[str] = field(default=frozenset(), compare=False)

    def state_id(self, name: str) -> int:
        """Return the id of the variable *name*; raises `KeyError` if none is live."""
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
        """Build a schema from its JSON form."""
        try:
            if value["version"] > SCHEMA_VERSION:
                raise IncompatibleFormatError(
                    f"state schema has version {value['version']}, this statelog reads up to "
                    f"{SCHEMA_VERSION}; upgrade statelog"
                )
            states = tuple(StateDescriptor.from_json(state) for state in value["states"])
            _check_unique(states)
            return cls(
                operator_id=_of_type(value["operator_id"], str),
                key_schema=_schema_from_json(value["key"]),
                states=states,
                generation=_of_type(value.get("generation", 0), int),
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
        """Build a schema from its JSON text; raises as `from_json`."""
        try:
            return cls.from_json(decode_json(data, _decoder))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptionError(f"a state schema cannot be read: {error}") from error


def _check_unique(states: Iterable[StateDescriptor]) -> None:
    """Check that no two variables have one identity, and no two live ones have one name."""
    seen: set[object] = set()
    for state in states:
        for mark in (state.identity,) if state.dropped else (state.identity, state.name):
            if mark in seen:
                raise CorruptionError(f"a state schema has two variables {state.name!r}")
            seen.add(mark)


def _of_type(value: object, kind: type[T]) -> T:
    """Return *value* if it is of a type; a `bool` is no `int`."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.100} is no {kind.__name__}")
    return value


def schema_text(*schemas: pa.Schema | None) -> str:
    """Return names and types of schemas, with an arrow between schemas."""
    present: Iterable[pa.Schema] = [schema for schema in schemas if schema is not None]
    return " -> ".join(
        ", ".join(f"{field.name} {field.type}" for field in schema) for schema in present
    )


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """
    Return *schema* as files store it: every field may be null.

    A key without a value has nulls even in the columns of a NOT NULL field.
    """
    return pa.schema([stored_field(field) for field in schema])


def stored_field(field: pa.Field) -> pa.Field:
    """Return *field* as files store it: it and all inside of it may be null."""
    return field.with_type(_stored_type(field.type)).with_nullable(True)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([stored_field(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(stored_field(kind.value_field))
    if pa.types.is_map(kind):
        key = kind.key_field
        return pa.map_(key.with_type(_stored_type(key.type)), stored_field(kind.item_field))
    return kind


def stored_types(schema: pa.Schema) -> list[pa.DataType]:
    """Return the types of the fields as files store them: by these, keys are of one kind."""
    types: list[pa.DataType] = stored_schema(schema).types
    return types


_SINCE: Final = b"statelog.since"


def field_since(field: pa.Field) -> int:
    """Return the generation of the schema that added a field."""
    return int((field.metadata or {}).get(_SINCE, b"0"))


def with_since(field: pa.Field, since: int) -> pa.Field:
    """Return *field* with the generation that added it, in its metadata."""
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
