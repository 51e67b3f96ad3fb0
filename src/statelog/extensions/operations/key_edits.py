"""
Edits of keys as deltas, given the state that they change.

An edit says what state a key has afterwards, so an edit that changes nothing writes nothing, and the
same edit applied again changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap.memory import MemoryLimits
from statelog.state.heap.tables import Overlay
from statelog.state.keyed_state import KeyedState
from statelog.state.kinds import Key
from statelog.store import ObjectStore

_BUDGET_BYTES = 256 * 1024 * 1024
"""Memory in which the state of the edited key groups is restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditCounts:
    """
    How many keys an edit changes.

    Args:
        inserted: Keys that had no state, and have some.
        updated: Keys whose state differs.
        deleted: Keys that had state, and have none.
        unchanged: Keys that the edit names and does not change.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    @property
    def changed(self) -> int:
        """Number of keys whose state differs afterwards."""
        return self.inserted + self.updated + self.deleted

    def __add__(self, other: EditCounts) -> EditCounts:
        return EditCounts(
            **{
                field_.name: getattr(self, field_.name) + getattr(other, field_.name)
                for field_ in fields(self)
            }
        )


@dataclass(slots=True)
class GroupEdits:
    """
    The edits of one key group; what is set counts over what is deleted.

    Args:
        deleted: The state ids to clear by key; None for all, timers included.
        cells: The cells to set, by state id and key; not empty.
    """

    deleted: dict[Key, set[int] | None] = field(default_factory=dict)
    cells: dict[int, dict[Key, object]] = field(default_factory=dict)

    def delete(self, key: Key, state_id: int | None) -> None:
        """Clear a variable of a key; None for all variables."""
        if state_id is None:
            self.deleted[key] = None
        elif (state_ids := self.deleted.setdefault(key, set())) is not None:
            state_ids.add(state_id)

    def put(self, key: Key, state_id: int, cell: object) -> None:
        """Set the cell of a variable of a key."""
        self.cells.setdefault(state_id, {})[key] = cell

    def named(self) -> set[Key]:
        """Return the keys that are named."""
        return {*self.deleted, *(key for cells in self.cells.values() for key in cells)}


def restored_state(
    store: ObjectStore,
    codec: OperatorCodec,
    checkpoint: CompletedCheckpoint,
    key_groups: KeyGroupRange,
) -> KeyedState:
    """
    Return the state of some key groups as of a checkpoint.

    Raises:
        CorruptionError: An object is damaged.
        StoreError: The store failed, or an object is missing.

    Blocks: On the store.
    """
    state = KeyedState(codec, MemoryLimits(_BUDGET_BYTES))
    handle = checkpoint.for_range(key_groups)
    state.catch_up(key_groups, checkpoint.checkpoint_id, (), lambda: (store, handle))
    return state


def edited(
    state: KeyedState, edits: Mapping[int, GroupEdits]
) -> tuple[dict[int, Overlay], EditCounts]:
    """
    Return the changes that edits make to *state*, by key group, and their counts.

    Args:
        state: The state of the key groups of *edits*; it stays as it is.
        edits: By key group.
    """
    state.prepare({key_group: group_edits.named() for key_group, group_edits in edits.items()})
    overlays: dict[int, Overlay] = {}
    counts = EditCounts()
    for key_group, group_edits in edits.items():
        overlay: Overlay = [{} for _ in state.codec.states]
        for key in group_edits.named():
            counts += _edit_key(state, key_group, key, group_edits, overlay)
        if any(overlay):
            overlays[key_group] = overlay
    return overlays, counts


def _edit_key(
    state: KeyedState, key_group: int, key: Key, edits: GroupEdits, overlay: Overlay
) -> EditCounts:
    """Put the changes of one key into *overlay*."""
    tables = state.groups[key_group].tables
    deleted = edits.deleted.get(key, set())
    had = has = changes = False
    for state_id in state.codec.live:
        kind = state.codec.states[state_id].kind
        before = tables[state_id].get(key)
        after = None if deleted is None or state_id in deleted else before
        after = edits.cells.get(state_id, {}).get(key, after)
        had, has = had or before is not None, has or after is not None
        if after is not before and after != before:
            changes = True
            overlay[state_id][key] = (
                kind.clear_delta() if after is None else kind.replacing_delta(after)
            )
    if not changes:
        return EditCounts(unchanged=1)
    if had and has:
        return EditCounts(updated=1)
    return EditCounts(deleted=1) if had else EditCounts(inserted=1)
