"""
The state of one checkpoint in memory, which can be brought to a newer one.

What a `Replica` holds: tables as a task has them, and the rows of variables as far as they were
asked for, by blocks of key groups, of which a newer checkpoint replaces those that changed.

Every handle has a unique name.  State as of one checkpoint can be brought forward by the log of
another one if both have the same handles up to the older one.  That is decided for each key group, so
that after a snapshot of some key groups, a rewind or a lost log only those are read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import UsageError
from statelog.model import CompletedCheckpoint, FileStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.cache import CatchUp
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap.memory import BLOCK, MemoryLimits, blocks
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.state_key import StateKey
from statelog.state.kinds import Key
from statelog.state.reader.chain import as_of_ms
from statelog.state.reader.lookup import KeyVersion
from statelog.state.reader.rows import VariableRows
from statelog.state.schema.descriptors import OperatorStateSchema, StateDescriptor
from statelog.store import ObjectStore

_BUDGET_BYTES: Final = 512 * 1024 * 1024
"""See `MemoryLimits`: beyond a part of it the state is held in columns instead of dictionaries."""


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """How state comes from one checkpoint to a newer one."""

    newest: CompletedCheckpoint
    handle: ChangelogStateBackendHandle
    reload: frozenset[int]
    held_id: int

    def fetch(self, store: ObjectStore) -> None:
        """Read all objects that are needed from a store that keeps them; blocks on the store."""
        for path in self._paths():
            store.get(path)

    def _paths(self) -> Sequence[str]:
        paths: dict[str, None] = {}
        for snapshot in self.handle.materialized:
            if isinstance(snapshot.handle, FileStateHandle) and self._needs(
                snapshot.key_group_range, snapshot.checkpoint_id
            ):
                paths[snapshot.handle.path] = None
        for log in self.handle.log:
            if self._needs(log.key_group_range, log.checkpoint_id):
                for entry in log.handles_and_offsets:
                    if isinstance(entry.handle, FileStateHandle):
                        paths[entry.handle.path] = None
        return list(paths)

    def _needs(self, key_groups: KeyGroupRange, checkpoint_id: int) -> bool:
        return checkpoint_id > self.held_id or not self.reload.isdisjoint(key_groups)


class HeldState:
    """
    State of some key groups of an operator.

    Raises:
        CorruptionError: An object is damaged.
        ObjectNotFoundError: An object was deleted.

    Blocks: In the constructor, on the store.   Thread: one at a time.
    """

    def __init__(
        self,
        checkpoint: CompletedCheckpoint,
        schema: OperatorStateSchema,
        key_groups: KeyGroupRange,
        operator_groups: KeyGroupRange,
        store: ObjectStore,
    ) -> None:
        self.checkpoint = checkpoint
        self.key_groups = key_groups
        self._operator_groups = operator_groups
        self._codec = OperatorCodec(schema)
        self._keyed = KeyedState(self._codec, MemoryLimits(_BUDGET_BYTES))
        self._blocks: dict[int, pa.Table] = {}
        self._rows: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        handle = checkpoint.for_range(key_groups)
        self.done = self._catch_up(checkpoint, handle, store)

    @property
    def as_of_ms(self) -> int:
        """Processing time of the checkpoint's micro-batch, by which values have expired."""
        return as_of_ms(self.checkpoint)

    @property
    def batch_id(self) -> int:
        """Number of the micro-batch that made the checkpoint."""
        return BatchRecord.of(self.checkpoint).batch_id

    def plan(
        self, newest: CompletedCheckpoint, schema: OperatorStateSchema, key_groups: KeyGroupRange
    ) -> ForwardPlan | None:
        """Return how to come to a newer checkpoint; None if all must be restored again."""
        if key_groups != self.key_groups or schema.to_json() != self._codec.schema.to_json():
            return None
        reload = groups_to_reload(self.checkpoint, newest, key_groups)
        if len(reload) == len(key_groups):
            return None
        handle = newest.for_range(key_groups)
        return ForwardPlan(newest, handle, frozenset(reload), self.checkpoint.checkpoint_id)

    def apply(self, plan: ForwardPlan, store: ObjectStore) -> CatchUp:
        """
        Come to a newer checkpoint.

        Raises:
            CorruptionError: An object is damaged; the state can no longer be used.
        """
        self._keyed.changed.clear()
        self._keyed.forget(plan.reload)
        done = self._catch_up(plan.newest, plan.handle, store)
        changed = {key_group // BLOCK for key_group in self._keyed.changed}
        for block in changed:
            self._blocks.pop(block, None)
        self._rows = {at: rows for at, rows in self._rows.items() if at[1] not in changed}
        self.checkpoint = plan.newest
        return done

    def _catch_up(
        self, newest: CompletedCheckpoint, handle: ChangelogStateBackendHandle, store: ObjectStore
    ) -> CatchUp:
        return self._keyed.catch_up(
            self.key_groups, newest.checkpoint_id, (), lambda: (store, handle)
        )

    def variables(self) -> tuple[StateDescriptor, ...]:
        """Return the state variables; dropped ones are left out."""
        return tuple(self._codec.schema.states[state_id] for state_id in self._codec.live)

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of the rows of each variable."""
        return {variable.name: self._rows_of(variable.name).schema for variable in self.variables()}

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns."""
        return self._codec.schema.key_schema

    def versions(
        self, variables: Sequence[str], keys: Sequence[object], now_ms: int
    ) -> list[KeyVersion]:
        """
        Return the state of keys; each value is a dict from variables to what `LocationState.get` returns.

        What expires at or before *now_ms* is left out.
        """
        rows = {name: self._rows_of(name) for name in variables}
        located = [self._located(key) for key in keys]
        by_group: dict[int, dict[Key, None]] = {}
        for key_group, key in located:
            by_group.setdefault(key_group, {})[key] = None
        batches = self._keyed.table_of_keys(by_group).to_batches() if located and rows else []
        states: dict[Key, dict[str, object]] = {}
        for batch in batches:
            columns = {name: each.states(batch, now_ms) for name, each in rows.items()}
            of_keys = (
                dict(zip(rows, of_key, strict=True))
                for of_key in zip(*columns.values(), strict=True)
            )
            states |= zip(
                self._codec.key.decode(batch.columns[1 : 1 + len(self.key_schema)]),
                of_keys,
                strict=True,
            )
        make = partial(
            KeyVersion,
            checkpoint_id=self.checkpoint.checkpoint_id,
            batch_id=self.batch_id,
            as_of_ms=now_ms,
        )
        return [
            make(value=states.get(key) or {name: each.empty for name, each in rows.items()})
            for _, key in located
        ]

    def _located(self, key: object) -> tuple[int, Key]:
        """Return a key as the tables have it, and its key group."""
        sought = StateKey(key, self.key_schema)
        key_group = sought.key_groups(self._operator_groups).start
        if key_group not in self.key_groups:
            raise UsageError(
                f"the key is in key group {key_group}; the replica holds {self.key_groups}"
            )
        (frozen,) = self._codec.key.decode(sought.columns())
        return key_group, frozen

    def tables(self, names: Sequence[str], now_ms: int) -> Mapping[str, pa.Table]:
        """Return the rows of variables by name, without what expires at or before *now_ms*."""
        rows = {name: self._rows_of(name) for name in names}
        return {
            name: pa.Table.from_batches(self._batches(name, each, now_ms), schema=each.schema)
            for name, each in rows.items()
        }

    def _batches(self, name: str, rows: VariableRows, now_ms: int) -> Iterator[pa.RecordBatch]:
        for part in blocks(self.key_groups):
            at = (name, part.start // BLOCK)
            batches = self._rows.get(at)
            if batches is None:
                keys = self._keys(part)
                batches = [
                    part for batch in keys.to_batches() for part in rows.batches(batch, now_ms)
                ]
                if not rows.expires:  # else there may be fewer rows at a later time
                    self._rows[at] = batches
            yield from batches

    def _keys(self, part: KeyGroupRange) -> pa.Table:
        """Return the state of a block in the columns of a snapshot."""
        block = part.start // BLOCK
        keys = self._blocks.get(block)
        if keys is None:
            keys = self._blocks[block] = self._keyed.table(part)
        return keys

    def _rows_of(self, variable: str) -> VariableRows:
        return VariableRows(self._codec, self._state_id(variable))

    def _state_id(self, variable: str) -> int:
        try:
            return self._codec.schema.state_id(variable)
        except KeyError:
            names = ", ".join(repr(state.name) for state in self.variables()) or "none"
            raise UsageError(
                f"checkpoint {self.checkpoint.checkpoint_id} has no state variable {variable!r}; it "
                f"has {names}"
            ) from None


def groups_to_reload(
    held: CompletedCheckpoint, newer: CompletedCheckpoint, key_groups: KeyGroupRange
) -> tuple[int, ...]:
    """
    Return the key groups whose state in *newer* is not that of *held* with more log behind it.

    Args:
        held: The checkpoint whose state is held.
        newer: The checkpoint to come to; it may be of another history.
        key_groups: Which key groups are held.
    """
    ours = _parts(held, held.checkpoint_id, key_groups)
    theirs = _parts(newer, held.checkpoint_id, key_groups)
    return tuple(group for group in key_groups if ours[group] != theirs[group])


def _parts(
    checkpoint: CompletedCheckpoint, upto: int, key_groups: KeyGroupRange
) -> dict[int, list[str]]:
    """Return by key group what makes up its state, with the log up to a checkpoint."""
    whole = checkpoint.for_range(key_groups)
    handles: dict[int, list[str]] = {group: [] for group in key_groups}
    for snapshot in whole.materialized:
        for group in snapshot.key_group_range:
            handles[group].append(snapshot.handle.name)
    for log in whole.log:
        if log.checkpoint_id <= upto:
            for group in log.key_group_range:
                handles[group].append(log.state_handle_id)
    return handles
