"""Owners that act between the requests of newer ones, late puts, and mutants that only these show."""

from collections import Counter
from typing import Any

import pytest
from tests.campaigns.simulation.interleaved_owners import InterleavedWorld
from tests.campaigns.simulation.owners import Owner, simulate

from statelog.checkpoint import CheckpointCoordinator, ownership
from statelog.checkpoint import clean_up as clean_up_module
from statelog.checkpoint.clean_up import CleanUpReport
from statelog.checkpoint.history import Entries, present_ids, read_entry
from statelog.checkpoint.retained import read_pins
from statelog.core.checkpoint_ledger import Declined
from statelog.format.checkpoint_record import ClaimRecord
from statelog.store import PATHS

BLOCKS, SEEDS_A_BLOCK = 3, 10
TWICE = r"number \d+ was given to a checkpoint twice"
LOST = TWICE + "|all continue the same|then forgotten"
LATE_QUESTION = 4
"""A seed with a deletion between the listing after a claim and the question about an entry above it."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_number_is_used_twice_and_nothing_acknowledged_is_lost(block: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        try:
            world = simulate(seed, new_world=InterleavedWorld)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        assert isinstance(world, InterleavedWorld)
        for name in ("went_on", "late_puts", "arrived", "fenced", "given_up"):
            total[name] += getattr(world, name)
        total["deleted"] += len(world.store.deleted)
    assert len(total) == 6, f"this simulates nothing: {total}"
    assert min(total.values()) > 0, f"this simulates nothing: {total}"


def test_batches_of_owners_that_go_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_up_module, "BATCH_COMMITS", 2)
    worlds = [simulate(seed, batched=True, new_world=InterleavedWorld) for seed in range(10)]
    assert sum(world.late_runs for world in worlds) > 0


def test_an_entry_may_be_deleted_during_the_look() -> None:
    """The claim in a gap was taken for the newest entry, and its owner used a number again."""
    simulate(LATE_QUESTION, new_world=InterleavedWorld)


def ignores_entries_above(entries: Entries, claim: ClaimRecord) -> Any:
    """A new owner lists after its claim as well, and ignores entries above it."""
    return read_pins(entries.list_again().store)


clean_up = CheckpointCoordinator.clean_up


def deletes_claims(self: CheckpointCoordinator) -> CleanUpReport:
    """Clean-up deletes the claims below the next number, too."""
    report = clean_up(self)
    for number in present_ids(self._store):
        if number >= self.next_checkpoint_id:
            continue
        if isinstance(read_entry(self._store, number), ClaimRecord):
            self._store.delete([PATHS.metadata(number)])
    return report


def other_attempt(self: CheckpointCoordinator, checkpoint_id: int, reason: str) -> None:
    """After an unknown outcome the number is used for another attempt."""
    self._ledger.handle(Declined(checkpoint_id, reason), self._now_ns())
    self._prepared = None


def declines_only(self: Owner, checkpoint_id: int) -> None:
    """What a driver may do then: it goes on without a claim."""
    self.coordinator.decline(checkpoint_id, "the outcome is unknown")


MUTANTS = {
    "no look after the claim": ((ownership, "_pins_if_last", ignores_entries_above),),
    "claims deleted": ((CheckpointCoordinator, "clean_up", deletes_claims),),
    "another attempt": (
        (CheckpointCoordinator, "decline", other_attempt),
        (Owner, "give_up", declines_only),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_missing_rule_breaks_the_history(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name, replacement in MUTANTS[mutant]:
        monkeypatch.setattr(place, name, replacement)
    with pytest.raises(AssertionError, match=LOST):
        for seed in range(200):
            simulate(seed, new_world=InterleavedWorld)
