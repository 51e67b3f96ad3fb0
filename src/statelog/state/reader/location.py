"""
Read the state of a location in Python: its checkpoints, tables and single keys.

`LocationReader` answers questions about any retained checkpoint with a `StateReader` for each, of
which it keeps the last ones, because questions about one checkpoint come together.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Self

import pyarrow as pa

from statelog.arguments import text
from statelog.checkpoint.batch_record import BatchRecord, operator_index
from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.listing import (
    CheckpointName,
    CheckpointSummary,
    checkpoint_id_of,
    list_checkpoints,
)
from statelog.checkpoint.restore import find_checkpoint
from statelog.errors import ClosedError, ObjectNotFoundError
from statelog.model import CompletedCheckpoint
from statelog.plain_text import facts_as_html
from statelog.state.keys.state_key import StateKey
from statelog.state.reader.rows import python_states
from statelog.state.reader.state_reader import StateReader
from statelog.state.schema import OperatorStateSchema, StateDescriptor
from statelog.store import ObjectStore

_READERS: Final = 2
"""Readers kept open; a comparison needs two."""


class LocationReader:
    """
    The state of one operator in a location, as of any retained checkpoint.

    Nothing is claimed, locked or written.  `LocationState` of the extension `read` is this with all
    that a person asks.

    Args:
        store: Where the location is.
        operator: Name of the operator; None for the only one.

    Attributes: `store`.

    Thread: one at a time.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        operator: str | None = None,
    ) -> None:
        self.store = store
        self._operator = None if operator is None else text(operator, "operator")
        self._readers: dict[tuple[int, str | None], StateReader] | None = {}

    def __repr__(self) -> str:
        operator = "" if self._operator is None else f", operator {self._operator}"
        return f"<state of {self.store.url}{operator}{', closed' if self._readers is None else ''}>"

    def _repr_html_(self) -> str:
        readers = {} if self._readers is None else self._readers
        every = [variable for reader in readers.values() for variable in reader.variables()]
        variables = {variable.name: variable.kind_text for variable in every}
        facts = {
            "operator": self._operator,
            "read last": ", ".join(f"checkpoint {checkpoint_id}" for checkpoint_id, _ in readers),
            "variables": ", ".join(f"{name} ({kind})" for name, kind in variables.items()),
            "closed": "yes" if self._readers is None else "",
        }
        return facts_as_html(f"state of {self.store.url}", facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the state; later reads raise `ClosedError`. Further calls have no effect."""
        readers = self._readers or {}
        self._readers = None
        for reader in readers.values():
            reader.close()

    def checkpoints(self) -> list[CheckpointSummary]:
        """
        Return all checkpoints in ascending order; the ones that are `is_retained` can be read.

        Raises:
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store, about two requests for each checkpoint.
        """
        self._open_readers()
        return list_checkpoints(self.store)

    def variables(self, checkpoint: CheckpointName | None = None) -> tuple[StateDescriptor, ...]:
        """Return the state variables; arguments, errors and blocking as for `reader`."""
        return self.reader(checkpoint).variables()

    def reader(
        self, checkpoint: CheckpointName | None = None, *, variable: str | None = None
    ) -> StateReader:
        """
        Return a reader for a checkpoint, which yields batches of rows.

        It is closed with this state, or when two other checkpoints were asked for.

        Args:
            checkpoint: Its id, "latest", "earliest", the name of a tag, or a time: a `datetime`, or
                text of ISO 8601, UTC without a zone.  None for the newest one.
            variable: Where the query has several operators and none was named, the one that alone
                has this variable is read.

        Raises:
            CheckpointError: The location has no such checkpoint (`reason` "not_found"), or it is
                damaged, or no longer retained.
            UsageError: The query has several operators and none was named, or has no such one.
            IncompatibleFormatError: The checkpoint has a different format version.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store.
        """
        stored = self._checkpoint(checkpoint)
        operator = self._operator
        if operator is None and variable is not None:
            operator = operator_with(variable, stored)
        return self._reader_of(stored, operator)

    def _checkpoint(self, name: CheckpointName | None) -> CompletedCheckpoint:
        """Return a checkpoint, from its open reader if possible; otherwise, blocks on the store."""
        readers = self._open_readers()
        if name is None:
            return find_checkpoint(self.store)
        number = checkpoint_id_of(self.store, name)
        # One that is open already was checked when it was opened.
        if any(of_reader == number for of_reader, _ in readers):
            with suppress(ObjectNotFoundError):
                return read_checkpoint(self.store, number).checkpoint
        return find_checkpoint(self.store, number)

    def _reader_of(self, stored: CompletedCheckpoint, operator: str | None) -> StateReader:
        readers = self._open_readers()
        place = (stored.checkpoint_id, operator)
        reader = readers.pop(place, None)
        if reader is None or reader.checkpoint.position != stored.position:
            reader = StateReader(self.store, stored, operator=operator)
        readers[place] = reader  # the last one used is at the end
        while len(readers) > _READERS:
            readers.pop(next(iter(readers))).close()
        return reader

    def table(
        self,
        variable: str,
        checkpoint: CheckpointName | None = None,
        *,
        key: object = None,
        now_ms: int | None = None,
    ) -> pa.Table:
        """
        Return the rows of a variable: values, list elements, map entries or timers.

        Their columns are described in docs/reference/state-variables.md.

        Args:
            variable: Its name; `$timers` for timers.
            checkpoint: As for `reader`; None for the newest one.
            key: Only the rows of this key, see `get`; None for all.
            now_ms: What expires at or before this time is left out; None is the time of the
                checkpoint's micro-batch.

        Raises:
            UsageError: There is no such variable, or *key* does not fit the key columns.
            CorruptionError: An object is damaged.
            CheckpointError: As `reader`; or the query deleted the checkpoint meanwhile.

        Blocks: On the store.
        """
        reader = self.reader(checkpoint, variable=variable)
        if key is None:
            return reader.table(variable, now_ms=now_ms)
        return rows_of_key(reader, variable, key, now_ms)

    def get(
        self,
        variable: str | None = None,
        key: object = (),
        checkpoint: CheckpointName | None = None,
        *,
        now_ms: int | None = None,
    ) -> Any:
        """
        Return the state of one key; this restores only the key group of that key.

        A value is a dict of its fields, or None.  A list is a list of dicts.  A map is a dict from
        map keys to dicts; a map key of several columns is a tuple.  Timers are an ascending list of
        times in milliseconds.

        Args:
            variable: Its name; `$timers` for timers.  None for a dict of all variables.
            key: The values of the key columns as a tuple; for one column the value alone will do.
            checkpoint: As for `reader`; None for the newest one.
            now_ms: As for `table`.

        Raises:
            UsageError: There is no such variable, *key* has other columns or types, or a column of
                a type whose key group only Spark computes.
            CorruptionError: An object is damaged.
            CheckpointError: As `reader`; or the query deleted the checkpoint meanwhile.

        Blocks: On the store.
        """
        reader = self.reader(checkpoint, variable=variable)
        if variable is not None:
            return state_of_key(reader, variable, key, now_ms)
        names = [described.name for described in reader.variables()]
        return {name: state_of_key(reader, name, key, now_ms) for name in names}

    def _open_readers(self) -> dict[tuple[int, str | None], StateReader]:
        if self._readers is None:
            raise ClosedError(f"the state of {self.store.url} is closed; open it again")
        return self._readers


def stored_with_attachments(
    state: LocationReader, checkpoint: CheckpointName | None, since: CheckpointName | None = None
) -> tuple[CompletedCheckpoint, int]:
    """Return the checkpoint whose attachments to read, and the number after which to start."""
    state._open_readers()
    name = None if checkpoint is None else checkpoint_id_of(state.store, checkpoint)
    first = -1
    if since is not None:
        first = checkpoint_id_of(state.store, since, "since")
    stored = find_checkpoint(state.store, name)
    if state._operator is not None:  # raises: it names the operators
        operator_index(state._operator, BatchRecord.of(stored), state.store.url)
    return stored, first


def has_variable(reader: StateReader, variable: str) -> bool:
    """Return whether a checkpoint contains a readable variable of this name."""
    return any(described.name == variable for described in reader.variables())


def rows_of_key(
    reader: StateReader, variable: str, key: object, now_ms: int | None = None
) -> pa.Table:
    """Return the rows of one key; raises `UsageError` for an unknown variable or an invalid key."""
    sought = StateKey(key, reader.schema.key_schema)
    schema = reader.arrow_schema(variable)
    batches = reader.batches(
        variable, key_groups=sought.key_groups(reader.key_groups), now_ms=now_ms
    )
    return pa.Table.from_batches(map(sought.select, batches), schema=schema)


def operator_with(variable: str, checkpoint: CompletedCheckpoint) -> str | None:
    """Return the only operator that has a variable, or None if none or several have it."""
    operators = BatchRecord.of(checkpoint).operators
    if len(operators) == 1:
        return operators[0].operator_id
    names = [
        operator.operator_id
        for operator in operators
        for state in OperatorStateSchema.from_json(operator.schema).states
        if state.name == variable and not state.dropped
    ]
    return names[0] if len(names) == 1 else None


def state_of_key(
    reader: StateReader, variable: str, key: object, now_ms: int | None = None
) -> object:
    """Return the state of one key in the form of `python_states`; raises like `rows_of_key`."""
    table = rows_of_key(reader, variable, key, now_ms)
    (state,) = python_states(
        table, reader.schema.states[reader.schema.state_id(variable)], [table.num_rows]
    )
    return state
