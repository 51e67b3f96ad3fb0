"""Each command that changes a location, killed before each of its changes and then repeated."""

import shutil
from pathlib import Path

import pytest
from tests.support.locations.changing_commands import BATCHES, COMMANDS, Place, damage_of, result
from tests.support.locations.stored_job import StoredJob
from tests.support.stores.killed_command import Killer

pytestmark = pytest.mark.campaign

SEEDS = [
    pytest.param("killed 4", id="files"),
    pytest.param("killed 9", id="metadata", marks=pytest.mark.slow),
]
"""The newest checkpoint refers to files of the log, or to the metadata of those before it."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_finishes_when_it_is_repeated(
    name: str, seed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    prepare, command = COMMANDS[name]
    place, template = Place(tmp_path / "work"), tmp_path / "template"
    job = StoredJob(seed, place.root, retained=3)
    for _ in range(2 if name.endswith(" 1") else BATCHES):
        job.micro_batch()
    killer = Killer()
    killer.install(monkeypatch)
    prepare(place)
    shutil.copytree(place.root, template)
    assert killer.run(lambda: command(place)) == 0
    changes, expected = killer.changes, result(place)
    assert changes
    capsys.readouterr()
    findings = []
    for limit in range(changes + 1):
        shutil.rmtree(place.root)
        shutil.copytree(template, place.root)
        killer.run(lambda: command(place), limit)
        assert damage_of(place.state) == [], f"killed before change {limit} of {changes}"
        status = command(place)
        if status:
            findings.append((limit, capsys.readouterr().err))
            continue
        assert result(place) == expected, f"killed before change {limit} of {changes}"
    assert findings == []
