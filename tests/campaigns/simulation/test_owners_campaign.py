"""
Many seeds of the simulation of owners: `STATELOG_OWNER_SEEDS` sets their number (20000).

Each third seed cleans up in batches.
"""

import os

import pytest
from tests.campaigns.simulation.owners import World, replayable, simulate
from tests.support.project import evidence

from statelog.checkpoint import clean_up

SEEDS = int(os.environ.get("STATELOG_OWNER_SEEDS", "20000"))
FIRST = 2_000_000


def note(record: evidence.Record, world: World) -> None:
    """Add what happened in a simulated world."""
    record.runs += 1
    record.commits += world.finished
    record.kills += world.died
    # The world counts lost answers and deaths as faults, and conflicts apart.
    errors = world.faults - world.lost - world.died
    kinds = {"error": errors, "lost answer": world.lost, "409": world.conflicts}
    record.store_faults.update({kind: count for kind, count in kinds.items() if count})
    record.counts["fenced owners"] += world.fenced


def run(seeds: range, record: evidence.Record) -> None:
    """Simulate the owners of each seed."""
    for seed in seeds:
        note(record, replayable(seed, batched=seed % 3 == 0))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_nothing_that_is_committed_is_lost_in_many_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_up, "BATCH_COMMITS", 2)
    seeds = range(FIRST, FIRST + SEEDS)
    with evidence.campaign("simulated owners", seeds=seeds, simulated=True) as record:
        run(seeds, record)


def test_the_record_has_what_happened_in_the_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_up, "BATCH_COMMITS", 2)
    record = evidence.Record("owners")
    run(range(20), record)
    assert 20 == record.runs
    assert {"error", "lost answer", "409"} == record.store_faults.keys()
    assert min(record.commits, record.kills, *record.store_faults.values()) > 0
    single = [simulate(seed, batched=seed % 3 == 0) for seed in range(20)]
    assert sum(world.finished for world in single) == record.commits
    assert sum(world.faults + world.conflicts for world in single) == (
        record.store_faults.total() + record.kills
    )
