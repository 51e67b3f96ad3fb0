"""
What an operator keeps: its key, and its state variables with their types.

The schema lies beside the data in every changelog file and checkpoint, so that state can be read
without the program that wrote it.  Types are Arrow types; nothing is pickled.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from statelog.errors import CheckpointError, CorruptionError, IncompatibleFormatError

SCHEMA_VERSION = 1


class StateKind(enum.Enum):
    """The kinds of state a variable can be."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    TIMER = "timer"


TIMERS_NAME = "$timers"
"""Name of the variable that holds the timers of each key."""


@dataclass(frozen=True, slots=True)
class StateDescriptor:
    """
    One state variable.

    Args:
        name: Unique within the operator.
        kind: Value, list, map or timer.
        value_schema: Fields of a value, a list element, or a map value.
        user_key_schema: Fields of a map key; None for other kinds.
        ttl_ms: Time to live in milliseconds, or None for ever.
    """

    name: str
    kind: StateKind
    value_schema: pa.Schema
    user_key_schema: pa.Schema | None = None
    ttl_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; schemas are base64 of Arrow IPC, with a readable text beside."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "value": _schema_to_json(self.value_schema),
            "user_key": None
            if self.user_key_schema is None
            else _schema_to_json(self.user_key_schema),
            "ttl_ms": self.ttl_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StateDescriptor:
        """Build a descriptor from its JSON form."""
        user_key = value["user_key"]
        return cls(
            name=value["name"],
            kind=StateKind(value["kind"]),
            value_schema=_schema_from_json(value["value"]),
            user_key_schema=None if user_key is None else _schema_from_json(user_key),
            ttl_ms=value["ttl_ms"],
        )


@dataclass(frozen=True, slots=True)
class OperatorStateSchema:
    """
    Key and variables of one stateful operator.

    A variable's position is its state id, and stays so for the life of the job.

    Args:
        operator_id: Name of the operator.
        key_schema: Fields of the grouping key.
        states: The variables by state id.
    """

    operator_id: str
    key_schema: pa.Schema
    states: tuple[StateDescriptor, ...]

    def state_id(self, name: str) -> int:
        """Return the id of the variable *name*; raises `KeyError` if there is none."""
        for index, state in enumerate(self.states):
            if state.name == name:
                return index
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "version": SCHEMA_VERSION,
            "operator_id": self.operator_id,
            "key": _schema_to_json(self.key_schema),
            "states": [state.to_json() for state in self.states],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OperatorStateSchema:
        """
        Build a schema from its JSON form.

        Raises:
            IncompatibleFormatError: A newer statelog wrote it.
            CorruptionError: It is not the JSON of a state schema.
        """
        try:
            if value["version"] > SCHEMA_VERSION:
                raise IncompatibleFormatError(
                    f"state schema has version {value['version']}, this statelog reads up to "
                    f"{SCHEMA_VERSION}; upgrade statelog"
                )
            return cls(
                operator_id=value["operator_id"],
                key_schema=_schema_from_json(value["key"]),
                states=tuple(StateDescriptor.from_json(state) for state in value["states"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"not a state schema: {value!r:.200}") from error

    def evolved(self, wanted: OperatorStateSchema) -> OperatorStateSchema:
        """
        Return the schema to go on with when a job with schema *wanted* restarts on this one.

        Variables keep their ids; new ones come behind; those that the job no longer asks for stay.

        Raises:
            CheckpointError: The state belongs to another operator, or a type differs.
        """
        if wanted.operator_id != self.operator_id:
            _refuse(f"it belongs to operator {self.operator_id!r}, not {wanted.operator_id!r}")
        if wanted.key_schema.types != self.key_schema.types:
            _refuse(
                f"its key is ({_text(self.key_schema)}), the query's is ({_text(wanted.key_schema)})"
            )
        by_name = {state.name: state for state in wanted.states}
        states = []
        for old in self.states:
            new = by_name.pop(old.name, old)
            _check_same(old, new)
            states.append(replace(old, ttl_ms=new.ttl_ms))
        return replace(self, states=(*states, *by_name.values()))


def _check_same(old: StateDescriptor, new: StateDescriptor) -> None:
    if new.kind is not old.kind:
        _refuse(f"state {old.name!r} is a {old.kind.value} state there, a {new.kind.value} here")
    if new.value_schema != old.value_schema or new.user_key_schema != old.user_key_schema:
        _refuse(
            f"state {old.name!r} has the type ({_text(old.user_key_schema, old.value_schema)}) "
            f"there, ({_text(new.user_key_schema, new.value_schema)}) here"
        )
    if (new.ttl_ms is None) != (old.ttl_ms is None):
        _refuse(f"state {old.name!r} is kept with a time to live on one side only")


def _refuse(reason: str) -> None:
    raise CheckpointError(
        f"the state location cannot be used by this query: {reason}. Use another stateLocation, or "
        "the processor that wrote this one",
        reason="incompatible",
    )


def _text(*schemas: pa.Schema | None) -> str:
    present: Iterable[pa.Schema] = [schema for schema in schemas if schema is not None]
    return " -> ".join(
        ", ".join(f"{field.name} {field.type}" for field in schema) for schema in present
    )


def _schema_to_json(schema: pa.Schema) -> dict[str, str]:
    return {
        "text": _text(schema),
        "arrow": base64.b64encode(schema.serialize().to_pybytes()).decode("ascii"),
    }


def _schema_from_json(value: Mapping[str, str]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["arrow"])))
