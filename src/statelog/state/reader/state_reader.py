"""
Read the state of a location as of a checkpoint.

The state is restored as a task restores it: the newest snapshot of each key group, then the log
after it, every byte verified.  Nothing is claimed, locked or written, so a location can be read
while a query writes to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Final

import numpy as np
import pyarrow as pa

from statelog.arguments import instance
from statelog.changelog.reader import read_logs
from statelog.checkpoint.batch_record import BatchRecord, operator_index
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import CheckpointName, given_checkpoint_id
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import retained_checkpoints
from statelog.errors import (
    CheckpointError,
    ClosedError,
    CorruptionError,
    ObjectNotFoundError,
    StatelogError,
    UsageError,
)
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.state.columnar.run_set import contiguous
from statelog.state.encoding.changes import UNDECODABLE, OperatorCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.heap import MemoryLimits, blocks
from statelog.state.keyed_state import KeyedState
from statelog.state.reader.checkpoint_chain import Changes, as_of_ms, own_log
from statelog.state.reader.rows import CollectionRows, VariableRows, snapshot_rows, whole_snapshots
from statelog.state.schema import OperatorStateSchema, StateDescriptor
from statelog.store import CachedStore, ObjectStore

_PORTION_BYTES: Final = 32 * 1024 * 1024
"""Key groups are restored together up to about this many stored bytes, with at least one."""
_CACHED_BYTES: Final = 128 * 1024 * 1024
"""Objects kept in memory, because several portions need them."""
_BUDGET_BYTES: Final = 256 * 1024 * 1024
"""See `MemoryLimits`: above a fraction of it, a portion is stored in columns, not in dicts."""
_BATCH_ROWS: Final = 65_536


class StateReader:
    """
    The state of one operator as of one checkpoint.

    Made by `LocationState.reader`.  docs/reference/state-variables.md describes the columns of a
    variable's rows.

    Args:
        store: Where the location is.
        checkpoint: What to read.
        operator: Name of the operator; None for the only one.

    Raises:
        CheckpointError: The checkpoint was not made by a streaming query (`reason`
            "incompatible").
        UsageError: The query has several operators and none was named, or has no such operator.
        IncompatibleFormatError: Its state schema has a different version.

    Thread: one at a time.
    """

    def __init__(
        self,
        store: ObjectStore,
        checkpoint: CompletedCheckpoint,
        *,
        operator: str | None = None,
    ) -> None:
        self._store = store
        self._checkpoint = checkpoint
        record = BatchRecord.of(checkpoint)
        index = operator_index(operator, record, store.url)
        # The key groups of a checkpoint are divided evenly among the operators of its query.
        groups = checkpoint.max_parallelism // len(record.operators)
        self._key_groups = KeyGroupRange(index * groups, (index + 1) * groups - 1)
        self._codec = OperatorCodec(OperatorStateSchema.from_json(record.operators[index].schema))
        self._cache: CachedStore | None = CachedStore(store, _CACHED_BYTES)

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str],
        checkpoint: CheckpointName | None = None,
        *,
        storage_options: Mapping[str, object] | None = None,
        operator: str | None = None,
    ) -> StateReader:
        """
        Open a state location as of a checkpoint.

        Args:
            location: Path or URL of the state location, or of the checkpointLocation that has it.
            checkpoint: An id, "latest", "earliest", a tag or a time; None for the newest one.
            storage_options: Options of the store's client, as for `open_store`.
            operator: Name of the operator, where the query has several.

        Raises:
            CheckpointError: The location has no such checkpoint (`reason` "not_found"; the message
                names those it has), or it is damaged, or no longer retained.
            UsageError: There is no such directory, or *operator* is needed or unknown.
            IncompatibleFormatError: The checkpoint has a different format version.
            StoreError: The store failed.

        Blocks: On the store.
        """
        store = open_state(location, options=storage_options)
        base = find_checkpoint(store, given_checkpoint_id(store, checkpoint))
        return cls(store, base, operator=operator)

    def __enter__(self) -> StateReader:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the data that was read; later reads fail."""
        self._cache = None

    def of(self, checkpoint: CompletedCheckpoint) -> StateReader:
        """
        Return a reader of a different checkpoint that uses this reader's schema and cache.

        Args:
            checkpoint: This one, or one before it.

        Raises:
            UsageError: The operator has other key groups there.
        """
        other = StateReader(self._store, checkpoint, operator=self.schema.operator_id)
        if other.key_groups != self.key_groups:
            raise UsageError(
                f"operator {self.schema.operator_id} of {self._store.url} has the key groups "
                f"{other.key_groups} in checkpoint {other.checkpoint_id}, but {self.key_groups} in "
                f"checkpoint {self.checkpoint_id}; their states cannot be compared"
            )
        # The same schema for both, so that rows can be compared; the same cache, so that shared
        # objects are read once.
        other._codec = self._codec
        other._cache = self._cache
        return other

    @property
    def store(self) -> ObjectStore:
        """The store, which caches recently read objects; raises `ClosedError` after `close`."""
        if self._cache is None:
            raise ClosedError(f"the reader of {self._store.url} is closed; open a new one")
        return self._cache

    @property
    def checkpoint(self) -> CompletedCheckpoint:
        """The checkpoint being read."""
        return self._checkpoint

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint."""
        return self._checkpoint.checkpoint_id

    @property
    def batch_id(self) -> int:
        """The id of the micro-batch that created the checkpoint."""
        return BatchRecord.of(self._checkpoint).batch_id

    @property
    def as_of_ms(self) -> int:
        """The time of the micro-batch, in milliseconds since 1970; it determines expiry."""
        return as_of_ms(self._checkpoint)

    def changed_groups(self, since: CompletedCheckpoint) -> list[KeyGroupRange]:
        """
        Return the key groups whose state may differ from a second checkpoint, in ascending order.

        Raises:
            Exception: As `batches`.

        Blocks: On the store; reads the log after the other checkpoint.
        """
        changes = Changes.of(since, self._checkpoint, self.key_groups)
        with self.explained():
            return contiguous(sorted(changes.key_groups(self.store)))

    def own_changes(self, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        """
        Yield the changes that the checkpoint itself made, like `read_change_batches`.

        Raises:
            Exception: As `batches`.

        Blocks: On the store, between batches.
        """
        log = own_log(self._checkpoint, key_groups)
        parts = [(handle, handle.key_group_range.intersection(key_groups)) for handle in log]
        with self.explained():
            for batches in read_logs(self.store, parts):
                yield from batches

    @property
    def schema(self) -> OperatorStateSchema:
        """The key and the variables of the operator, as of the checkpoint."""
        return self._codec.schema

    @property
    def key_groups(self) -> KeyGroupRange:
        """All key groups of the operator."""
        return self._key_groups

    def variables(self) -> tuple[StateDescriptor, ...]:
        """Return the variables that can be read, which excludes dropped ones."""
        return tuple(self.schema.states[state_id] for state_id in self._codec.live)

    def arrow_schema(self, variable: str, *, flatten: bool = True) -> pa.Schema:
        """Return the columns of `batches`; raise `UsageError` if the variable does not exist."""
        return self._rows_of(variable, flatten).schema

    def keys_schema(self) -> pa.Schema:
        """Return the columns of `keys`."""
        fields = [pa.field(KEY_GROUP_COLUMN, pa.int32())]
        key = self._codec.key
        for name, column in zip(key.schema.names, key.encode([]), strict=True):
            fields.append(pa.field(f"key.{name}", column.type))
        for state in (self._codec.states[state_id] for state_id in self._codec.live):
            fields.append(pa.field(state.descriptor.name, state.encode_cells([]).type))
        return pa.schema(fields)

    def table(
        self,
        variable: str,
        *,
        key_groups: KeyGroupRange | None = None,
        now_ms: int | None = None,
        include_expired: bool = False,
    ) -> pa.Table:
        """
        Return all rows of one variable as a table; for arguments and errors, see `batches`.

        Blocks: On the store.
        """
        batches = self.batches(
            variable, key_groups=key_groups, now_ms=now_ms, include_expired=include_expired
        )
        return pa.Table.from_batches(batches, schema=self.arrow_schema(variable))

    def tables(
        self,
        *,
        variables: Sequence[str] | None = None,
        key_groups: KeyGroupRange | None = None,
        now_ms: int | None = None,
        include_expired: bool = False,
    ) -> dict[str, pa.Table]:
        """
        Return the rows of several variables by name, restoring the state only once.

        Args:
            variables: Their names; None for all.
            key_groups: See `batches` for all arguments.
            now_ms: See there.
            include_expired: See there.

        Blocks: On the store.
        """
        names = [variable.name for variable in self.variables()] if variables is None else variables
        by_name: dict[str, list[pa.RecordBatch]] = {name: [] for name in names}
        for name, batch in self.rows(
            names, key_groups=key_groups, now_ms=now_ms, include_expired=include_expired
        ):
            by_name[name].append(batch)
        return {
            name: pa.Table.from_batches(batches, schema=self.arrow_schema(name))
            for name, batches in by_name.items()
        }

    def rows(
        self,
        variables: Sequence[str],
        *,
        key_groups: KeyGroupRange | None = None,
        now_ms: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """
        Yield the rows of several variables, restoring the state once; each batch has its variable.

        Arguments and errors: see `batches`.

        Blocks: On the store, between batches.
        """
        rows = {name: self._rows_of(name) for name in variables}
        expired_ms = None if include_expired else self._time(now_ms)
        return self._scan(rows, self._checked(key_groups), expired_ms)

    def batches(
        self,
        variable: str,
        *,
        key_groups: KeyGroupRange | None = None,
        now_ms: int | None = None,
        include_expired: bool = False,
        flatten: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one variable in order of key group, a few key groups at a time.

        Args:
            variable: Its name; `$timers` for timers.
            key_groups: Which key groups; None for all.
            now_ms: What expires at or before this time, in milliseconds since 1970, is left out.
                None is `as_of_ms`.
            include_expired: Return expired rows too, as far as they are still stored: a snapshot
                leaves out what had expired a minute before it was written.
            flatten: False for one row per key, with its list, map or timers as one value.

        Raises:
            UsageError: There is no such variable, or a key group lies outside of the job's.
            CheckpointError: While batches are read: the checkpoint was deleted by the query that
                writes to the location (`reason` "subsumed"), or an object of it is missing
                ("objects_missing").
            CorruptionError: While batches are read: an object is damaged.
            ClosedError: The reader is closed.
            StoreError: The store failed.

        Blocks: On the store, between batches.
        """
        rows = {variable: self._rows_of(variable, flatten)}
        expired_ms = None if include_expired else self._time(now_ms)
        batches = self._scan(rows, self._checked(key_groups), expired_ms)
        return (batch for _, batch in batches)

    def keys(
        self,
        *,
        key_groups: KeyGroupRange | None = None,
        now_ms: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield all state in snapshot columns, one row per key.

        The columns are described in `statelog.state.encoding.snapshot_file`.  A key whose state has
        expired may have a row of nulls.  Arguments and errors: see `batches`.

        Blocks: On the store, between batches.
        """
        checked = self._checked(key_groups)
        expired_ms = None if include_expired else self._time(now_ms)
        parts = (keys for portion in self.portions(checked) for keys in self._keys(portion))
        return parts if expired_ms is None else (self._live(keys, expired_ms) for keys in parts)

    def _time(self, now_ms: int | None) -> int:
        return self.as_of_ms if now_ms is None else now_ms

    def _live(self, keys: pa.RecordBatch, expired_ms: int) -> pa.RecordBatch:
        """Return the rows without entries that expired by *expired_ms*."""
        columns = list(keys.columns)
        for state_id, index in zip(self._codec.live, range(-len(self._codec.live), 0), strict=True):
            state = self._codec.states[state_id]
            if state.expires:
                columns[index] = state.kind.live_column(columns[index], expired_ms)
        return pa.RecordBatch.from_arrays(columns, names=keys.schema.names)

    def _rows_of(self, variable: str, flatten: bool = True) -> VariableRows:
        kind = VariableRows if flatten else CollectionRows
        try:
            return kind(self._codec, self.schema.state_id(variable))
        except KeyError:
            names = ", ".join(repr(state.name) for state in self.variables()) or "none"
            raise UsageError(
                f"checkpoint {self.checkpoint_id} of {self._store.url} does not have a state variable "
                f"{variable!r}; its variables are {names}"
            ) from None

    def _checked(self, key_groups: KeyGroupRange | None) -> KeyGroupRange:
        if key_groups is None:
            return self.key_groups
        instance(key_groups, "key_groups", KeyGroupRange, "a KeyGroupRange")
        if key_groups.intersection(self.key_groups) != key_groups:
            raise UsageError(
                f"key groups {key_groups} are not all in {self.key_groups}, the key groups of "
                f"{self.schema.operator_id} in {self._store.url}"
            )
        return key_groups

    def _scan(
        self, rows: Mapping[str, VariableRows], key_groups: KeyGroupRange, expired_ms: int | None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of several variables, one portion at a time, with the variables' names."""
        for portion in self.portions(key_groups) if rows else ():
            for keys in self._keys(portion):
                for name, variable_rows in rows.items():
                    for batch in variable_rows.batches(keys, expired_ms):
                        yield name, batch

    def _keys(self, portion: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        """Yield the snapshot rows of a portion, whether read directly or restored."""
        with self.explained():
            # Without a log the rows of the snapshots are the state: no restore.
            parts = whole_snapshots(self.store, self._checkpoint.for_range(portion), self._codec)
        if parts is not None:
            tables = snapshot_rows(parts, self._codec)
        else:
            state = self._restored(portion)
            tables = (state.table(block) for block in blocks(portion))
        try:
            for table in tables:
                yield from table.to_batches(max_chunksize=_BATCH_ROWS)
        except StatelogError:
            raise
        except UNDECODABLE as error:
            raise CorruptionError(
                f"the state of checkpoint {self.checkpoint_id} of {self._store.url} does not match the "
                f"schema stored with it: {error}",
                checkpoint_id=self.checkpoint_id,
            ) from error

    def _restored(self, key_groups: KeyGroupRange) -> KeyedState:
        """Restore the state of a portion in the same way as a task would."""
        state = KeyedState(self._codec, MemoryLimits(_BUDGET_BYTES))
        store = self.store
        handle = self._checkpoint.for_range(key_groups)
        with self.explained():
            state.catch_up(key_groups, self.checkpoint_id, (), lambda: (store, handle))
        return state

    def portions(self, key_groups: KeyGroupRange) -> Iterator[KeyGroupRange]:
        """Split some of the operator's key groups into ranges that are restored together."""
        return portions(stored_bytes(self._checkpoint), key_groups, _PORTION_BYTES)

    def explained(self) -> AbstractContextManager[None]:
        """Return a context manager that explains why an object of the checkpoint is missing."""
        return explained(self._store, self.checkpoint_id)


@contextmanager
def explained(store: ObjectStore, checkpoint_id: int) -> Iterator[None]:
    """
    Raise an error that explains why an object of a checkpoint is missing.

    Raises:
        CheckpointError: The query deleted the checkpoint (`reason` "subsumed"), or an object of it
            is missing ("objects_missing").
    """
    try:
        yield
    except ObjectNotFoundError as error:
        try:
            # What is retained now tells a deleted checkpoint from a location that lost an object.
            retained_now = retained_checkpoints(store)
        except StatelogError:
            retained_now = ()
        path = error.path or ""
        if retained_now and checkpoint_id not in retained_now:
            retained = ", ".join(map(str, retained_now))
            raise CheckpointError(
                f"checkpoint {checkpoint_id} of {store.url} was deleted while it was "
                f"read: the query that writes there now retains {retained}. Open the newest checkpoint, "
                "raise the query's retainedCheckpoints, or pin a checkpoint with "
                "`statelog tag`",
                reason="subsumed",
                checkpoint_id=checkpoint_id,
                path=path,
            ) from error
        raise CheckpointError(
            f"checkpoint {checkpoint_id} of {store.url} cannot be read: {error}",
            reason="objects_missing",
            missing=(path,),
            checkpoint_id=checkpoint_id,
            path=path,
        ) from error


def portions(
    weights: Sequence[float], key_groups: KeyGroupRange, most: int
) -> Iterator[KeyGroupRange]:
    """
    Split *key_groups* into parts of at least one key group each.

    Args:
        weights: Bytes of each key group of the job.
        key_groups: What is divided.
        most: Bytes of a part, unless it is one key group.
    """
    start = key_groups.start
    size = 0.0
    for key_group in key_groups:
        size += weights[key_group]
        if size > most and key_group > start:
            yield KeyGroupRange(start, key_group - 1)
            start = key_group
            size = weights[key_group]
    if len(key_groups):
        yield KeyGroupRange(start, key_groups.end)


def stored_bytes(checkpoint: CompletedCheckpoint) -> list[float]:
    """Estimate the stored bytes of each key group."""
    weights = np.zeros(checkpoint.max_parallelism)
    sized = [
        (snapshot.key_group_range, snapshot.handle.size_bytes)
        for snapshot in checkpoint.materialized
    ]
    sized += [(log.key_group_range, log.size_bytes) for log in checkpoint.log]
    for key_groups, size in sized:
        if len(key_groups):
            # An object does not say how its bytes are divided, so evenly.
            weights[key_groups.start : key_groups.end + 1] += max(size, 0) / len(key_groups)
    sizes: list[float] = weights.tolist()
    return sizes
