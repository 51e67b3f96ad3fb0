"""
Read the state of a location in Python.

`LocationState` adds to the tables and keys of checkpoints what the features of statelog read: the
history of a key, what changed, SQL, a live replica, and what checkpoints name besides state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from statelog.checkpoint.attachments import UnreadableAttachment
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import CheckpointName, CheckpointState, CheckpointSummary
from statelog.errors import CheckpointError, CheckpointNotFoundError
from statelog.extensions.bad_records.stored import ChosenLetters, letters_rows, letters_table
from statelog.extensions.broadcasts.stored import (
    BroadcastVersion,
    broadcast_table,
    broadcast_versions,
)
from statelog.extensions.read.changes import Differences, feed_of
from statelog.extensions.read.held_state import KeyVersion
from statelog.extensions.read.replica import Replica
from statelog.extensions.read.sql import run_sql_on
from statelog.extensions.side_outputs.stored import (
    KeptSideOutput,
    kept_side_outputs,
    side_output_rows,
)
from statelog.model import KeyGroupRange
from statelog.state.reader.checkpoint_chain import as_of_ms
from statelog.state.reader.location import (
    LocationReader,
    has_variable,
    state_of_key,
    stored_with_attachments,
)
from statelog.state.reader.state_reader import StateReader

_UNREADABLE: Final = (CheckpointState.DAMAGED, CheckpointState.INCOMPATIBLE)


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """
    The history of a key, as far back as it can be read.

    Args:
        versions: The state as of each checkpoint that can be read, ascending.
        unreadable: The checkpoints that cannot be read.
    """

    versions: list[KeyVersion]
    unreadable: tuple[CheckpointSummary, ...]

    def checked(self) -> list[KeyVersion]:
        """
        Return the versions of a history that does not have gaps.

        Raises:
            CheckpointError: A checkpoint cannot be read; the message names all of them.
        """
        if not self.unreadable:
            return self.versions
        ids = ", ".join(str(summary.checkpoint_id) for summary in self.unreadable)
        first = self.unreadable[0]
        damaged = any(summary.state is CheckpointState.DAMAGED for summary in self.unreadable)
        raise CheckpointError(
            f"the history has gaps: checkpoint {ids} cannot be read ({first.problem}). `statelog "
            "verify` reports the damage; to read the state as of a different checkpoint, pass its id",
            reason="damaged" if damaged else "incompatible",
            checkpoint_id=first.checkpoint_id,
        )


class LocationState(LocationReader):
    """
    The state of one operator as of any retained checkpoint, and the changes in between.

    Made by `statelog.open`.  Nothing is claimed, locked or written: a query may write to the
    location meanwhile, and may delete a checkpoint that is read, which raises
    `CheckpointSubsumedError`.

    A state is what the micro-batch of the checkpoint left behind: what had expired at its time is
    left out, and nothing else.  `now_ms` asks for another time, in milliseconds since 1970.

    Args:
        store: Where the location is.
        operator: Name of the operator; None for the only one.

    Thread: one at a time.
    """

    def history(self, variable: str, key: object, *, now_ms: int | None = None) -> list[KeyVersion]:
        """
        Return the state of one key as of each retained checkpoint, in ascending order.

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
            names = [state.name for reader in readers for state in reader.variables()]
        else:
            if not any(has_variable(reader, variable) for reader in readers):
                readers[1].arrow_schema(variable)  # raises: it names the variables
            names = [variable]
        times = [as_of_ms(reader.checkpoint) if now_ms is None else now_ms for reader in readers]
        return Differences(*readers, list(dict.fromkeys(names))).table(*times)

    def feed(
        self,
        since: CheckpointName | None = None,
        checkpoint: CheckpointName | None = None,
        variable: str | None = None,
        *,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        Return what each checkpoint in a range changed.

        One row for each key that a checkpoint changed, with the columns `change` (insert, update or
        delete), `checkpoint_id`, `key_group`, `key.<name>`, then `before.<variable>` and
        `after.<variable>`, as `changes` has them.  The state of *since* with the rows
        applied in their order is the state of *checkpoint*.  Rows of one key are in the order of
        checkpoints.

        The changes are taken from the log.  What expires is not in it: an expired value is no
        longer there before a later change, and is no delete.  Entries have `expires_at_ms`, by
        which a copy of the state lets them expire too.  All is shown in the schema of *checkpoint*.

        Args:
            since: A checkpoint, as for `reader`, whose state is known; None for the whole
                state of *checkpoint*, as inserts.
            checkpoint: The last checkpoint; None for the newest one.
            variable: The only variable to show; None for all.
            key_groups: Which key groups; None for all.

        Returns:
            Batches, read from the store as they are taken.  Closing this state ends them.

        Raises:
            UsageError: There is no such variable; *since* is newer than *checkpoint*.
            CheckpointSubsumedError: A checkpoint in between was deleted.
            CheckpointError: *checkpoint* does not continue *since*, because the query was rewound
                (`reason` "not_newer").
            CorruptionError: An object is damaged.

        Blocks: On the store, here and between batches.  Held are a few key groups of the state
            *since*, once, and the changes of some checkpoints in them.
        """
        return feed_of(self, since, checkpoint, variable, key_groups)

    def follow(
        self, *, key_groups: KeyGroupRange | None = None, interval_s: float | None = 1.0
    ) -> Replica:
        """
        Return a live replica: an in-memory copy of the newest state that follows the query.

        It reads the log of each newer checkpoint, and sends nothing to the query.  Closing this
        state does not close it.

        Args:
            key_groups: Which key groups to hold; None for all.
            interval_s: Seconds between two looks for a newer checkpoint, on a thread of the
                replica; None for none: then `Replica.refresh` looks.

        Raises:
            CheckpointNotFoundError: The location does not contain a checkpoint yet.
            CheckpointError: As `reader`.
            UsageError: As `reader`; the operator has no such key groups.
            CorruptionError: An object is damaged.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store, until the newest checkpoint is restored.
        """
        self._open_readers()
        return Replica(
            self.store,
            operator=self._operator,
            key_groups=key_groups,
            interval_s=interval_s,
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
        names = [operator.operator_id for operator in BatchRecord.of(stored).operators]
        if self._operator is None and len(names) > 1:
            readers = [StateReader(self.store, stored, operator=name) for name in names]
        else:
            readers = [self._reader_of(stored, self._operator)]
        return run_sql_on(readers, statement, allow_files=allow_files)

    def dead_letters(
        self,
        checkpoint: CheckpointName | None = None,
        *,
        since: CheckpointName | None = None,
        unreadable: list[UnreadableAttachment] | None = None,
    ) -> pa.Table:
        """
        Return the retained dead letters.

        The calls of the processor that failed and were left out.

        One row for each failed call, oldest first: `checkpoint_id` and `batch_id` of the
        micro-batch, `failed_at`, `operator`, `key`, `method`, the `timers` of a call for timers,
        `error`, `message` and `traceback`, `row_count`, `rows` and `initial_rows`.  Keys and rows
        are JSON.  The setting `onError="dead-letter"` keeps them.

        Args:
            checkpoint: As for `reader`; None for the newest one.
            since: Only what failed after this checkpoint, which may be deleted by now; None
                for all.
            unreadable: Receives the objects that are damaged, and the others are read.

        Raises:
            CorruptionError: An object is damaged, and *unreadable* is not given.
            CheckpointError: As `reader`; or the query deleted dead letters meanwhile.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store.
        """
        stored, since = stored_with_attachments(self, checkpoint, since)
        return letters_table(ChosenLetters(self.store, stored, self._operator, since, unreadable))

    def dead_letter_rows(
        self,
        checkpoint: CheckpointName | None = None,
        *,
        since: CheckpointName | None = None,
        unreadable: list[UnreadableAttachment] | None = None,
    ) -> pa.Table:
        """
        Return the input rows of dead letters, with the columns and types of the input.

        They are in the order in which they failed, so they can be written to the source of the
        query once its processor is corrected.  For arguments and further errors see `dead_letters`.

        Raises:
            UsageError: They are of several operators (`operator` of `statelog.open` names one), or
                a column had other types before.

        Blocks: On the store.
        """
        stored, since = stored_with_attachments(self, checkpoint, since)
        return letters_rows(ChosenLetters(self.store, stored, self._operator, since, unreadable))

    def side_outputs(self, checkpoint: CheckpointName | None = None) -> tuple[KeptSideOutput, ...]:
        """
        Return the side outputs that have retained rows, by name.

        Arguments and errors: see `reader`.

        Blocks: On the store.
        """
        return kept_side_outputs(stored_with_attachments(self, checkpoint)[0], self._operator)

    def side_output(
        self,
        name: str,
        checkpoint: CheckpointName | None = None,
        *,
        since: CheckpointName | None = None,
    ) -> pa.Table:
        """
        Return the retained rows of a side output, in the order of their micro-batches.

        Their columns are `checkpoint_id` and `batch_id` of the micro-batch, then those that the
        processor declared.  A table without columns says that none are kept.

        Args:
            name: The side output, as `handle.sideOutput` has it.
            checkpoint: As for `reader`; None for the newest one.
            since: Only rows of micro-batches after this checkpoint, which may be deleted by
                now; None for all.

        Raises:
            UsageError: A column had other types before, which cannot be joined.
            CorruptionError: An object is damaged.
            CheckpointError: As `reader`; or the query deleted the rows meanwhile.
            ClosedError: The state is closed.
            StoreError: The store failed.

        Blocks: On the store.
        """
        stored, since = stored_with_attachments(self, checkpoint, since)
        return side_output_rows(self.store, stored, name, self._operator, since)

    def broadcasts(self, checkpoint: CheckpointName | None = None) -> tuple[BroadcastVersion, ...]:
        """
        Return the versions of broadcast tables that a checkpoint's micro-batch read, by name.

        Arguments and errors: see `reader`.

        Blocks: On the store.
        """
        return broadcast_versions(stored_with_attachments(self, checkpoint)[0])

    def broadcast(self, name: str, checkpoint: CheckpointName | None = None) -> pa.Table:
        """
        Return the rows of a broadcast table that a checkpoint's micro-batch read.

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
        return broadcast_table(self.store, stored_with_attachments(self, checkpoint)[0], name)


def key_history(
    state: LocationReader, variable: str, key: object, now_ms: int | None
) -> KeyHistory:
    """Return the state of one key as of each retained checkpoint; see `LocationState.history`."""
    versions: list[KeyVersion] = []
    was_present = False
    listed = state.checkpoints()
    for entry in listed:
        if not entry.is_retained:
            continue
        try:
            reader = state.reader(entry.checkpoint_id, variable=variable)
            time_ms = reader.as_of_ms if now_ms is None else now_ms
            is_present = has_variable(reader, variable)
            value = state_of_key(reader, variable, key, time_ms) if is_present else None
        except CheckpointNotFoundError:
            continue  # it was deleted since it was listed
        was_present = was_present or is_present
        versions.append(
            KeyVersion(
                checkpoint_id=entry.checkpoint_id,
                batch_id=reader.batch_id,
                as_of_ms=time_ms,
                value=value,
            )
        )
    if not was_present:
        state.reader(variable=variable).arrow_schema(variable)  # raises: it names the variables
    return KeyHistory(versions, tuple(entry for entry in listed if entry.state in _UNREADABLE))


def open(
    location: str | os.PathLike[str],
    *,
    operator: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> LocationState:
    """
    Open the state of a location for reading.

    Example:
        with statelog.open("s3://bucket/jobs/totals") as state:
            print(state.get("total", "c1"))

    Args:
        location: Path or URL of the state location, or of the checkpointLocation of a query whose
            state is in it.
        operator: Name of the operator where the query has several.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        UsageError: There is no such directory.
        StoreError: The store failed.

    Blocks: On the store, a listing.
    """
    store = open_state(location, options=storage_options)
    return LocationState(store, operator=operator)
