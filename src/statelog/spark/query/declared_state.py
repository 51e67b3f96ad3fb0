"""
Collect what a processor declares: its state variables, and its use of extensions.

`init` of the processor runs once on the driver, and what it asks for is noted.  Timers are a
variable of statelog, and extensions may add variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from statelog.errors import ProcessorError, UsageError
from statelog.spark.extension_table import EXTENSIONS, ExtensionRow, loaded
from statelog.spark.query.face import AnyProcessor, face_of
from statelog.spark.query.processor_checks import copy_of, described
from statelog.spark.query.state_variables import (
    SchemaLike,
    StateVariables,
    Unusable,
    WantedVariable,
)
from statelog.spark.rows.key_types import check_map_key
from statelog.spark.rows.types import arrow_schema
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.kinds import StateKind
from statelog.state.schema import (
    TIMERS_NAME,
    OperatorStateSchema,
    StateDescriptor,
)

if TYPE_CHECKING:
    from statelog.spark.query.settings import QuerySettings

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,99}")


def is_name(name: object) -> bool:
    """Return whether extensions can use *name* in declarations and in stored objects."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class DriverHandle(StateVariables):
    """The handle that `init` receives once on the driver, which records the state variables."""

    def __init__(self, parse: Callable[[str], StructType], has_ttl: bool) -> None:
        self._parse = parse
        self._has_ttl = has_ttl
        self.states: list[StateDescriptor] = []
        self.deleted: set[str] = set()
        self._declarations: dict[str, Declaration] = {}

    def _struct(self, schema: SchemaLike, of: str) -> StructType:
        if not isinstance(schema, str):
            return schema
        try:
            return self._parse(schema)
        except PySparkException as error:
            problem = str(error).strip().partition("\n")[0]
            raise UsageError(f"{of}: {schema!r:.200} is not a schema: {problem}") from error

    def _call_of(self, row: ExtensionRow, method: str) -> Callable[..., object]:
        if not row.declaration:
            raise UsageError(f"{method}(): call it while rows or timers are handled, not in init()")
        declaration = self._declarations.get(row.name)
        if declaration is None:
            declaration = self._declarations[row.name] = declaration_of(row)(self._struct)
        return declaration.calls()[method]

    def declared(self) -> dict[str, object]:
        """Return what `init` declared to extensions, by extension name."""
        return {name: noted.declared() for name, noted in self._declarations.items()}

    def _variable(self, variable: WantedVariable) -> object:
        """Declare a state variable; `init` cannot use the returned object without a key."""
        name = variable.name
        self._check_name(name)
        self._check_time_to_live(name, variable.ttl_ms)
        user_key = (
            None
            if variable.user_key is None
            else self._struct(variable.user_key, f"the map key of state {name!r}")
        )
        if user_key is not None:
            check_map_key(name, user_key)
        self.states.append(
            StateDescriptor(
                name=name,
                kind=variable.kind,
                value_schema=arrow_schema(
                    self._struct(variable.value, f"state {name!r}"), f"state {name!r}: "
                ),
                user_key_schema=None if user_key is None else arrow_schema(user_key),
                ttl_ms=variable.ttl_ms,
                aggregation=variable.aggregation,
            )
        )
        return Unusable(
            f"state {name!r} belongs to a key: read and write it while rows or timers are "
            "handled, not in init() or close()"
        )

    def _check_name(self, name: str) -> None:
        if not name:
            raise UsageError("a state variable needs a name, but it is empty")
        if name.startswith(("$", "key.")) or name == KEY_GROUP_COLUMN:
            raise UsageError(
                f"state name {name!r} is reserved: statelog uses {KEY_GROUP_COLUMN} and names that begin "
                "with '$' or 'key.'; choose a different name"
            )
        if any(state.name == name for state in self.states):
            raise UsageError(f"state name {name!r} is used twice; give each variable a unique name")

    def _check_time_to_live(self, name: str, ttl_ms: int | None) -> None:
        if ttl_ms is not None and type(ttl_ms) is not int:
            raise UsageError(f"state {name!r}: a time to live must be an int in ms, not {ttl_ms!r}")
        if ttl_ms is not None and (ttl_ms <= 0 or not self._has_ttl):
            raise UsageError(
                f"state {name!r}: a time to live requires the time mode ProcessingTime and must be "
                f"longer than 0 ms (got {ttl_ms})"
            )

    def deleteIfExists(self, stateName: str) -> None:
        """Declare a deletion; if `init` declares the variable again, the tasks empty it."""
        check_not_reserved(stateName)
        self.deleted.add(stateName)
        # What was asked for before is refused on use; asked for again, it may be another kind.
        self.states = [state for state in self.states if state.name != stateName]

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Raise an error: `init` runs without a current key."""
        raise UsageError("timers belong to a key; register them while rows are handled")

    deleteTimer = registerTimer

    def listTimers(self) -> Iterator[int]:
        """Raise an error: `init` runs without a current key."""
        raise UsageError("timers belong to a key; list them while rows are handled")


def check_not_reserved(name: str) -> None:
    """Raise `UsageError` if *name* is reserved by statelog."""
    if name.startswith("$"):
        raise UsageError(f"state name {name!r} is reserved; it cannot be deleted")


class Declared(NamedTuple):
    """
    What a processor declares in `init`.

    Its state, and what it declares to extensions, by name.
    """

    state: OperatorStateSchema
    extras: Mapping[str, object]


def declared_by(
    processor: AnyProcessor,
    operator_id: str,
    key_schema: pa.Schema,
    parse: Callable[[str], StructType],
    *,
    time_mode: str,
) -> Declared:
    """Run `init` and `close` on a copy of *processor*, and return what it declares."""
    trial: Any = copy_of(processor)
    handle = face_of(trial).driver_handle(parse, time_mode == "processingtime")
    method = "init"
    try:
        trial.init(handle)
        method = "close"
        trial.close()
    except (Exception, SystemExit) as error:
        raise ProcessorError(
            f"{type(processor).__name__}.{method} failed: {described(error)}"
        ) from error
    if time_mode != "none":
        handle.states.append(StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([])))
    schema = OperatorStateSchema(
        operator_id, key_schema, tuple(handle.states), deleted=frozenset(handle.deleted)
    )
    OperatorCodec(schema)  # a type that cannot be kept is better refused here than in a task
    return Declared(schema, handle.declared())


def with_added(schema: OperatorStateSchema, settings: QuerySettings) -> OperatorStateSchema:
    """Add the variables of extensions to a schema; see `ExtensionRow.variables`."""
    added: list[StateDescriptor] = []
    for row in EXTENSIONS:
        if row.variables:
            added += loaded(row.variables, FunctionType)(settings)
    return replace(schema, states=(*schema.states, *added))


class Declaration(Protocol):
    """
    What one call of `init` declares to an extension.

    The only argument is a parser of schemas; it takes a schema, and what it describes for errors.
    """

    def __init__(self, struct: Callable[[SchemaLike, str], StructType]) -> None: ...

    def calls(self) -> Mapping[str, Callable[..., object]]:
        """Return the methods that the extension adds to the handle."""

    def declared(self) -> object:
        """Return what `init` declared."""

    @staticmethod
    def check(declared: object, before: Sequence[object], settings: QuerySettings) -> None:
        """Raise `UsageError` if this declaration is not allowed for an operator."""

    @staticmethod
    def batch_part(declared: object | None, settings: QuerySettings) -> object | None:
        """
        Return the part for tasks that process a batch frame.

        Raises `UsageError` where it would not have an effect.
        """


def declaration_of(row: ExtensionRow) -> type[Declaration]:
    """Return an extension's declaration; the extension is imported when it is first used."""
    return loaded(row.declaration, type)


def check_declared(
    declared: Mapping[str, object], before: Sequence[Mapping[str, object]], settings: QuerySettings
) -> None:
    """Raise `UsageError` if this declaration is not allowed; see `Declaration.check`."""
    for row in EXTENSIONS:
        if row.name in declared:
            earlier = [operator[row.name] for operator in before if row.name in operator]
            declaration_of(row).check(declared[row.name], earlier, settings)


def batch_parts(declared: Mapping[str, object], settings: QuerySettings) -> dict[str, object]:
    """Return the extensions' parts for tasks on a batch frame; see `Declaration.batch_part`."""
    parts = {
        row.name: declaration_of(row).batch_part(declared.get(row.name), settings)
        for row in EXTENSIONS
        if row.declaration
    }
    return {name: part for name, part in parts.items() if part is not None}
