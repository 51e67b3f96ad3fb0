"""Each command that changes a location, killed before each of its changes and then repeated."""

from pathlib import Path

import pytest
from tests.support.locations.changing_commands import COMMANDS, Trial, damage_of, result
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
    trial = Trial(name, seed, tmp_path)
    killer = Killer()
    killer.install(monkeypatch)
    assert killer.run(trial.call) == 0
    changes, expected = killer.changes, result(trial.place)
    assert changes
    capsys.readouterr()
    findings = []
    for limit in range(changes + 1):
        trial.reset()
        killer.run(trial.call, limit)
        assert damage_of(trial.place.state) == [], f"killed before change {limit} of {changes}"
        if trial.call():
            findings.append((limit, capsys.readouterr().err))
            continue
        assert result(trial.place) == expected, f"killed before change {limit} of {changes}"
    assert findings == []
