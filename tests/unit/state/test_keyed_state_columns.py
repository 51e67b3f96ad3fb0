"""State in columns and in files of the host, against the oracle of `recovery_oracle`."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.recovery_oracle import GROUPS, MODES, Mode, World, schema_of

from statelog.model import KeyGroupRange
from statelog.runtime.clock import RandomIds
from statelog.state.columnar import run_files
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import OperatorCodec

pytestmark = pytest.mark.campaign

EVERY = KeyGroupRange(0, GROUPS - 1)
FILES = Mode("files", columns=True, files=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder: `RunFiles` refuses others."""
    tmp_path.chmod(0o700)
    return tmp_path


def world_of(folder: Path, batches: int = 6) -> World:
    world = World(5, FILES, folder)
    for _ in range(batches):
        world.micro_batch()
    return world


def read_from_files(world: World) -> int:
    """Let a new worker catch up; return how many key groups it took from files of the host."""
    worker = world.worker()
    local = world.catch_up(worker, EVERY, world.newest).local
    world.look(worker, EVERY, world.newest)
    return local


def test_keys_of_one_hash_are_told_apart(folder, monkeypatch):
    real = RowLayout.hashes
    monkeypatch.setattr(RowLayout, "hashes", lambda self, columns: real(self, columns) & 1)
    monkeypatch.setattr("statelog.state.replay._COLUMNAR_REPLAY_BYTES", -1)
    monkeypatch.setattr("statelog.state.replay._COLUMNAR_RESTORE_BYTES", -1)
    (mode,) = [mode for mode in MODES if mode.name == "replay"]
    for seed in range(6):
        World(seed, mode, folder).run(10)


def test_a_new_worker_finds_the_files_of_an_earlier_one(folder):
    world = world_of(folder)
    assert GROUPS == read_from_files(world)
    # The files of a snapshot stand in for it, as soon as its checkpoint is there.
    while not world.checkpoints[world.newest].materialized:
        world.micro_batch(snapshots_of=1.0)
    assert GROUPS == read_from_files(world)


def test_files_of_other_hashes_are_unused(folder, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(run_files, "_HASHES", b"1")
        world = world_of(folder)
    assert list(folder.rglob("*.run"))
    assert 0 == read_from_files(world)


def test_files_of_rolled_back_checkpoints_are_unused(folder):
    world = world_of(folder, 3)
    older = world.newest
    for _ in range(3):
        world.micro_batch(snapshots_of=1.0)
    assert list(folder.rglob("*.run"))
    world.newest, world.workers = older, [world.worker()]
    assert 0 == read_from_files(world)
    world.micro_batch()  # goes on beside what was there
    read_from_files(world)


def test_a_full_disk_costs_memory_only(folder, monkeypatch, caplog):
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_files.RunFiles, "begin", refuse)
    World(8, FILES, folder).run(8)
    assert "No space left on device" in caplog.text
    assert [] == list(folder.rglob("*.run"))


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    layout = RowLayout(OperatorCodec(schema_of(("value",))))
    with pytest.raises(PermissionError, match="private"):
        RunFiles(tmp_path, "here", layout, RandomIds())
