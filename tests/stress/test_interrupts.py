"""
Interrupt anywhere, in a process of its own: a short form, and a long one with the campaigns.

`STATELOG_STRESS_SECONDS=180 STATELOG_INTERRUPT_SEED=7 pytest -m slow tests/stress` takes three
minutes and another seed.  What fails prints how to replay it.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import evidence

LONG_S = float(os.environ.get("STATELOG_STRESS_SECONDS", "600"))
SEED = int(os.environ.get("STATELOG_INTERRUPT_SEED", "1"))
ROOT = Path(__file__).parents[2]


def campaign(seconds: float, seed: int) -> str:
    command = [sys.executable, "-m", "tests.stress.interrupts"]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--seconds", str(seconds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    sys.stdout.write(done.stdout)
    return done.stdout


def test_three_seconds_of_interrupts_lose_and_block_nothing() -> None:
    told = campaign(3, seed=1)
    assert "'interrupted'" in told
    assert "'snapshots'" in told


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
def test_long_interrupts_lose_and_block_nothing() -> None:
    with evidence.campaign("signals into calls", seeds=[SEED]) as record:
        told = campaign(LONG_S, SEED)
        assert "'interrupted appends kept'" in told
        assert "'not kept'" in told
        rounds, _, counts = told.partition(" rounds: ")
        record.runs = int(rounds)
        record.counts.update(ast.literal_eval(counts))
