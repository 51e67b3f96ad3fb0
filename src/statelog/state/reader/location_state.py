"""
The state of a location in Python: tables, single keys, their history, and what changed.

`LocationState` answers questions about any retained checkpoint with a `StateReader` for each, of
which it keeps the last ones, because questions about one checkpoint come together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from statelog.arguments import text
from statelog.checkpoint.at_time import CheckpointName, checkpoint_id_of
from statelog.checkpoint.batch_record import BatchRecord, operator_index
from statelog.checkpoint.history import open_state, read_checkpoint
from statelog.checkpoint.listing import CheckpointSummary, list_checkpoints
from statelog.checkpoint.restore import find_checkpoint
from statelog.errors import ClosedError, ObjectNotFoundError
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.notebook import facts_as_html
from statelog.state.reader.broadcasts import (
    BroadcastVersion,
    broadcast_table,
    broadcast_versions,
)
from statelog.state.reader.chain import as_of_ms, chain_before
from statelog.state.reader.differences import Differences
from statelog.state.reader.feed import ChangeFeed
from statelog.state.reader.lookup import (
    KeyVersion,
    has_variable,
    key_history,
    operator_with,
    rows_of_key,
    state_of_key,
)
from statelog.state.reader.replica import Replica
from statelog.state.reader.side_outputs import (
    KeptSideOutput,
    kept_side_outputs,
    side_output_rows,
)
from statelog.state.reader.sql import run_sql_on, run_sql_on_all
from statelog.state.reader.state_reader import StateReader
from statelog.state.recordings.dead_letters import ChosenLetters, letters_rows, letters_table
from statelog.state.recordings.location import UnreadableRecording
from statelog.state.schema.descriptors import StateDescriptor
from statelog.store import ObjectStore

_READERS: Final = 2
"""Readers kept open; `changes` needs two."""


class LocationState:
    """
    The state of one operator of a location, as of any retained checkpoint.

    Made by `statelog.open`.  Nothing is claimed, locked or written: a query may write to the
    location meanwhile, and may delete a checkpoint that is read, which raises `CheckpointError`
    with `reason` "subsumed".

    A state is what the micro-batch of the checkpoint left behind: what had expired at its time is
    left out, and nothing else.  `now_ms` asks for another time, in milliseconds since 1970.

    Args:
        store: Where the location is.
        operator: Name of the operator; None for the only one.

    Thread: one at a time.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        operator: str | None = None,
    ) -> None:
        self._store = store
        self._operator = None if operator is None else text(operator, "operator")
        self._readers: dict[tuple[int, str | None], StateReader] | None = {}

    def __repr__(self) -> str:
        operator = "" if self._operator is None else f", operator {self._operator}"
        return (
            f"<state of {self._store.url}{operator}{', closed' if self._readers is None else ''}>"
        )

    def _repr_html_(self) -> str:
        readers = {} if self._readers is None else self._readers
        every = [variable for reader in readers.values() for variable in reader.variables()]
        variables = {variable.name: variable.kind_text for variable in every}
        facts = {
            "operator": self._operator,
            "read last": ", ".join(f"checkpoint {each}" for each, _ in readers),
            "variables": ", ".join(f"{name} ({kind})" for name, kind in variables.items()),
            "closed": "yes" if self._readers is None else "",
        }
        return facts_as_html(f"state of {self._store.url}", facts)

    def __enter__(self) -> LocationState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what was read; no more can be read.  Further calls do nothing."""
        readers, self._readers = self._readers or {}, None
        for reader in readers.values():
            reader.close()

    def checkpoints(self) -> list[CheckpointSummary]:
        """
        Return all checkpoints, ascending by id; those that are `is_retained` can be read.

        Raises:
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store, about two requests for each checkpoint.
        """
        self._open_readers()
        return list_checkpoints(self._store)

    def variables(self, checkpoint: CheckpointName | None = None) -> tuple[StateDescriptor, ...]:
        """Return the state variables; arguments, errors and `Blocks:` are those of `reader`."""
        return self.reader(checkpoint).variables()

    def reader(
        self, checkpoint: CheckpointName | None = None, *, variable: str | None = None
    ) -> StateReader:
        """
        Return the reader of a checkpoint, which yields batches of rows.

        It is closed with this state, or when two other checkpoints were asked for.

        Args:
            checkpoint: Its id, "latest", "earliest", the name of a tag, or a time: a `datetime`, or text of
                ISO 8601, UTC without a zone.  None for the newest one.
            variable: Where the query has several operators and none was named, the one that alone
                has this variable is read.

        Raises:
            CheckpointError: The location has no such checkpoint (`reason` "not_found"), or it is
                damaged, or no longer retained.
            UsageError: The query has several operators and none was named, or has no such one.
            IncompatibleFormatError: A newer statelog wrote the checkpoint.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store.
        """
        stored, operator = self._checkpoint(checkpoint), self._operator
        if operator is None and variable is not None:
            operator = operator_with(variable, stored)
        return self._reader_of(stored, operator)

    def _checkpoint(self, name: CheckpointName | None) -> CompletedCheckpoint:
        """Return a checkpoint, from a reader of it where there is one; blocks on the store."""
        readers = self._open_readers()
        if name is None:
            return find_checkpoint(self._store)
        number = checkpoint_id_of(self._store, name)
        if any(of_reader == number for of_reader, _ in readers):
            with suppress(ObjectNotFoundError):
                return read_checkpoint(self._store, number).checkpoint
        return find_checkpoint(self._store, number)

    def _reader_of(self, stored: CompletedCheckpoint, operator: str | None) -> StateReader:
        readers, at = self._open_readers(), (stored.checkpoint_id, operator)
        reader = readers.pop(at, None)
        if reader is None or reader.checkpoint.position != stored.position:
            reader = StateReader(self._store, stored, operator=operator)
        readers[at] = reader  # the last one used is at the end
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
            UsageError: There is no such variable, or *key* is no key of the operator.
            CorruptionError: An object is damaged.
            CheckpointError: As `reader`; or the query deleted the checkpoint meanwhile.

        Blocks: On the store.
        """
        reader = self.reader(checkpoint, variable=variable)
        now_ms = as_of_ms(reader.checkpoint) if now_ms is None else now_ms
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
        Return the state of one key; only its key group is restored.

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
        now_ms = as_of_ms(reader.checkpoint) if now_ms is None else now_ms
        if variable is not None:
            return state_of_key(reader, variable, key, now_ms)
        names = [each.name for each in reader.variables()]
        return {name: state_of_key(reader, name, key, now_ms) for name in names}

    def history(self, variable: str, key: object, *, now_ms: int | None = None) -> list[KeyVersion]:
        """
        Return the state of one key as of each retained checkpoint, ascending.

        A checkpoint that the query deletes meanwhile is left out.

        Args:
            variable: Its name; one checkpoint at least has it.
            key: As for `get`.
            now_ms: What expires at or before this time is left out of all; None is the time of
                each checkpoint's micro-batch.

        Raises:
            UsageError: As `get`; no retained checkpoint has the variable.
            CheckpointError: There is no checkpoint, or one cannot be read.
            CorruptionError: An object is damaged.

        Blocks: On the store, for each retained checkpoint.
        """
        return key_history(self, variable, key, now_ms).checked()

    def changes(
        self,
        before: CheckpointName,
        after: CheckpointName,
        variable: str | None = None,
        *,
        now_ms: int | None = None,
    ) -> pa.Table:
        """
        Return the keys whose state differs between two checkpoints.

        One row for each key, with the columns `change` (insert, update or delete), `key_group`,
        `key.<name>`, then `before.<variable>` and `after.<variable>`: what the key had, nested as
        in a snapshot, and null for none.  The state of *before* with the keys replaced, deleted and
        inserted as the rows say is the state of *after*.  A field that is null equals one that the
        other schema does not have.

        Args:
            before: The checkpoint to compare with, as for `reader`.
            after: The other checkpoint; it may be the older one.
            variable: The only variable to compare; None for all.
            now_ms: What expires at or before this time is left out of both; None is the time of
                each checkpoint's micro-batch, so that what expired in between is a delete.

        Raises:
            UsageError: Neither checkpoint has the variable.
            CorruptionError: An object is damaged.
            CheckpointError: As `reader`; or the query deleted a checkpoint meanwhile.

        Blocks: On the store.  Both states are read whole; held are the key groups that are restored
            together, and the rows that differ.
        """
        readers = self.reader(before), self.reader(after)
        if variable is None:
            names = [each.name for reader in readers for each in reader.variables()]
        else:
            if not any(has_variable(reader, variable) for reader in readers):
                readers[1].arrow_schema(variable)  # raises: it names the variables
            names = [variable]
        times = [as_of_ms(each.checkpoint) if now_ms is None else now_ms for each in readers]
        return Differences(*readers, list(dict.fromkeys(names))).table(*times)

    def feed(
        self,
        since_checkpoint: CheckpointName | None = None,
        checkpoint: CheckpointName | None = None,
        variable: str | None = None,
        *,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        Return what each checkpoint changed, from one to another.

        One row for each key that a checkpoint changed, with the columns `change` (insert, update or
        delete), `checkpoint_id`, `key_group`, `key.<name>`, then `before.<variable>` and
        `after.<variable>`, as `changes` has them.  The state of *since_checkpoint* with the rows
        applied in their order is the state of *checkpoint*.  Rows of one key are in the order of
        checkpoints.

        The changes are taken from the log.  What expires is not in it: an expired value is no longer
        there before a later change, and is no delete.  Entries have `expires_at_ms`, by which a copy
        of the state lets them expire too.  All is shown in the schema of *checkpoint*.

        Args:
            since_checkpoint: A checkpoint, as for `reader`, whose state is known; None for the whole
                state of *checkpoint*, as inserts.
            checkpoint: The last checkpoint; None for the newest one.
            variable: The only variable to show; None for all.
            key_groups: Which key groups; None for all.

        Returns:
            Batches, read from the store as they are taken.  Closing this state ends them.

        Raises:
            UsageError: There is no such variable; *since_checkpoint* is newer than *checkpoint*.
            CheckpointError: A checkpoint in between was deleted (`reason` "subsumed"), or *checkpoint* does
                not continue *since_checkpoint*, because the query was rewound ("not_newer").
            CorruptionError: An object is damaged.

        Blocks: On the store, here and between batches.  Held are a few key groups of the state
            *since_checkpoint*, once, and the changes of some checkpoints in them.
        """
        last = self.reader(checkpoint)
        if variable is not None:
            last.arrow_schema(variable)  # raises: it names the variables
        names = None if variable is None else [variable]
        if since_checkpoint is None:
            return ChangeFeed(last, [], names).batches(key_groups)
        after = checkpoint_id_of(self._store, since_checkpoint, "since_checkpoint")
        if after == last.checkpoint_id:
            return iter(())
        first = find_checkpoint(self._store, after)
        chain = chain_before(self._store, last.checkpoint, first.checkpoint_id)
        return ChangeFeed(last, chain, names).batches(key_groups)

    def follow(
        self, *, key_groups: KeyGroupRange | None = None, interval: float | None = 1.0
    ) -> Replica:
        """
        Return a live replica: a copy in memory of the newest state, which follows the query.

        It comes to each newer checkpoint by the log of that checkpoint alone, and asks the query
        nothing.  Closing this state does not close it.

        Args:
            key_groups: Which key groups to hold; None for all.
            interval: Seconds between two looks for a newer checkpoint, on a thread of the replica;
                None for none: then `Replica.refresh` looks.

        Raises:
            CheckpointError: The location has no checkpoint yet (`reason` "not_found"), or as
                `reader`.
            UsageError: As `reader`; the operator has no such key groups.
            CorruptionError: An object is damaged.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store, until the newest checkpoint is restored.
        """
        self._open_readers()
        return Replica(
            self._store,
            operator=self._operator,
            key_groups=key_groups,
            interval_s=interval,
        )

    def sql(
        self, statement: str, checkpoint: CheckpointName | None = None, *, allow_files: bool = False
    ) -> pa.Table:
        """
        Return the result of an SQL statement over the state variables, through DuckDB.

        Each variable is a table of its name, with the columns of `table`; the timers are the table
        `timers` too.  Without a named operator these are the variables that one operator alone has.
        Variables that the statement names are read whole, others are not.

        Args:
            statement: One statement in the dialect of DuckDB.
            checkpoint: As for `reader`; None for the newest one.
            allow_files: The statement may read and write files, attach databases and load
                extensions, with the rights of this process.

        Raises:
            UsageError: The statement is wrong, names no state variable, or needs *allow_files*.
            RequirementError: DuckDB is not installed: `pip install 'statelog[sql]'`.
            CorruptionError: An object is damaged.
            CheckpointError: As `reader`; or the query deleted the checkpoint meanwhile.

        Blocks: On the store, and while the statement runs.
        """
        stored = self._checkpoint(checkpoint)
        if self._operator is None and len(BatchRecord.of(stored).operators) > 1:
            return run_sql_on_all(self._store, stored, statement, allow_files=allow_files)
        reader = self._reader_of(stored, self._operator)
        return run_sql_on([reader], statement, allow_files=allow_files)

    def dead_letters(
        self,
        checkpoint: CheckpointName | None = None,
        *,
        since_checkpoint: CheckpointName | None = None,
        unreadable: list[UnreadableRecording] | None = None,
    ) -> pa.Table:
        """
        Return the dead letters that are kept: the calls of the processor that failed and were left out.

        One row for each failed call, oldest first: `checkpoint_id` and `batch_id` of the micro-batch,
        `failed_at`, `operator`, `key`, `method`, the `timers` of a call for timers, `error`, `message`
        and `traceback`, `row_count`, `rows` and `initial_rows`.  Keys and rows are JSON.  The setting
        `onError="dead-letter"` keeps them.

        Args:
            checkpoint: As for `reader`; None for the newest one.
            since_checkpoint: Only what failed after this checkpoint, which may be deleted by now; None
                for all.
            unreadable: Receives the objects that are damaged, and the others are read.

        Raises:
            CorruptionError: An object is damaged, and *unreadable* is not given.
            CheckpointError: As `reader`; or the query deleted dead letters meanwhile.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store.
        """
        stored, since = self._kept_by(checkpoint, since_checkpoint)
        return letters_table(ChosenLetters(self._store, stored, self._operator, since, unreadable))

    def dead_letter_rows(
        self,
        checkpoint: CheckpointName | None = None,
        *,
        since_checkpoint: CheckpointName | None = None,
        unreadable: list[UnreadableRecording] | None = None,
    ) -> pa.Table:
        """
        Return the input rows of the dead letters with the columns and types of the input.

        They are in the order in which they failed, so they can be written to the source of the query
        once its processor is corrected.  For arguments and further errors see `dead_letters`.

        Raises:
            UsageError: They are of several operators (`operator` of `statelog.open` names one), or a
                column had other types before.

        Blocks: On the store.
        """
        stored, since = self._kept_by(checkpoint, since_checkpoint)
        return letters_rows(ChosenLetters(self._store, stored, self._operator, since, unreadable))

    def side_outputs(self, checkpoint: CheckpointName | None = None) -> tuple[KeptSideOutput, ...]:
        """
        Return the side outputs with rows that are kept, by name; arguments and errors: see `reader`.

        Blocks: On the store.
        """
        return kept_side_outputs(self._kept_by(checkpoint, None)[0], self._operator)

    def side_output(
        self,
        name: str,
        checkpoint: CheckpointName | None = None,
        *,
        since_checkpoint: CheckpointName | None = None,
    ) -> pa.Table:
        """
        Return the rows of a side output that are kept, in the order of their micro-batches.

        Their columns are `checkpoint_id` and `batch_id` of the micro-batch, then those that the
        processor declared.  A table without columns says that none are kept.

        Args:
            name: The side output, as `handle.sideOutput` has it.
            checkpoint: As for `reader`; None for the newest one.
            since_checkpoint: Only rows of micro-batches after this checkpoint, which may be deleted by
                now; None for all.

        Raises:
            UsageError: A column had other types before, which cannot be joined.
            CorruptionError: An object is damaged.
            CheckpointError: As `reader`; or the query deleted the rows meanwhile.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store.
        """
        stored, since = self._kept_by(checkpoint, since_checkpoint)
        return side_output_rows(self._store, stored, name, self._operator, since)

    def broadcasts(self, checkpoint: CheckpointName | None = None) -> tuple[BroadcastVersion, ...]:
        """
        Return the versions of broadcast tables that the micro-batch of a checkpoint saw, by name.

        Arguments and errors: see `reader`.

        Blocks: On the store.
        """
        return broadcast_versions(self._kept_by(checkpoint, None)[0])

    def broadcast(self, name: str, checkpoint: CheckpointName | None = None) -> pa.Table:
        """
        Return the rows of a broadcast table that the micro-batch of a checkpoint saw.

        Args:
            name: The table, as the setting `broadcast` has it.
            checkpoint: As for `reader`; None for the newest one.

        Raises:
            UsageError: The micro-batch saw no table of this name.
            CorruptionError: The object is damaged.
            CheckpointError: As `reader`; or the query deleted the version meanwhile.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store.
        """
        return broadcast_table(self._store, self._kept_by(checkpoint, None)[0], name)

    def _kept_by(
        self, checkpoint: CheckpointName | None, since: CheckpointName | None
    ) -> tuple[CompletedCheckpoint, int]:
        self._open_readers()
        name = None if checkpoint is None else checkpoint_id_of(self._store, checkpoint)
        first = -1
        if since is not None:
            first = checkpoint_id_of(self._store, since, "since_checkpoint")
        stored = find_checkpoint(self._store, name)
        if self._operator is not None:  # raises: it names the operators
            operator_index(self._operator, BatchRecord.of(stored), self._store.url)
        return stored, first

    def _open_readers(self) -> dict[tuple[int, str | None], StateReader]:
        if self._readers is None:
            raise ClosedError(f"the state of {self._store.url} is closed; open it again")
        return self._readers


def open(
    location: str | os.PathLike[str],
    *,
    operator: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> LocationState:
    """
    Open the state of a location, to read it.

    Example:
        with statelog.open("s3://bucket/jobs/totals") as state:
            print(state.get("total", "c1"))

    Args:
        location: Path or URL of the state location, or of the checkpointLocation of a query whose
            state is in it.
        operator: Name of the operator (its operatorId), where the query has several.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        UsageError: There is no such directory.
        StoreError: The store failed.

    Blocks: On the store, a listing.
    """
    store = open_state(location, options=storage_options)
    return LocationState(store, operator=operator)
