"""Call the command as a user does; run jobs of tests without full collections."""

import gc
import json
from types import SimpleNamespace

import pytest


class Call:
    """Runs commands, and returns what they print; with another status than 0 also their errors."""

    def __init__(self, capsys) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, status: int = 0) -> str:
        from statelog.cli.main import run

        self._capsys.readouterr()
        ended = run(arguments)
        said = self._capsys.readouterr()
        assert ended == status, said
        assert "Traceback" not in said.err
        return said.out if status == 0 else said.out + said.err

    def lines(self, *arguments: str, status: int = 0) -> list[dict]:
        """Return the objects that a command prints for programs."""
        printed = self(*arguments, "--json", status=status).splitlines()
        return [json.loads(line) for line in printed if status == 0 or line.startswith("{")]


@pytest.fixture
def call(capsys) -> Call:
    return Call(capsys)


@pytest.fixture(autouse=True)
def jobs_without_full_collections(request, monkeypatch) -> None:
    """
    Leave out the collections that a worker makes for each new state.

    A campaign makes thousands of states in one process, and each pass visits the objects of all
    tests that ran before: nine tenths of the time. `test_garbage.py` tests them.
    """
    if any(map(request.node.get_closest_marker, ("job", "campaign"))):
        from statelog.spark.worker import garbage

        calls = {name: getattr(gc, name) for name in ("isenabled", "enable", "disable")}
        calls |= dict.fromkeys(("collect", "freeze", "unfreeze"), lambda: None)
        monkeypatch.setattr(garbage, "gc", SimpleNamespace(callbacks=[], **calls))
