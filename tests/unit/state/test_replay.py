"""Recovery against an oracle that shares no code with it; see `recovery_oracle`."""

import os
from pathlib import Path

import pytest
from tests.support.recovery_oracle import MODES, Change, Commit, Mode, Oracle, World

from statelog.state import replay

pytestmark = pytest.mark.campaign

SEEDS = int(os.environ.get("STATELOG_RECOVERY_SEEDS", "10"))
CAMPAIGN = 300


def history(seed: int, mode: Mode, folder: Path) -> World:
    world = World(seed, mode, folder / str(seed))
    world.folder.mkdir(mode=0o700)
    try:
        world.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}, mode {mode.name}: {error!r}") from error
    return world


def histories(seeds: range, mode: Mode, folder: Path, monkeypatch) -> dict[str, int]:
    replay_in_columns(mode, monkeypatch)
    seen: dict[str, int] = {}
    for seed in seeds:
        for name, number in history(seed, mode, folder).seen.items():
            seen[name] = seen.get(name, 0) + number
    return seen


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_worker_has_what_was_committed(mode, tmp_path, monkeypatch):
    seen = histories(range(SEEDS), mode, tmp_path, monkeypatch)
    assert min(seen.values()) >= SEEDS, f"the histories are about too little: {seen}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_campaign_holds(mode, tmp_path, monkeypatch):
    histories(range(1000, 1000 + CAMPAIGN), mode, tmp_path, monkeypatch)


def replay_in_columns(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    size = -1 if mode.replays_columns else 1 << 60
    monkeypatch.setattr(replay, "_COLUMNAR_REPLAY_BYTES", size)
    monkeypatch.setattr(replay, "_COLUMNAR_RESTORE_BYTES", size)


def test_the_oracle_folds_by_hand():
    """Its answers for one line and a branch, written out."""
    oracle = Oracle()
    first: list[Change] = [(1, "list", "append", 5), (1, "value", "update", 7)]
    oracle.commits[0] = Commit(-1, {1: first, 2: [(2, "map", "put", ("a", 1))]})
    oracle.commits[1] = Commit(0, {1: [(1, "list", "append", 6), (1, "value", "clear", None)]})
    oracle.commits[4] = Commit(0, {2: [(2, "map", "remove", "a"), (2, "timers", "register", 3)]})
    everything = range(6)
    assert {} == oracle.cells(-1, everything)
    assert {(1, "list"): [5], (1, "value"): 7, (2, "map"): {"a": 1}} == oracle.cells(0, everything)
    assert {(1, "list"): [5, 6], (2, "map"): {"a": 1}} == oracle.cells(1, everything)
    assert {(1, "list"): [5], (1, "value"): 7, (2, "timers"): {3}} == oracle.cells(4, everything)
    assert {(2, "timers"): {3}} == oracle.cells(4, range(2, 6))
