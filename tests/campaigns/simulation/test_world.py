"""Many seeds hold, and a seed is one history."""

import hashlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.campaigns.simulation.replay import command_of
from tests.campaigns.simulation.world import Outcome, World, main
from tests.support.project import evidence

from statelog.core.change_log import ChangeLog
from statelog.testing.faulty_store import FaultKind, FaultyStore

SEEDS = int(os.environ.get("STATELOG_SEEDS", "2000"))
CAMPAIGN = int(os.environ.get("STATELOG_CAMPAIGN_SEEDS", "20000"))
BLOCK = 100
SOURCES = Path(__file__).parents[3] / "src"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of injected faults are told otherwise; the levels come back afterwards."""
    caplog.set_level(logging.CRITICAL, "statelog")


def run(seed: int) -> Outcome:
    try:
        return World(seed).run()
    except Exception as error:
        message = f"{error!r}; replay: python -m tests.campaigns.simulation.world --seed {seed}"
        raise AssertionError(message) from error


def story(seed: int) -> str:
    trace = hashlib.sha256()
    World(seed, trace=lambda line: trace.update(line.encode())).run()
    return trace.hexdigest()


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_every_history_holds(first: int) -> None:
    outcomes = [run(seed) for seed in range(first, min(first + BLOCK, SEEDS))]
    # The histories are about something: uploads, failures, waits for room, local copies.
    assert sum(outcome.persists for outcome in outcomes) > 5 * len(outcomes)
    assert sum(outcome.failures for outcome in outcomes) > len(outcomes) * 0.8
    assert sum(outcome.waits > 0 for outcome in outcomes) > len(outcomes) / 10
    assert sum(outcome.files > 0 for outcome in outcomes) > len(outcomes) / 10
    assert sum(outcome.local_reads > 0 for outcome in outcomes) > len(outcomes) / 10
    assert sum(outcome.set_aside > 0 for outcome in outcomes) > 0


@pytest.mark.parametrize(
    "seed",
    [
        1002803  # a wait for capacity, inside the wait for a copy, held up an attempt
    ],
)
def test_a_history_that_once_broke_holds(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_campaign_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = FaultyStore._fault

    def counted(store: FaultyStore) -> FaultKind:
        kind = draw(store)
        if kind is not FaultKind.NONE:
            record.store_faults[kind.value] += 1
        return kind

    monkeypatch.setattr(FaultyStore, "_fault", counted)
    seeds = range(1_000_000, 1_000_000 + CAMPAIGN)
    with evidence.campaign("simulated storage", seeds=seeds, simulated=True) as record:
        for seed in seeds:
            outcome = run(seed)
            record.runs += 1
            record.counts.update(persists=outcome.persists, steps=outcome.steps)
            record.simulated_hours += outcome.virtual_ns / 3.6e12
    assert record.store_faults


def test_a_seed_is_one_history() -> None:
    assert run(7) == run(7)
    assert story(7) == story(7)
    assert len({story(seed) for seed in range(20)}) == 20


def test_a_history_does_not_depend_on_the_hash_seed() -> None:
    code = "from tests.campaigns.simulation.test_world import story; print([story(s) for s in range(5)])"
    stories = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SOURCES)},
            cwd=SOURCES.parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(stories) == 1


def test_telling_the_story_changes_nothing() -> None:
    lines: list[str] = []
    assert run(3) == World(3, trace=lines.append).run()
    assert any("ChangeLog" in line for line in lines)


def test_the_printed_command_replays_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(ChangeLog, "_upload_failed", lambda self, sqns, error: [])
        with pytest.raises(AssertionError, match="replay: ") as failure:
            for seed in range(100):
                run(seed)
        module, arguments = command_of(str(failure.value))
        assert module == "tests.campaigns.simulation.world"
        assert 1 == main(arguments)
        told = capsys.readouterr().out
        assert f"seed {arguments[-1]} broke: " in told
        assert str(failure.value.__cause__) in told
    replayed = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=True
    )
    assert "ChangeLog" in replayed.stdout
    assert "1 histories hold" in replayed.stdout
