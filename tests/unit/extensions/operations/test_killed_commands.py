"""Each command that changes a location, killed before each of its changes and then repeated."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.locations.changing_commands import COMMANDS, Place, Trial, damage_of, result
from tests.support.stores.killed_command import Killer

from statelog.checkpoint.audit import read_audit_log
from statelog.errors import ObjectExistsError, StoreError
from statelog.format.buffers import Buffers
from statelog.store import open_existing_store
from statelog.store.object_store import ObstoreStore

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


FAULTS = {
    "409 or 412, stored": (True, ObjectExistsError),
    "409, not stored": (False, ObjectExistsError),
    "500 or no answer, stored": (True, StoreError),
    "500 or no answer, not stored": (False, StoreError),
}


class Loser:
    """Counts conditional puts, and answers one of them wrongly."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.puts: list[str] = []
        self.number = -1
        self.fault = (True, StoreError)
        put = ObstoreStore.put_if_absent

        def lose(store: ObstoreStore, path: str, data: Buffers) -> None:
            self.puts.append(path)
            if len(self.puts) - 1 != self.number:
                put(store, path, data)
                return
            is_stored, error = self.fault
            if is_stored:
                put(store, path, data)
            raise error("the answer was lost", path=path)

        patch.setattr(ObstoreStore, "put_if_absent", lose)

    def run(self, command: Callable[[], int], number: int = -1) -> int:
        """Run *command*, lose the answer to a conditional put, counted from 0, and return its status."""
        self.puts, self.number = [], number
        try:
            return command()
        except StoreError:
            return 1
        finally:
            self.number = -1


def audit_of(place: Place) -> list[tuple[str, str]]:
    log = read_audit_log(open_existing_store(place.state))
    return [(line.begin.operation if line.begin else "", line.outcome) for line in log.lines]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_whose_put_was_answered_wrongly(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(name, "killed 4", tmp_path)
    place = trial.place
    loser = Loser(monkeypatch)
    assert 0 == loser.run(trial.call)
    puts, expected, audit = loser.puts, result(place), audit_of(place)
    loser.fault = FAULTS[fault]
    for number, path in enumerate(puts):
        trial.reset()
        status = loser.run(trial.call, number)
        assert [] == damage_of(place.state), path
        if fault != "500 or no answer, not stored":
            assert 0 == status, path
            assert audit == audit_of(place), path
        elif status:
            assert 0 == trial.call(), path
        assert expected == result(place), path
