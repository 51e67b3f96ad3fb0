"""
The tables of state, and what a micro-batch changes in them.

State is kept in dicts, one per variable and key group, at a *version*: the checkpoint up to which
they are complete.  A micro-batch never writes into them.  It fills an *overlay* of deltas, which is
appended to the log.  The overlay is folded into the tables once its checkpoint is committed, and
dropped if its attempt failed.  A worker that missed a batch folds the deltas that it reads from the
log, by the same function.  The kind of a variable defines its cells and deltas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from statelog.state.kinds import Deltas, Key, StateKind, Table
from statelog.state.kinds.timer import timer_table

__all__ = ["Key", "KeyGroupState", "Overlay"]

Overlay: TypeAlias = list[Deltas]
"""By state id."""


class KeyGroupState:
    """
    All state of one key group.

    Attributes: `folded`: deltas folded in since the last look for expired entries;
    `expiry_due_ms`: before this time no entry can be expired.
    """

    __slots__ = ("expiry_due_ms", "folded", "kinds", "tables", "version")

    def __init__(self, kinds: Sequence[StateKind], version: int = -1) -> None:
        self.kinds = kinds
        self.tables: list[Table] = [kind.rules.new_table() for kind in kinds]
        self.version = version
        self.folded = 0
        self.expiry_due_ms = -1

    def fold(self, overlay: Overlay) -> None:
        """Bring the tables forward by *overlay*."""
        for state_id, deltas in enumerate(overlay):
            if deltas:
                self.folded += len(deltas)
                self.kinds[state_id].rules.fold(self.tables[state_id], deltas)

    def remove(self, key: Key) -> None:
        """Remove all cells of a key."""
        for kind, table in zip(self.kinds, self.tables, strict=True):
            if key in table:
                kind.rules.remove(table, key)

    def timers_due(self, state_id: int, until_ms: int) -> Iterator[tuple[int, Key]]:
        """Yield (time, key) of the folded timers up to *until_ms*, unordered."""
        return timer_table(self.tables[state_id]).due(until_ms)

    def first_timer(self, state_id: int, changed: Collection[Key]) -> int | None:
        """Return the earliest folded timer of keys not in *changed*, or None."""
        return timer_table(self.tables[state_id]).first(changed)
