"""
A simulated world in which older owners act between the requests of newer ones, and puts arrive late.

In `World` an owner that pauses goes on after the owner that it let live.  So an older owner never commits
while a newer one is between the listing and its claim.  Here an owner that has finished its checkpoints
waits, and may go on before any request of another owner.
"""

import random
from typing import Any

from tests.campaigns.simulation.owners import Owner, World
from tests.support.locations.sequence_entries import decoded
from tests.support.stores.dict_store import DictStore

from statelog.format.checkpoint_record import ClaimRecord
from statelog.store.paths import parse_checkpoint_metadata

GO_ON_MAX = 40
"""Owners go on this often in one world, so that no world takes long."""


class NumberedStore(DictStore):
    """Checks that no number is given to a checkpoint after it was given to something else."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[int, bytes] = {}

    def _store(self, path: str, data: Any) -> None:
        super()._store(path, data)
        number = parse_checkpoint_metadata(path)
        if number is None:
            return
        content = self.objects[path][0]
        first = self.first.setdefault(number, content)
        # A claim may get the number of a deleted checkpoint: its owner looks, and claims again.
        is_claim = isinstance(decoded(path, content), ClaimRecord)
        assert is_claim or content == first, f"number {number} was given to a checkpoint twice"


class InterleavedWorld(World):
    """A world with owners that go on later, and with conditional puts that arrive late."""

    def __init__(self, seed: int, *, batched: bool = False) -> None:
        super().__init__(seed, batched=batched)
        self.waiting: list[Owner] = []
        self.order_rng = random.Random(f"order {seed}")
        self.go_on_rate = self.order_rng.choice([0.02, 0.1])
        self.late_put_rate = self.order_rng.choice([0.0, 0.05])
        self.went_on = self.late_puts = self.arrived = 0

    def new_store(self) -> DictStore:
        return NumberedStore()

    def settle(self) -> None:
        super().settle()
        self.waiting.clear()
        self.late_put_rate = 0.0

    def rested(self, owner: Owner) -> None:
        self.waiting.append(owner)

    def on_request(self, operation: str, path: str) -> str | int | None:
        if self.quiet:
            return None
        if self.store.late_puts and self.order_rng.random() < 0.1:
            self.arrived += self.store.arrive(self.order_rng.randrange(len(self.store.late_puts)))
        is_conditional = operation == "put_if_absent"
        rate = self.go_on_rate * (4 if is_conditional else 1)
        may_go_on = self.waiting and self.depth < 2 and self.went_on < GO_ON_MAX
        if may_go_on and self.order_rng.random() < rate:
            self.go_on()
        verdict = super().on_request(operation, path)
        if verdict is None and is_conditional and self.is_late():
            return "late"
        return verdict

    def is_late(self) -> bool:
        """Return whether the conditional put gets no answer, and arrives later; count it."""
        is_late = self.order_rng.random() < self.late_put_rate
        self.late_puts += is_late
        self.faults += is_late
        return is_late

    def go_on(self) -> None:
        """Let an owner that waits complete more checkpoints."""
        owner = self.waiting.pop(self.order_rng.randrange(len(self.waiting)))
        self.went_on += 1
        self.depth += 1
        owner.live(self.order_rng.randint(1, 4))
        self.depth -= 1
