"""Owners come, pause, die and come back, in many small worlds; what the simulation finds of known faults."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.campaigns.simulation.owners import (
    REPLAY,
    Owner,
    Rewinding,
    World,
    main,
    replayable,
    simulate,
)
from tests.campaigns.simulation.replay import command_of

from statelog.checkpoint import clean_up
from statelog.errors import ObjectNotFoundError

ROOT = Path(__file__).parents[3]
BLOCKS, SEEDS_A_BLOCK, BATCHED_BLOCKS = 40, 25, 4
LATE_DELETE = 773
"""The seed of a known fault, which has a test of its own below."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_acknowledged_is_lost_and_nothing_reachable_deleted(block):
    names = "finished fenced died lost deleted conflicts flights"
    total = dict.fromkeys(names.split(), 0)
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        world = replayable(seed)
        for name in total:
            total[name] += len(world.store.deleted) if name == "deleted" else getattr(world, name)
    assert min(total.values()) > 0, f"this simulates nothing: {total}"


@pytest.mark.parametrize("block", range(BATCHED_BLOCKS))
def test_requests_of_batches_may_come_at_any_time(block, monkeypatch):
    monkeypatch.setattr(clean_up, "BATCH_COMMITS", 2)
    late = deleted = 0
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        world = replayable(seed, batched=True)
        late += world.late_runs
        deleted += len(world.store.deleted)
    assert min(late, deleted) > 0, "no batch ran"


def test_owners_that_go_back_are_told_from_those_they_gave_up():
    worlds = [simulate(seed, new_world=Rewinding) for seed in range(60)]
    assert sum(world.rewinds for world in worlds) > 100


class Unlucky(World):
    """A world in which many requests fail."""

    def __init__(self, seed: int, *, batched: bool = False) -> None:
        super().__init__(seed, batched=batched)
        self.fault_rate = 0.1


def test_an_owner_that_does_not_know_an_outcome_claims_again():
    worlds = [simulate(seed, new_world=Unlucky) for seed in range(1000, 1020)]
    assert sum(world.given_up for world in worlds) > 2


def test_a_delete_that_comes_late_meets_nothing_of_a_successors():
    """
    An owner sleeps before it deletes a stale checkpoint; its successor has done so, and gone on.

    With ids that are used again the late delete took the successor's checkpoint.
    """
    simulate(LATE_DELETE)


def test_the_printed_command_replays_a_failure(monkeypatch):
    monkeypatch.setattr(Owner, "live", lambda self, rounds: None)
    with pytest.raises(AssertionError, match="the last owner is stuck") as failure:
        test_nothing_acknowledged_is_lost_and_nothing_reachable_deleted(3)
    module, arguments = command_of(str(failure.value))
    assert module == "tests.campaigns.simulation.owners"
    with pytest.raises(AssertionError, match="the last owner is stuck"):
        main(arguments)
    command = [sys.executable, *shlex.split(REPLAY)[1:], "--seed", "3"]
    replayed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "seed 3 holds" in replayed.stdout


def test_a_seed_decides_everything():
    first, second = simulate(7), simulate(7)
    assert sorted(first.store.requests.items()) == sorted(second.store.requests.items())
    assert first.tokens == second.tokens


def test_the_checks_find_a_deleted_object():
    world = World(3)
    world.fault_rate = world.pause_rate = 0.0
    Owner(world).live(5)
    newest = world.coordinator("reader").restore()
    for path in newest.referenced_paths():
        del world.store.objects[path]
    with pytest.raises((AssertionError, ObjectNotFoundError)):
        world.check()
