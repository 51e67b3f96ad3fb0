"""
The state of a checkpoint in memory, which can be updated to newer checkpoints.

What a `Replica` holds: tables as a task has them, and the rows of variables as far as they were
asked for, by blocks of key groups, of which a newer checkpoint replaces those that changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from statelog.errors import UsageError
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.cache import CatchUp
from statelog.state.encoding.snapshot_file import snapshot_table
from statelog.state.heap import BLOCK, KeyGroupState, MemoryLimits, blocks
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.state_key import StateKey
from statelog.state.kinds import Key
from statelog.state.reader.checkpoint_chain import Changes
from statelog.state.reader.rows import VariableRows
from statelog.state.reader.state_reader import StateReader
from statelog.store import ObjectStore

_BUDGET_BYTES: Final = 512 * 1024 * 1024
"""See `MemoryLimits`: above a fraction of it, the state is stored in columns, not in dicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyVersion:
    """
    The state of one key as of one checkpoint.

    Args:
        checkpoint_id: The checkpoint.
        batch_id: Number of the micro-batch that made it.
        as_of_ms: What expires at or before this time is left out, in milliseconds since 1970.
        value: The state, as `LocationState.get` returns it; None too where the checkpoint does not
            have the variable.
    """

    checkpoint_id: int
    batch_id: int
    as_of_ms: int
    value: Any


class HeldState(StateReader):
    """
    Holds an operator's state of some key groups in memory, for reading.

    Args:
        store: Where the location is; it is read here and by `apply` only.
        checkpoint: What to hold.
        operator: Name of the operator; None for the only one.
        key_groups: Which key groups to hold; None for all.

    Raises:
        UsageError: The operator is unknown, or has no such key groups.
        CorruptionError: An object is damaged.
        ObjectNotFoundError: An object was deleted.

    Blocks: In the constructor, on the store.   Thread: one at a time.
    """

    def __init__(
        self,
        store: ObjectStore,
        checkpoint: CompletedCheckpoint,
        *,
        operator: str | None,
        key_groups: KeyGroupRange | None,
    ) -> None:
        super().__init__(store, checkpoint, operator=operator)
        self._held_groups = self._checked(key_groups)
        if not len(self._held_groups):
            raise UsageError("a replica needs at least one key group")
        self._keyed = KeyedState(self._codec, MemoryLimits(_BUDGET_BYTES))
        self._blocks: dict[int, pa.Table] = {}
        self._rows: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self.caught_up = self._catch_up(self.store, checkpoint.for_range(self._held_groups))
        self.close()  # the objects that were read are not needed again

    def changes_to(self, newest: StateReader) -> Changes | None:
        """Return the changes up to a newer checkpoint, or None if a full restore is needed."""
        if newest.key_groups != self.key_groups or newest.schema.to_json() != self.schema.to_json():
            return None
        changes = Changes.of(self.checkpoint, newest.checkpoint, self._held_groups)
        return None if len(changes.rewritten) == len(self._held_groups) else changes

    def apply(self, changes: Changes, newest: CompletedCheckpoint, store: ObjectStore) -> CatchUp:
        """
        Update the state to a newer checkpoint.

        Raises:
            CorruptionError: An object is damaged; the state can no longer be used.
        """
        self._keyed.changed.clear()
        self._keyed.forget(changes.rewritten)
        progress = self._catch_up(store, changes.handle)
        changed = {key_group // BLOCK for key_group in self._keyed.changed}
        for block in changed:
            self._blocks.pop(block, None)
        self._rows = {place: rows for place, rows in self._rows.items() if place[1] not in changed}
        self._checkpoint = newest
        return progress

    def _catch_up(self, store: ObjectStore, handle: ChangelogStateBackendHandle) -> CatchUp:
        return self._keyed.catch_up(
            self._held_groups, handle.checkpoint_id, (), lambda: (store, handle)
        )

    def versions(
        self, variables: Sequence[str], keys: Sequence[object], now_ms: int
    ) -> list[KeyVersion]:
        """
        Return the state of keys.

        Each value is a dict from variables to what `LocationState.get` returns.

        What expires at or before *now_ms* is left out.
        """
        rows = {name: self._rows_of(name) for name in variables}
        located = [self._located(key) for key in keys]
        by_group: dict[int, dict[Key, None]] = {}
        for key_group, key in located:
            by_group.setdefault(key_group, {})[key] = None
        batches = self._table_of_keys(by_group).to_batches() if located and rows else []
        states: dict[Key, dict[str, object]] = {}
        for batch in batches:
            columns = {name: variable.states(batch, now_ms) for name, variable in rows.items()}
            of_keys = (
                dict(zip(rows, of_key, strict=True))
                for of_key in zip(*columns.values(), strict=True)
            )
            states |= zip(
                self._codec.key.decode(batch.columns[1 : 1 + len(self.schema.key_schema)]),
                of_keys,
                strict=True,
            )
        make = partial(
            KeyVersion,
            checkpoint_id=self.checkpoint_id,
            batch_id=self.batch_id,
            as_of_ms=now_ms,
        )
        return [
            make(value=states.get(key) or {name: variable.empty for name, variable in rows.items()})
            for _, key in located
        ]

    def _located(self, key: object) -> tuple[int, Key]:
        """Return a key in the form in which tables store it, and its key group."""
        sought = StateKey(key, self.schema.key_schema)
        key_group = sought.key_groups(self.key_groups).start
        if key_group not in self._held_groups:
            raise UsageError(
                f"the key is in key group {key_group}; the replica contains {self._held_groups}"
            )
        (hashable,) = self._codec.key.decode(sought.columns())
        return key_group, hashable

    def _table_of_keys(self, keys: Mapping[int, Collection[Key]]) -> pa.Table:
        """
        Return the state of some keys with the columns of a snapshot.

        No row for a key without any.
        """
        keyed = self._keyed
        keyed.borrow(keys)
        try:
            chosen = {}
            for key_group, of_group in keys.items():
                group = keyed.groups[key_group]
                chosen[key_group] = state_of_keys = KeyGroupState(self._codec.kinds, group.version)
                for chosen_table, table in zip(state_of_keys.tables, group.tables, strict=True):
                    chosen_table.update((key, table[key]) for key in of_group if key in table)
            span = KeyGroupRange(min(chosen), max(chosen))
            return snapshot_table(self._codec, chosen, {}, span, now_ms=-1)
        finally:
            keyed.give_back()

    def _scan(
        self, rows: Mapping[str, VariableRows], key_groups: KeyGroupRange, expired_ms: int | None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """
        Yield the rows of several variables, for the key groups in memory.

        Made once where they can be.
        """
        for block_groups in blocks(self._held_groups):
            for name, variable in rows.items():
                for batch in self._of_block(name, variable, block_groups, expired_ms):
                    yield name, batch

    def _of_block(
        self, name: str, rows: VariableRows, block_groups: KeyGroupRange, expired_ms: int | None
    ) -> list[pa.RecordBatch]:
        block = block_groups.start // BLOCK
        batches = self._rows.get((name, block))
        if batches is None:
            keys = self._blocks.get(block)
            if keys is None:
                keys = self._blocks[block] = self._keyed.table(block_groups)
            parts = (rows.batches(batch, expired_ms) for batch in keys.to_batches())
            batches = [batch for batches_of_keys in parts for batch in batches_of_keys]
            if not rows.expires:  # else there may be fewer rows at a later time
                self._rows[name, block] = batches
        return batches
