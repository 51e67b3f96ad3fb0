"""Many seeds hold, and a seed is one history."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from statelog.testing.world import Outcome, World, main

SEEDS = int(os.environ.get("STATELOG_SEEDS", "300"))
SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("statelog").setLevel(logging.CRITICAL)


def run(seed: int) -> Outcome:
    try:
        return World(seed).run()
    except AssertionError as error:
        message = f"{error}; replay: python -m statelog.testing.world --seed {seed}"
        raise AssertionError(message) from error


def test_every_history_holds() -> None:
    outcomes = [run(seed) for seed in range(SEEDS)]
    # The histories are about something: uploads, failures, waits for room.
    assert sum(outcome.persists for outcome in outcomes) > 5 * SEEDS
    assert sum(outcome.failures for outcome in outcomes) > SEEDS
    assert sum(outcome.waits > 0 for outcome in outcomes) > SEEDS / 10
    assert sum(outcome.files > 0 for outcome in outcomes) > SEEDS / 10


@pytest.mark.slow
def test_a_campaign_holds() -> None:
    assert 0 == main(["--seed", "1000000", "--count", "20000", "--quiet"])


def test_a_seed_is_one_history() -> None:
    assert run(7) == run(7)
    assert len({run(seed).trace for seed in range(20)}) == 20


def test_a_history_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from statelog.testing.world import World; print([World(s).run().trace for s in range(5)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SOURCES)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(said) == 1


def test_the_command_replays_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--seed", "3"])
    story = capsys.readouterr().out
    assert "ChangeLog" in story
    assert "1 histories hold" in story
